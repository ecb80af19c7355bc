"""Pictures of time: passes of a pipeline, what a rank does in a step, memory meanwhile."""
