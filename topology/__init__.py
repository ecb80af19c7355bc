"""The cluster as a graph: GPUs, links, hierarchy, and where ranks land on it."""
