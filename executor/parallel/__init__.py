"""A layout made real: sharded weights, wrapped layers, pipeline programs."""
