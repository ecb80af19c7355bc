"""The training run: loop, optimizer, checkpoints."""
