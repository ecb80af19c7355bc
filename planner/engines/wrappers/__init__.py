"""Engines that a program wraps around itself: what they are told is a few arguments, its loop is its own."""
