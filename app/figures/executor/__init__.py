"""Training runs as they were: one over its steps, several one after the other."""
