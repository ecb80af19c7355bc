"""torchtitan: its contract and its file."""
