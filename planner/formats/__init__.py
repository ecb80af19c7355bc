"""Files that start or log jobs, as settings and numbers; nothing in them is run."""
