"""Servers of other people's files: what was started, what was measured of it, what would serve more."""
