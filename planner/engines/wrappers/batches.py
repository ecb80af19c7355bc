"""What a program's own loop is told whatever wraps it: its batch, its precision, whether it recomputes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.kernels.precisions import TRAINING
from costmodel.layout import DEFAULT_AXIS_ORDER
from planner.engines.deepspeed import HALF_ONLY, WHOLE_LAYERS, axis_limit
from planner.engines.fields import Facts
from planner.engines.limit import (
    adapter_limit,
    compression_limit,
    further_limit,
    limit,
    offload_limit,
    optimizer_limit,
)
from planner.engines.setting import EngineSetting, Given, Word, fixed, value
from planner.law import PlanLaw

DATA_PARALLEL_ONLY = ("tp", "pp", "cp", "ep", "expert_tp")


def batches(size: str, steps: str, tensor: str | None = None) -> EngineSetting:
    """Sequences of a rank at once and how often before a step; replicas are what the launcher starts."""

    def write(facts: Facts) -> Mapping[str, Any]:
        each = facts["layout.microbatch_size"]
        return {size: each, steps: facts["job.global_batch_size"] // (facts["layout.dp"] * each)}

    def read(given: Given) -> Mapping[str, Any]:
        facts = {} if given[size] is None else {"layout.microbatch_size": given[size]}
        if given.num_gpus is None or given[size] is None:
            return facts
        replicas = max(1, given.num_gpus // (given[tensor] if tensor else 1))
        batch = replicas * given[size] * given[steps]
        return {**facts, "layout.dp": replicas, "job.global_batch_size": batch}

    words = (Word(name=size, kind="int"), Word(name=steps, kind="int", default=1))
    stated = ("layout.dp", "layout.microbatch_size", "job.global_batch_size")
    return EngineSetting(words=words, fields=stated, write=write, read=read)


def recomputes(name: str) -> EngineSetting:
    """All layers, or none; how many there are is the model's."""
    return EngineSetting(
        words=(Word(name=name, kind="flag", default=False),),
        fields=("layout.recompute", "split.recompute"),
        write=lambda facts: {name: facts["layout.recompute"] == "full" and any(facts["split.recompute"])},
        read=lambda given: (
            {"layout.recompute": "full"}
            if given[name]
            else {"layout.recompute": "none", "split.recompute": (0,)}
        ),
    )


def precision(name: str, words: Mapping[str, str]) -> EngineSetting:
    """Sixteen bits, by the engine's words for them."""
    named = {precision: words[record.half] for precision, record in TRAINING.items() if precision in words}
    return value(name, "job.precision", "text", names=named)


LENGTH = value("sequence_length", "job.sequence_length")
WITHOUT_PIPELINE = (
    fixed("layout.pp", always=1), fixed("layout.cp", always=1), fixed("layout.ep", always=1),
    fixed("layout.shard_degree", always=None), fixed("layout.axis_order", always=DEFAULT_AXIS_ORDER),
    fixed("job.optimizer", always="adamw"),
)  # fmt: skip
REPLICAS_ALONE = (
    fixed("layout.tp", always=1), fixed("layout.sequence_parallel", always=False),
    fixed("layout.zero_stage", always=0), *WITHOUT_PIPELINE,
)  # fmt: skip


def replicas_alone(title: str) -> tuple[PlanLaw, ...]:
    """The limits of an engine that sums gradients of whole models, and does nothing else."""
    whole = limit(
        name="sharding",
        reads=("zero_stage",),
        broken=lambda _, t: t.zero_stage > 0,
        says=lambda _, x: (
            f"zero_stage = {x.zero_stage}: every rank of {title} holds all of the model",
            "set zero_stage=0",
        ),
    )
    why = f"{title} has data-parallel ranks only"
    return (
        HALF_ONLY,
        adapter_limit(title),
        compression_limit(title),
        further_limit(title),
        offload_limit(title),
        optimizer_limit(title),
        *(axis_limit(axis, why) for axis in DATA_PARALLEL_ONLY),
        whole,
        WHOLE_LAYERS,
    )


NOTHING_GATHERED = {"parameter_overlap": "nothing is gathered", "fsdp_prefetch": "nothing is gathered"}
WITHOUT_A_WORD = {
    "cp_overlap": "no context parallelism here", "p2p_overlap": "no pipeline here",
    "p2p_sharded": "no pipeline here",
    "early_stop_recompute": "checkpoints of torch stop at the last tensor that is needed",
}  # fmt: skip
