"""Matrices that are trained beside frozen weights."""
