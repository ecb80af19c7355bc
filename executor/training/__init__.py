"""The training run: data, loop, optimizer, checkpoints."""
