"""Meshplan's questions as tools of the Model Context Protocol: what an agent may ask, and what answers."""
