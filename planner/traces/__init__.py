"""What profilers and loggers recorded, read as plain records: one reader a format, and none runs anything."""
