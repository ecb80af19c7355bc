"""Where the time of a recorded step went, which term is off, and what causes it."""
