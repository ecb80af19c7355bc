"""Values of parameters: drawn by name so that every layout starts alike, or taken from a state dict.

A rank draws its own part alone, from a stream keyed by the parameter's name and counted by the element's
place in the whole (`executor.parallel.draw`): nothing is drawn that is not kept, and nothing is communicated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch

from executor.comm.mesh import Meshes
from executor.comm.tensor_parallel import local
from executor.model.hf_names import plain_names
from executor.model.pretrained import check_used, whole_parameter
from executor.model.transformer import CausalLM, build_model, norm_offset
from executor.parallel.draw import Cuts, normal_part
from executor.parallel.parallelize import state_shards_of, take_shard

INITIAL_STD = 0.02


def initial_value(name: str, shape: torch.Size, cuts: Cuts, seed: int, offset: float = 0.0) -> torch.Tensor:
    """Part of an initial value, fp32 on the host: norms one, biases and sinks zero, matrices N(0, 0.02²)."""
    if re.search(r"norm\.weight$|layernorm\.weight$", name):
        return take_shard(torch.ones(shape, device="cpu") - offset, cuts)
    if re.search(r"bias$|sinks$", name):
        return take_shard(torch.zeros(shape, device="cpu"), cuts)
    return normal_part(f"{seed}:{name}", shape, cuts, INITIAL_STD)


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


def fill(
    model: CausalLM, meshes: Meshes | None, value: Callable[[str, torch.Size, Cuts], torch.Tensor]
) -> None:
    """Set every parameter to this rank's part, `value(name, whole shape, cuts)`."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            cuts = () if meshes is None else state_shards_of(name, meshes)
            local(parameter).copy_(value(state_name(model, name), parameter.shape, cuts))


def initialize(model: CausalLM, meshes: Meshes | None, *, seed: int, device: torch.device) -> None:
    """Materialise the model and draw its initial values, the same whatever the layout."""
    materialize(model, device)
    offset = norm_offset(model.spec)
    fill(model, meshes, lambda name, shape, cuts: initial_value(name, shape, cuts, seed, offset))


def load_state_dict(
    model: CausalLM, meshes: Meshes | None, state: Mapping[str, torch.Tensor], *, device: torch.device
) -> None:
    """Materialise the model and copy this rank's part of a whole Hugging Face state dict into it."""
    spec, plain = model.spec, plain_names(state)
    check_used(plain, spec, (name for name, _ in build_model(spec).named_parameters()))
    materialize(model, device)
    fill(
        model,
        meshes,
        lambda name, shape, cuts: take_shard(whole_parameter(plain, name, shape, spec), cuts),
    )


Part = tuple[tuple[int, ...], tuple[tuple[int, int, int], ...], torch.Tensor]
"""One rank's part of a parameter: whole shape, cuts, values."""


def parts(model: CausalLM, meshes: Meshes, *, gradients: bool = False) -> dict[str, Part]:
    """Take this rank's part of every parameter (or gradient), with what puts them together."""
    found: dict[str, Part] = {}
    for name, parameter in model.named_parameters():
        value = parameter.grad if gradients else parameter
        if value is not None:
            mine = local(value).detach().clone()
            found[state_name(model, name)] = (tuple(parameter.shape), state_shards_of(name, meshes), mine)
    return found


def assemble(ranks: list[dict[str, Part]]) -> dict[str, torch.Tensor]:
    """Put the parts of all ranks together into whole tensors, in one process."""
    whole: dict[str, torch.Tensor] = {}
    for rank in ranks:
        for name, (shape, shards, values) in rank.items():
            mine = torch.as_tensor(values)
            target = whole.setdefault(name, torch.full(shape, float("nan"), dtype=mine.dtype))
            take_shard(target, shards).copy_(mine)
    return whole
