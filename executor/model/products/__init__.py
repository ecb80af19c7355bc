"""What projections and experts multiply in: the format of compute, or eight bits by rows or by blocks."""
