"""Colossal-AI: its contract, and a plan as the arguments of a plugin of its booster.

Arguments are those of `HybridParallelPlugin` and `GeminiPlugin` in ``colossalai/booster/plugin`` of the 0.5.0
archive. Its pipelines are left out: no profile prices them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.engines.contract import Contract
from planner.engines.deepspeed import HALF_ONLY, WHOLE_LAYERS, axis_limit, in_code
from planner.engines.fields import Facts
from planner.engines.limit import compression_limit, further_limit, limit, offload_limit
from planner.engines.program import PROGRAM
from planner.engines.setting import EngineSetting, Given, Word
from planner.engines.wrappers.batches import (
    LENGTH,
    WITHOUT_A_WORD,
    WITHOUT_PIPELINE,
    batches,
    precision,
    recomputes,
)

_A, _TP, _STAGE, _SPLIT = "arguments.", "arguments.tp_size", "arguments.zero_stage", "sequence_parallelism"
_AHEAD, _GATHER = "arguments.max_prefetch", "arguments.overlap_allgather"
HYBRID, GEMINI = "HybridParallelPlugin", "GeminiPlugin"


def _write_split(facts: Facts) -> Mapping[str, Any]:
    """Hybrid up to ZeRO-2; Gemini keeps parameters in chunks of which each rank has its share.

    Neither fetches parameters ahead unless told.
    """
    stage, split = facts["layout.zero_stage"], facts["layout.sequence_parallel"]
    words: dict[str, Any] = {"plugin": GEMINI if stage == 3 else HYBRID, _TP: facts["layout.tp"]}
    if stage == 3:
        words |= {f"{_A}placement_policy": "static", f"{_A}shard_param_frac": 1.0}
        words |= {f"{_A}enable_gradient_accumulation": True, _AHEAD: int(bool(facts["stack.fsdp_prefetch"]))}
    else:
        words |= {f"{_A}pp_size": 1, _STAGE: stage, _GATHER: bool(stage and facts["stack.parameter_overlap"])}
    words |= {f"{_A}enable_{_SPLIT}": True} if split else {}
    words |= {f"{_A}{_SPLIT}_mode": "split_gather"} if split and stage < 3 else {}  # Gemini has no other
    return {**words, f"{_A}enable_flash_attention": True}


def _read_split(given: Given) -> Mapping[str, Any]:
    stage = 3 if given["plugin"] == GEMINI else given[_STAGE]
    gathers = stage == 3 or given[f"{_A}{_SPLIT}_mode"] == "split_gather"
    return {
        "layout.tp": given[_TP],
        "layout.zero_stage": stage,
        "layout.sequence_parallel": given[f"{_A}enable_{_SPLIT}"] and gathers,
        "stack.flash_attention": given[f"{_A}enable_flash_attention"],
        "stack.parameter_overlap": given[_AHEAD] > 0 if stage == 3 else stage == 0 or given[_GATHER],
        "stack.fsdp_prefetch": stage < 3 or given[_AHEAD] > 0,
    }


_SPLITS = EngineSetting(
    words=(
        Word(name="plugin", default=HYBRID),
        Word(name=_TP, kind="int", default=1),
        Word(name=f"{_A}pp_size", kind="int", default=1),
        Word(name=_STAGE, kind="int", default=0),
        Word(name=f"{_A}placement_policy", default="static"),
        Word(name=f"{_A}shard_param_frac", kind="float", default=1.0),
        Word(name=f"{_A}enable_gradient_accumulation", kind="flag", default=False),
        Word(name=_AHEAD, kind="int", default=0),
        Word(name=_GATHER, kind="flag", default=False),
        Word(name=f"{_A}enable_{_SPLIT}", kind="flag", default=False),
        Word(name=f"{_A}{_SPLIT}_mode"),
        Word(name=f"{_A}enable_flash_attention", kind="flag", default=False),
    ),
    fields=(
        "layout.tp", "layout.zero_stage", "layout.sequence_parallel",
        "stack.flash_attention", "stack.parameter_overlap", "stack.fsdp_prefetch",
    ),
    write=_write_split,
    read=_read_split,
)  # fmt: skip

COLOSSALAI = Contract(
    engine="colossalai",
    title="Colossal-AI",
    package="colossalai",
    releases=("0.4", "0.5"),
    stacks=("pytorch",),
    settings=(
        _SPLITS,
        batches("batch_size", "gradient_accumulation_steps", _TP),
        precision(f"{_A}precision", {"bf16": "bf16", "fp16": "fp16"}),
        recomputes("gradient_checkpointing"),
        LENGTH,
        *PROGRAM,
        *WITHOUT_PIPELINE,
    ),
    limits=(
        HALF_ONLY,
        compression_limit("Colossal-AI"),
        further_limit("Colossal-AI"),
        offload_limit("Colossal-AI"),
        axis_limit("pp", f"no profile prices the pipelines of Colossal-AI's {HYBRID}"),
        *(axis_limit(axis, in_code("Colossal-AI")) for axis in ("cp", "ep", "expert_tp")),
        WHOLE_LAYERS,
        limit(
            name="shards-of-a-part",
            reads=("zero_stage", "shard_degree", "dp", "cp"),
            broken=lambda _, t: (t.zero_stage > 0) & (t.shard_degree < t.replicas),
            says=lambda _, x: (
                f"shard_degree = {x.shard_degree} of {x.replicas} replicas: a plugin shards over all of them",
                "leave out shard_degree",
            ),
        ),
    ),
    recomputes="all",
    built_in={
        **WITHOUT_A_WORD,
        "gradient_overlap": "overlap_communication and enable_async_reduce are on, DDP reduces by bucket",
    },
    program=('reads it: getattr(colossalai.booster.plugin, plan["plugin"])(**plan["arguments"])'),
    source="colossalai/booster/plugin of the Colossal-AI 0.5.0 archive",
)
