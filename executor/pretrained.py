"""Hugging Face state dicts: whole parameters found under the names that published families use.

Names are the same except for experts, which are published one by one (`mlp.experts.7.up_proj.weight`, Mixtral
`block_sparse_moe.experts.7.w3.weight`) and are stacked here.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from topology.errors import InputError

_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def whole_parameter(state: Mapping[str, torch.Tensor], name: str, shape: torch.Size) -> torch.Tensor:
    """Find the value of one parameter in a state dict, stacking experts; its shape must be the model's."""
    found = state.get(name)
    if found is None:
        found = _stacked_experts(state, name) if ".mlp.experts." in name else _renamed(state, name)
    if found is None:
        raise InputError(
            what=f"the state dict has no {name}",
            cause=f"{len(state)} tensors, first {next(iter(state), 'none')!r}",
            fix="load a state dict of the same model family, with its full Hugging Face names",
        )
    if found.shape != shape:
        raise InputError(
            what=f"{name} does not fit the model",
            cause=f"shape {tuple(found.shape)}, the model needs {tuple(shape)}",
            fix="load the state dict of this very model",
        )
    return found


def _renamed(state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    """Routers and shared experts under their other published names."""
    for ours, theirs in ((".mlp.gate.", ".block_sparse_moe.gate."), (".shared_experts.", ".shared_expert.")):
        if ours in name and name.replace(ours, theirs) in state:
            return state[name.replace(ours, theirs)]
    return None


def _stacked_experts(state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    """Stack the experts of a layer: `….mlp.experts.up_proj` from `….mlp.experts.{e}.up_proj.weight` or Mixtral's."""
    prefix, projection = name.rsplit(".", 1)
    kind = "bias" if projection.endswith("_bias") else "weight"
    projection = projection.removesuffix("_bias")
    layer = prefix.removesuffix(".mlp.experts")
    for pattern in (
        f"{prefix}.{{}}.{projection}.{kind}",
        f"{layer}.block_sparse_moe.experts.{{}}.{_MIXTRAL[projection]}.{kind}",
    ):
        tensors = []
        while pattern.format(len(tensors)) in state:
            tensors.append(state[pattern.format(len(tensors))])
        if tensors:
            return torch.stack(tensors)
    return None
