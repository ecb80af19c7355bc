"""The search over all axes of a training layout."""
