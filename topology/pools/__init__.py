"""Pools of unlike nodes: their kinds, the clusters that kinds make, and what an hour of them costs."""
