"""Options of the command line, grouped."""
