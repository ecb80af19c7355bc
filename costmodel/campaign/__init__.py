"""From a step to a finished run: failures, checkpoints, restarts and spares, and what they leave useful."""
