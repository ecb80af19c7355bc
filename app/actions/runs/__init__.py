"""`plan run`: by the executor or by another engine, fewer GPUs when some are lost, and how a run stands."""
