"""Pools whose nodes differ: which kinds of node are used, and pipelines whose stages run on unlike kinds."""
