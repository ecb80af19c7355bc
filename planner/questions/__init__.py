"""From what people write (names, counts, units, settings) to requests that the planner reads."""
