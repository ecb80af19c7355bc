"""The cluster that a machine, a fabric or a scheduler tells of."""
