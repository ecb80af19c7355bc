"""Layers and recomputation of each stage: an integer program, and a dynamic one as its oracle."""
