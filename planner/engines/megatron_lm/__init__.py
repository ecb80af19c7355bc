"""Megatron-LM and megatron-core: what their arguments say of a plan, in both directions."""
