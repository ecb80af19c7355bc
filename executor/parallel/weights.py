"""Values of parameters: drawn by name so that every layout starts alike, or taken from a state dict.

A rank draws its own part alone, from a stream keyed by the parameter's name and counted by the element's
place in the whole (`executor.parallel.draw`), or takes it from mapped files: nothing is drawn or read that is
not kept, and nothing is communicated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch

from executor.comm.cuts import Cuts, take
from executor.comm.mesh import Meshes
from executor.comm.tensor_parallel import local
from executor.model.hf_names import plain_names
from executor.model.low_rank import initial_std, is_added, starts_at_zero
from executor.model.pretrained import check_used, published_part
from executor.model.transformer import CausalLM, build_model, norm_offset
from executor.parallel.draw import draw_normal
from executor.parallel.parallelize import state_shards_of

INITIAL_STD = 0.02


def state_name(model: CausalLM, name: str) -> str:
    """Name under which a value is drawn and stored: a tied head of a later stage is the embedding."""
    if name == "lm_head.weight" and model.spec.tie_word_embeddings:
        return "model.embed_tokens.weight"
    return name


def materialize(model: CausalLM, device: torch.device) -> None:
    """Give a model built on ``meta`` real storage, values undefined."""
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)
        model.tie_weights()
    if model.positions is not None:
        model.positions = model.positions.to(device)


def _own_parts(
    model: CausalLM, meshes: Meshes | None
) -> Iterator[tuple[torch.Tensor, str, torch.Size, Cuts]]:
    """Every parameter's part on this rank: its storage, its name in a state, and what part of which shape."""
    for name, parameter in model.named_parameters():
        cuts = () if meshes is None else state_shards_of(name, meshes)
        yield local(parameter).detach(), state_name(model, name), parameter.shape, cuts


def initialize(model: CausalLM, meshes: Meshes | None, *, seed: int, device: torch.device) -> None:
    """Materialise the model and draw its initial values, the same whatever the layout.

    Norms are one, biases, sinks and the second matrices of an adapter zero, its first N(0, 1/3k), others
    N(0, 0.02²).
    """
    materialize(model, device)
    for part, name, shape, cuts in _own_parts(model, meshes):
        if re.search(r"norm\.weight$|layernorm\.weight$", name):
            part.fill_(1.0 - norm_offset(model.spec))
        elif re.search(r"bias$|sinks$", name) or starts_at_zero(name):
            part.zero_()
        else:
            std = initial_std(shape[-1]) if is_added(name) else INITIAL_STD
            draw_normal(part, f"{seed}:{name}", shape, cuts, std)


def load_state_dict(
    model: CausalLM,
    meshes: Meshes | None,
    state: Mapping[str, torch.Tensor],
    *,
    device: torch.device,
    seed: int = 0,
) -> None:
    """Materialise the model and copy this rank's part of a whole Hugging Face state dict into it.

    The matrices of an adapter, which no such state has, are drawn from the seed.
    """
    if model.adapter is not None:
        initialize(model, meshes, seed=seed, device=device)
    spec, plain = model.spec, plain_names(state)
    check_used(plain, spec, (name for name, _ in build_model(spec).named_parameters()))
    materialize(model, device)
    for part, name, shape, cuts in _own_parts(model, meshes):
        if is_added(name):
            continue
        part.copy_(published_part(plain, name, shape, cuts, spec))


def untrained(model: CausalLM) -> dict[str, torch.Tensor]:
    """Parameters that no optimizer moves, by name: biases that choose experts, and an adapter's base."""
    named = model.named_parameters()
    return {state_name(model, name): local(part).detach() for name, part in named if not part.requires_grad}


Part = tuple[tuple[int, ...], Cuts, torch.Tensor]
"""One rank's part of a parameter: whole shape, cuts, values."""


def parts(model: CausalLM, meshes: Meshes, *, gradients: bool = False) -> dict[str, Part]:
    """Take this rank's part of every parameter (or gradient), with what puts them together."""
    result: dict[str, Part] = {}
    for name, parameter in model.named_parameters():
        value = parameter.grad if gradients else parameter
        if value is not None:
            mine = local(value).detach().clone()
            result[state_name(model, name)] = (tuple(parameter.shape), state_shards_of(name, meshes), mine)
    return result


def assemble(ranks: list[dict[str, Part]]) -> dict[str, torch.Tensor]:
    """Put the parts of all ranks together into whole tensors, in one process."""
    whole: dict[str, torch.Tensor] = {}
    for rank in ranks:
        for name, (shape, shards, values) in rank.items():
            mine = torch.as_tensor(values)
            target = whole.setdefault(name, torch.full(shape, float("nan"), dtype=mine.dtype))
            take(target, shards).copy_(mine)
    return whole
