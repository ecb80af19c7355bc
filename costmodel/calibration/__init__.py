"""Levels of a user's own server, from what benchmark clients wrote about it."""
