"""Meshplan's own executor, one engine among others: its contract. It reads the plan itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from planner.engines.contract import Contract
from planner.engines.fields import facts_of
from planner.engines.limit import (
    adapter_limit,
    block_scales_limit,
    columns_limit,
    compression_limit,
    further_limit,
    layers_limit,
    limit,
    offload_limit,
    optimizer_limit,
)
from planner.engines.setting import EngineSetting, value
from planner.plan import Plan, Problem, from_json, to_json
from topology.builders import generations_of
from topology.hardware.datasheets import generation_of

_FIELDS = (
    *(f"layout.{field.name}" for field in fields(ParallelLayout)),
    "split.layers", "split.recompute",
    "job.sequence_length", "job.global_batch_size", "job.precision", "job.optimizer", "job.adapter",
    "job.gradient_compression",
)  # fmt: skip
SETTINGS: tuple[EngineSetting, ...] = tuple(value(name, name, "any") for name in _FIELDS)
_BUILT_IN = (
    "flash_attention", "vocab_parallel_loss", "gradient_overlap", "parameter_overlap", "fsdp_prefetch",
    "cp_overlap", "p2p_overlap", "early_stop_recompute", "pads_value_heads", "dispatches_weights",
    "gathers_before_latent",
)  # fmt: skip


def _adapted_broken(s: Problem, _: LayoutTable) -> bool:
    adapter = s.job.adapter
    return adapter is not None and (
        adapter.base != "half"
        or adapter.dropout > 0
        or (s.model.is_moe and "mlp" in adapter.targets)
        or s.job.optimizer != "adamw"
    )


def _adapted(s: Problem, _: ParallelLayout) -> tuple[str, str]:
    adapter = s.job.adapter
    if adapter is None or (s.model.is_moe and "mlp" in adapter.targets):
        return "adapters of routed experts: the executor has none", "use targets=attention"
    if s.job.optimizer != "adamw":
        return f"an adapter with {s.job.optimizer}: it is trained by AdamW", "use --set job.optimizer=adamw"
    return (
        f"base={adapter.base}, dropout={adapter.dropout:g}: weights have sixteen bits, nothing is dropped",
        "leave base and dropout out",
    )


ADAPTED = limit(name="adapted", reads=(), broken=_adapted_broken, says=_adapted)
"""What of an adapter the executor does not compute."""


def _compressed_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    if s.job.gradient_compression is None:
        return False
    other = (t.tp > 1) | (t.pp > 1) | (t.cp > 1) | (t.ep > 1) | (t.zero_stage > 0)
    return np.asarray(other, dtype=bool) | s.model.is_moe


def _compressed(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    how = s.job.gradient_compression
    why = (
        f"{s.model.name} has experts"
        if s.model.is_moe
        else f"ZeRO-{x.zero_stage}, tp·pp·cp·ep = {x.tp}·{x.pp}·{x.cp}·{x.ep}"
    )
    return (
        f"gradients as {how} of {why}: the executor compresses those of whole dense replicas",
        "use zero_stage=0 with dp alone, or leave job.gradient_compression out",
    )


COMPRESSED = limit(
    name="compressed",
    reads=("tp", "pp", "cp", "ep", "zero_stage"),
    broken=_compressed_broken,
    says=_compressed,
)
"""Which gradients the executor compresses, and how."""

GROUPED_CAPABILITIES = ("9", "10")
"""Major compute capabilities of torch's grouped products in eight bits."""
_MULTIPLE = {"fp8": 16, "mxfp8": 32}
"""Sides of a product in eight bits: its kernels read sixteen bytes of a row, or whole blocks of one scale."""
TRAINS = ("bf16", *_MULTIPLE)
"""Precisions of jobs that the executor trains in."""


