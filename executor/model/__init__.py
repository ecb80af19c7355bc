"""The model in torch, layer by layer."""
