"""What the user's disk keeps: measurements, anchors, runs."""
