"""Pipeline stages of a server as its files say them: the layers of each, and the GPUs that each runs on.

Layers stand in a variable, or in an option. Engines refuse one that is no list of numbers, has another length
than the pipeline, or another sum than the model's layers (vLLM 0.33 and SGLang 0.5.23, `get_pp_indices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import permutations

from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import Deployment, ServingLayout, stage_layers
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import cache_left_bytes, kv_bytes_per_token, scarcest_stage
from planner.formats.settings import Setting, whole_or_none
from planner.serving.space import STAGED
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.catalog import cluster as named_cluster
from topology.catalog import gpu_name

MOST_KINDS = 4
"""Kinds of GPU whose every order is looked at."""


OPTIONS_OF_LAYERS = {"trtllm": "pp_partition"}
"""Options of engines that give stages their layers (TensorRT-LLM's `LlmArgs`)."""


def with_layers(
    layout: ServingLayout,
    engine: str,
    variables: Mapping[str, Setting],
    options: Iterable[Setting],
    model: ModelSpec,
) -> tuple[ServingLayout, str]:
    """The layout with the layers that a variable or an option gives its stages, and why these are refused."""
    name = STAGED.get(engine, "")
    setting = variables.get(name)
    if (option := OPTIONS_OF_LAYERS.get(engine)) is not None:
        name, setting = option, next((each for each in options if each.path[0] == option), None)
    if setting is None or (engine == "sglang" and layout.pp == 1):
        return layout, ""
    text = str(setting.value).strip("'\"")
    layers = tuple(whole_or_none(part.strip()) or 0 for part in text.split(","))
    setting_words = f"{name}={text}"
    if 0 in layers:
        return layout, f"{setting_words} is no list of numbers of layers"
    if len(layers) != layout.pp:
        return layout, f"{setting_words} has {len(layers)} stages, and the pipeline has {layout.pp}"
    if sum(layers) != model.num_layers:
        return (
            layout,
            f"{setting_words} sums to {sum(layers)} layers, and {model.name} has {model.num_layers}",
        )
    is_even = sorted(layers) == sorted(stage_layers(model, layout.pp))
    return (layout if is_even else replace(layout, layers=layers)), ""


def kinds_of_stages(gpu: str | None, cluster: str | None, layout: ServingLayout) -> tuple[str, ...]:
    """Kinds of GPU by stage, as `--gpu a,b` or a cluster of several kinds says; one kind for all, or none.

    Raises:
        InputError: There are several, and no stage for each.
    """
    if cluster:
        nodes = named_cluster(cluster).spec.nodes
        each = [node.gpu for node in nodes for _ in range(node.count * node.gpus_per_node)]
        names = tuple(each[: layout.num_gpus : layout.stage_gpus])
        whole = all(
            len(set(each[first : first + layout.stage_gpus])) == 1
            for first in range(0, layout.num_gpus, layout.stage_gpus)
        )
        if not whole or len(names) < layout.pp:
            return tuple(dict.fromkeys(each))[:1]
    else:
        names = tuple(gpu_name(name) for name in gpu.split(",")) if gpu else ()
    if len(set(names)) <= 1:
        return names[:1]
    if len(names) != layout.pp:
        raise InputError(
            what="one server was given several kinds of GPU",
            cause=f"kinds: {', '.join(names)}; pipeline stages, which may run on a kind each: {layout.pp}",
            fix="name one kind, or one for each stage in order: --gpu rtx-4090,l40s of two stages",
        )
    return names


def fitting_order(
    model: ModelSpec, engine: str, weights: str, layout: ServingLayout, kinds: tuple[str, ...]
) -> tuple[str, ...]:
    """Kinds of GPU that files name, in the order in which the scarcest stage holds most."""
    ordered = permutations(kinds) if len(kinds) <= MOST_KINDS else [kinds]
    return max(ordered, key=lambda order: _held(model, engine, weights, replace(layout, gpus=order)))


def roomier(layout: ServingLayout, engine: str) -> bool:
    """Whether stages of this engine may be given other layers than they have."""
    return layout.pp > 1 and engine in STAGED


def _held(model: ModelSpec, engine: str, weights: str, layout: ServingLayout) -> float:
    """Tokens that a replica holds, beside small steps; below 0 by what its weights lack."""
    deployment = Deployment(
        model=model,
        hierarchy=default_cluster(layout.gpus[0], layout.stage_gpus).hierarchy,
        layout=layout,
        stack=serving_stack(engine),
        weights=weights,  # type: ignore[arg-type]  # read as one of them
    )
    stage = scarcest_stage(deployment, token_budget=1, max_batch=1)
    return cache_left_bytes(stage, token_budget=1, max_batch=1) / kv_bytes_per_token(stage)
