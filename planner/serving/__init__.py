"""The search over fleets of a serving job."""
