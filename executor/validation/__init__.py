"""A plan checked against what torch does: counts, memory, numerics, time."""
