"""Seconds of one kernel or collective on one GPU, from measured tables."""
