"""The plan made real with torch: instantiate, prove, measure, train."""
