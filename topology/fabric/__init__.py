"""The graph of devices and links, how it is wired, and the hierarchy derived from it."""
