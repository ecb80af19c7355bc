"""Bytes of a stage: state, activations, and what a layer holds."""
