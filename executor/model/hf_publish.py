"""A model's parameters as the tensors of a family's published state dict: `hf_names` the other way round.

Legend: ``E`` experts, ``F`` inner size, ``H`` hidden size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from executor.model.hf_names import GPT2, GPT2_ENDS, MIXTRAL

Tensors = Sequence[torch.Tensor]


class Target(NamedTuple):
    """Published tensors that are made of some parameters alone: by their names, and how."""

    parameters: tuple[str, ...]
    publish: Callable[[Tensors], Mapping[str, torch.Tensor]]


def targets(family: str, parameters: Sequence[str]) -> Iterator[Target]:
    """How every parameter of a model is published in a family (`model_type`)."""
    item = _FAMILIES.get(family, _experts_apart)
    joined: set[str] = set()
    for name in parameters:
        if name not in joined:
            target = item(name)
            joined.update(target.parameters)
            yield target


def _renamed(name: str, theirs: str, *, turned: bool = False) -> Target:
    """One parameter under another name, or as it is, with its last two dimensions swapped or not."""
    return Target((name,), lambda t: {theirs: t[0].transpose(-1, -2) if turned else t[0]})


def _experts_apart(name: str) -> Target:
    """Qwen, DeepSeek, GLM: experts one by one."""
    if ".mlp.experts." not in name:
        return _renamed(name, name)
    prefix, projection = name.rsplit(".", 1)
    return Target(
        (name,), lambda t: {f"{prefix}.{e}.{projection}.weight": expert for e, expert in enumerate(t[0])}
    )


def _mixtral(name: str) -> Target:
    """Mixtral: experts one by one, w1 to w3."""
    if ".mlp.experts." not in name:
        return _renamed(name, name.replace(".mlp.gate.", ".block_sparse_moe.gate."))
    layer, projection = name.split(".mlp.experts.")
    theirs = f"{layer}.block_sparse_moe.experts"
    return Target(
        (name,), lambda t: {f"{theirs}.{e}.{MIXTRAL[projection]}.weight": x for e, x in enumerate(t[0])}
    )


def _gpt_oss(name: str) -> Target:
    """gpt-oss: gate and up in turn in one tensor (E, H, 2·F), down (E, F, H)."""
    if ".mlp.experts." not in name:
        return _renamed(name, name.replace(".mlp.gate.", ".mlp.router."))
    prefix, projection = name.rsplit(".", 1)
    bias = "_bias" if projection.endswith("_bias") else ""
    if projection.startswith("down"):
        return _renamed(name, name, turned=not bias)
    both = tuple(f"{prefix}.{half}_proj{bias}" for half in ("gate", "up"))

    def publish(tensors: Tensors) -> Mapping[str, torch.Tensor]:
        gate, up = tensors if bias else (t.transpose(-1, -2) for t in tensors)
        return {f"{prefix}.gate_up_proj{bias}": torch.stack((gate, up), -1).flatten(-2)}

    return Target(both, publish)


def _gpt2(name: str) -> Target:
    """GPT-2: short names, q, k and v in one matrix, matrices input first."""
    inside = re.match(r"(model\.layers\.(\d+)\.)(.*)\.(weight|bias)$", name)
    if inside is None:
        end = re.match(r"model\.(\w+)\.(weight|bias)$", name)
        return _renamed(name, name if end is None else f"transformer.{GPT2_ENDS[end[1]]}.{end[2]}")
    ours, layer, part, kind = inside.groups()
    theirs, turned = f"transformer.h.{layer}", kind == "weight" and "layernorm" not in part
    if not re.match(r"self_attn\.[qkv]_proj$", part):
        return _renamed(name, f"{theirs}.{GPT2[part]}.{kind}", turned=turned)
    three = tuple(f"{ours}self_attn.{letter}_proj.{kind}" for letter in "qkv")
    joined = f"{theirs}.attn.c_attn.{kind}"
    return Target(three, lambda t: {joined: torch.cat([x.t() for x in t] if turned else list(t), -1)})


_FAMILIES: Mapping[str, Callable[[str], Target]] = {
    "mixtral": _mixtral,
    "gpt_oss": _gpt_oss,
    "gpt2": _gpt2,
}
