"""Which tensors of a published state dict make one parameter here, family by family.

Most names are the same. Experts are published one by one (`mlp.experts.7.up_proj.weight`, Mixtral
`block_sparse_moe.experts.7.w3.weight`) or with gate and up in one tensor; gpt-oss interleaves the two and
stores matrices input first, as GPT-2 does.

Legend: ``E`` experts, ``F`` inner size, ``H`` hidden size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

from costmodel.models.spec import ModelSpec
from executor.comm.cuts import Cuts, box, take

View = Callable[[torch.Tensor], torch.Tensor]


class Source(NamedTuple):
    """Published tensors of one parameter: a view of one, or one for each expert, to be stacked."""

    names: tuple[str, ...]
    view: View | None

    def shapes(self, state: Mapping[str, torch.Tensor]) -> set[torch.Size]:
        """Shape of the whole parameter; several when experts differ."""
        if self.view is not None:
            return {self.view(state[self.names[0]]).shape}
        return {torch.Size((len(self.names), *state[name].shape)) for name in self.names}

    def part(self, state: Mapping[str, torch.Tensor], cuts: Cuts) -> torch.Tensor:
        """What cuts leave of the parameter; nothing else of the tensors is read."""
        if self.view is not None:
            return take(self.view(state[self.names[0]]), cuts)
        experts, *inner = box((len(self.names), *state[self.names[0]].shape), cuts)
        return torch.stack([state[name][tuple(inner)] for name in self.names[experts]])


_RENAMED = (
    (".mlp.gate.", ".block_sparse_moe.gate."),  # Mixtral
    (".mlp.gate.", ".mlp.router."),  # gpt-oss
)
MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
GPT2 = {
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
GPT2_ENDS = {"embed_tokens": "wte", "embed_positions": "wpe", "norm": "ln_f"}


def plain_names(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same tensors without the prefix of the text part of a larger model; GPT-2's always with its own."""
    result = {}
    for name, tensor in state.items():
        plain = name.replace("model.language_model.", "model.").removeprefix("language_model.")
        bare = re.match(r"(wte|wpe|h|ln_f)\.", plain)
        result[f"transformer.{plain}" if bare else plain] = tensor
    return result


def source_of(name: str, spec: ModelSpec, state: Mapping[str, torch.Tensor]) -> Source | None:
    """The tensors of a state dict (of plain names) that make a parameter, None when some are missing."""
    return next(
        (
            candidate
            for candidate in _candidates(name, spec, state)
            if all(n in state for n in candidate.names)
        ),
        None,
    )


def _candidates(name: str, spec: ModelSpec, state: Mapping[str, torch.Tensor]) -> Iterator[Source]:
    """Ways in which families publish a parameter."""
    if ".mlp.experts." in name:
        yield from _experts(name, spec, state)
        return
    yield Source((name,), _as_it_is)
    for ours, theirs in _RENAMED:
        if ours in name:
            yield Source((name.replace(ours, theirs),), _as_it_is)
    if spec.learned_positions:
        yield from _gpt2(name)


def _experts(name: str, spec: ModelSpec, state: Mapping[str, torch.Tensor]) -> Iterator[Source]:
    """Experts of a layer: one by one, or stacked in one of two orders."""
    prefix, projection = name.rsplit(".", 1)
    if f"{prefix}.up_proj" in state:  # as they are here
        yield Source((name,), _as_it_is)
        return
    suffix = "_bias" if projection.endswith("_bias") else ""
    projection = projection.removesuffix("_bias")
    kind, layer, every = suffix[1:] or "weight", prefix.removesuffix(".mlp.experts"), range(spec.num_experts)
    yield Source(tuple(f"{prefix}.{e}.{projection}.{kind}" for e in every), None)
    theirs = f"{layer}.block_sparse_moe.experts"
    yield Source(tuple(f"{theirs}.{e}.{MIXTRAL[projection]}.{kind}" for e in every), None)
    half = ("gate_proj", "up_proj").index(projection) if projection != "down_proj" else None
    whole = f"{prefix}.{'down_proj' if half is None else 'gate_up_proj'}{suffix}"
    interleaved = spec.swiglu_limit is not None
    yield Source((whole,), _from_interleaved(half, suffix) if interleaved else _from_halves(half))


def _from_interleaved(half: int | None, suffix: str) -> View:
    """gpt-oss: (E, H, 2·F) with gate and up in turn, (E, F, H), and biases."""

    def view(tensor: torch.Tensor) -> torch.Tensor:
        part = tensor if half is None else tensor[..., half::2]
        return part if suffix else part.transpose(-1, -2)

    return view


def _from_halves(half: int | None) -> View:
    """Version 5 of transformers: (E, 2·F, H) with gate before up."""

    def view(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if half is None else tensor.chunk(2, 1)[half]

    return view


def _gpt2(name: str) -> Iterator[Source]:
    """GPT-2: short names, q, k and v in one matrix, matrices stored input first."""
    inside = re.match(r"model\.layers\.(\d+)\.(.*)\.(weight|bias)$", name)
    if inside is None:
        end = re.match(r"model\.(\w+)\.(weight|bias)$", name)
        if end is not None:
            yield Source((f"transformer.{GPT2_ENDS[end[1]]}.{end[2]}",), _as_it_is)
        return
    layer, part, kind = inside.groups()
    third = {f"self_attn.{letter}_proj": place for place, letter in enumerate("qkv")}.get(part)
    theirs = f"transformer.h.{layer}.{'attn.c_attn' if third is not None else GPT2[part]}.{kind}"
    is_matrix = kind == "weight" and "layernorm" not in part

    def view(tensor: torch.Tensor) -> torch.Tensor:
        mine = tensor if third is None else tensor.chunk(3, -1)[third]
        return mine.t() if is_matrix else mine

    yield Source((theirs,), view)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    """A parameter published as it is."""
    return tensor