def _unlike(s: Problem) -> tuple[str, str]:
    """What of a job in eight bits the executor does not compute so, and what helps; empty where it does."""
    if s.job.precision not in TRAINS:
        return "the executor multiplies in bf16, or in eight bits by rows (fp8) or blocks (mxfp8)", (
            "use --precision bf16"
        )
    if s.job.is_low_precision and any(generation.fp8_fnuz for generation in generations_of(s.cluster.spec)):
        return (
            f"the executor rounds to e4m3fn, {s.cluster.gpu.name} multiplies e4m3fnuz",
            "use --precision bf16",
        )
    capability = generation_of(s.cluster.gpu).compute_capability
    if s.job.is_low_precision and s.model.is_moe and capability.split(".")[0] not in GROUPED_CAPABILITIES:
        has = f"{s.cluster.gpu.name} has {capability}"
        return (
            f"routed experts want compute capability 9 or 10 (torch's kernel), {has}",
            "use --precision bf16",
        )
    if s.job.is_low_precision and s.job.adapter is not None:
        return "the executor trains adapters in sixteen bits", "use --precision bf16"
    return "", ""


def _tokens_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    multiple = _MULTIPLE.get(s.job.precision)
    return False if multiple is None else t.microbatch_size * s.job.sequence_length % (multiple * t.cp) != 0


def _tokens(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    multiple, tokens = _MULTIPLE[s.job.precision], x.microbatch_size * s.job.sequence_length
    left = tokens % (multiple * x.cp)
    return (
        f"tokens of a microbatch {tokens} % ({multiple}·cp {x.cp}) = {left}, must be 0 for {s.job.precision}",
        "use a smaller cp, or --precision bf16",
    )


def _experts_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    multiple = _MULTIPLE.get(s.job.precision)
    if multiple is None or not s.model.is_moe:
        return False
    return np.asarray(s.model.moe_intermediate_size % (multiple * t.expert_tp) != 0, dtype=bool)


def _experts(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    multiple, columns = _MULTIPLE[s.job.precision], s.model.moe_intermediate_size
    equation = f"{columns} % ({multiple}·expert_tp {x.expert_tp}) = {columns % (multiple * x.expert_tp)}"
    return (
        f"columns of an expert {equation}, must be 0 for {s.job.precision}",
        "use a smaller expert_tp, or --precision bf16",
    )


def _partial_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    whole = s.model.attention.replicated_parameters
    return np.greater(t.tp, 1) if whole and s.job.is_low_precision else False


PRECISION_LIMITS = (
    limit(
        name="precision",
        reads=(),
        broken=lambda s, _: bool(_unlike(s)[0]),
        says=lambda s, _: (f"precision = {s.job.precision}: {_unlike(s)[0]}", _unlike(s)[1]),
    ),
    block_scales_limit("the executor's kernels"),
    columns_limit(_MULTIPLE),
    limit(name="experts-of-eight-bits", reads=("expert_tp",), broken=_experts_broken, says=_experts),
    limit(name="tokens-of-eight-bits", reads=("microbatch_size", "cp"), broken=_tokens_broken, says=_tokens),
    limit(
        name="partial-sums-of-eight-bits",
        reads=("tp",),
        broken=_partial_broken,
        says=lambda s, x: (
            f"precision = {s.job.precision} with tp {x.tp}: ranks would round parts of latent gradients",
            "use tp = 1, or --precision bf16",
        ),
    ),
)
"""What of eight bits the executor does not compute, or its kernels do not take."""

MESHPLAN = Contract(
    engine="meshplan",
    title="Meshplan",
    package="meshplan",
    releases=("0", "99"),
    stacks=("meshplan",),
    settings=SETTINGS,
    limits=(
        layers_limit("the executor", "meshplan"),
        adapter_limit("the executor", ("lora",)),
        ADAPTED,
        compression_limit("the executor", fields=("gradient_compression",)),
        further_limit("the executor"),
        COMPRESSED,
        offload_limit("the executor"),
        optimizer_limit("the executor", ("adamw", "muon")),
        *PRECISION_LIMITS,
    ),
    recomputes="per-rank",
    built_in=dict.fromkeys(_BUILT_IN, "the executor's own code, executor/"),
    source="executor/",
)


def render(plan: Plan) -> str:
    """The plan."""
    return to_json(plan) + "\n"


def parse(text: str) -> Mapping[str, Any]:
    """What the plan says."""
    facts = facts_of(from_json(text))
    return {name: facts[name] for name in _FIELDS}
