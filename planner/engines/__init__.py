"""Plans as the configuration of other tools: one file for each tool, no torch."""
