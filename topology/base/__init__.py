"""What everything stands on: errors, units, names, decoding; imports nothing of ours."""
