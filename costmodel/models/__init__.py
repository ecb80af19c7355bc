"""Models: their shape, the catalog, and what a config.json says."""
