"""The per-layer table: what each op computes, moves and saves, per shard."""
