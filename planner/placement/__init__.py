"""Which nodes the ranks of a layout are on, and what that costs."""
