"""Seconds, bands and scores of a training step."""
