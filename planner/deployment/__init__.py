"""Deployments of a serving plan: what every node runs, and what stands in front of the servers."""
