"""Attention of sequences: whole, cut over ranks, over windows, with capped scores, within documents."""
