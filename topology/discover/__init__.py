"""The cluster this process runs on, read from the machine."""
