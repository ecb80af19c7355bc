"""torchtitan: its contract.

Names are those of ``torchtitan/config/configs.py`` and ``torchtitan/distributed`` of the torchtitan 0.3.0
wheel; aliases those of the TOML files of 0.1 and 0.2.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from costmodel.layout import (
    CP_KINDS,
    DEFAULT_AXIS_ORDER,
    PLAIN_SCHEDULE,
    RECOMPUTES,
    LayoutTable,
    ParallelLayout,
)
from costmodel.parallel.divisions import RANKS
from costmodel.pipeline.schedules import RECORDS
from planner.engines.contract import Contract
from planner.engines.even_layers import weighted_ends
from planner.engines.fields import Facts
from planner.engines.limit import (
    Variable,
    adapter_limit,
    compression_limit,
    further_limit,
    layers_limit,
    limit,
    offload_limit,
    optimizer_limit,
)
from planner.engines.setting import EngineSetting, Given, Word, fixed, flag, value
from planner.engines.torchtitan.kernels import ATTENTION, CHUNKED, COMPILE, GRAPHS, KERNEL_LIMITS
from planner.engines.torchtitan.precision import PRECISION, PRECISION_LIMITS, SCALING
from planner.engines.torchtitan.saving import SAVING
from planner.law import stop
from planner.plan import Problem
from topology.hardware.datasheets import generation_of

TARGET = "torchtitan"
_P = "parallelism."
_SCHEDULES = {
    record.engine_names[TARGET]: name for name, record in RECORDS.items() if TARGET in record.engine_names
}
_POLICIES = {"full": "FullAC", "selective-op": "SelectiveAC"}
MODES_OF_POLICIES: Mapping[str, str] = {"FullAC": "full", "SelectiveAC": "selective"}
"""Policies as releases before 0.3 call them, under ``activation_checkpoint.mode``."""
_MODES = {"full": "full", "selective": "selective-op", "none": "none", "None": "none", "": "none"}
_ALLGATHER, _SELECTIVE = CP_KINDS.index("allgather"), RECOMPUTES.index("selective")


def _shards(facts: Facts) -> tuple[int, int]:
    """Copies of shards, and data-parallel ranks of one shard; ranks of cp shard beside them."""
    dp, cp = facts["layout.dp"], facts["layout.cp"]
    if not facts["layout.zero_stage"]:
        return dp, 1
    share = facts["layout.shard_degree"] or dp * cp
    shards = max(1, min(share, dp * cp) // cp)
    return dp // shards, shards


def _write_data(facts: Facts) -> dict[str, Any]:
    copies, shards = _shards(facts)
    return {
        f"{_P}data_parallel_replicate_degree": copies,
        f"{_P}data_parallel_shard_degree": shards,
        f"{_P}fsdp_reshard_after_forward": "always" if facts["layout.zero_stage"] >= 3 else "never",
    }


def _read_data(given: Given) -> dict[str, Any]:
    """Replicas and shards: a degree of −1 takes what is left of the launcher's processes."""
    copies, shards = given[f"{_P}data_parallel_replicate_degree"], given[f"{_P}data_parallel_shard_degree"]
    tp, pp, cp = (given[f"{_P}{axis}_parallel_degree"] for axis in ("tensor", "pipeline", "context"))
    if shards < 0:
        if given.num_gpus is None:
            return {"layout.zero_stage": _stage(given, pp)}
        shards = max(1, given.num_gpus // (copies * tp * pp * cp))
    sharded = shards * cp > 1
    return {
        "layout.dp": copies * shards,
        "layout.zero_stage": _stage(given, pp) if sharded else 0,
        "layout.shard_degree": shards * cp if sharded and copies > 1 else None,
    }


def _stage(given: Given, pp: int) -> int:
    """ZeRO-3 where parameters are resharded after the forward pass, as they are without a pipeline."""
    policy = given[f"{_P}fsdp_reshard_after_forward"]
    return 3 if policy == "always" or (policy == "default" and pp == 1) else 2


_DATA = EngineSetting(
    words=(
        Word(name=f"{_P}data_parallel_replicate_degree", kind="int", default=1,
             aliases=("training.data_parallel_replicate_degree",), states="said.dp_replicate"),
        Word(name=f"{_P}data_parallel_shard_degree", kind="int", default=-1,
             aliases=("training.data_parallel_shard_degree", "training.data_parallel_degree"),
             states="said.dp_shard"),
        Word(name=f"{_P}fsdp_reshard_after_forward", default="default",
             aliases=("training.fsdp_reshard_after_forward",), states="said.reshard"),
    ),
    fields=("layout.dp", "layout.zero_stage", "layout.shard_degree"),
    write=_write_data,
    read=_read_data,
)  # fmt: skip


def model_parts(layers_of_stage: Sequence[int]) -> list[list[str]]:
    """Modules of each stage in model order, by torchtitan's names.

    >>> model_parts((1, 2))
    [['tok_embeddings', 'layers.0'], ['layers.1', 'layers.2', 'norm', 'lm_head']]
    """
    layers = itertools.count()
    parts = [[f"layers.{next(layers)}" for _ in range(count)] for count in layers_of_stage]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def _write_pipeline(facts: Facts) -> dict[str, Any]:
    if facts["layout.pp"] == 1:
        return {}
    named = [theirs for theirs, ours in _SCHEDULES.items() if ours == facts["layout.schedule"]]
    return {
        **{f"{_P}pipeline_parallel_schedule": name for name in named},
        f"{_P}module_fqns_per_model_part": model_parts(facts["split.layers"]),
    }


def _read_pipeline(given: Given) -> dict[str, Any]:
    """Schedule and stages; how many layers a stage has is said by its modules only."""
    pp, parts = given[f"{_P}pipeline_parallel_degree"], given[f"{_P}module_fqns_per_model_part"]
    if pp == 1:
        return {"layout.schedule": PLAIN_SCHEDULE, "layout.virtual_stages": 1}
    name = given[f"{_P}pipeline_parallel_schedule"]
    if name not in _SCHEDULES:
        raise ValueError(f"{name!r} is none of {', '.join(_SCHEDULES)}")
    facts: dict[str, Any] = {"layout.schedule": _SCHEDULES[name]}
    if parts:
        parts = json.loads(parts) if isinstance(parts, str) else parts
        layers = tuple(sum(str(module).startswith("layers.") for module in part) for part in parts)
        return facts | {"layout.virtual_stages": len(layers) // pp, "split.layers": layers}
    return facts | {"layout.virtual_stages": RECORDS[facts["layout.schedule"]].chunks or 2}


_PIPELINE = EngineSetting(
    words=(
        Word(name=f"{_P}pipeline_parallel_schedule", default="1F1B",
             aliases=("experimental.pipeline_parallel_schedule",), states="layout.schedule"),
        Word(name=f"{_P}module_fqns_per_model_part", kind="any"),
    ),
    fields=("layout.schedule", "layout.virtual_stages", "split.layers"),
    write=_write_pipeline,
    read=_read_pipeline,
)  # fmt: skip


def _write_batch(facts: Facts) -> dict[str, Any]:
    """A rank's batch: with a pipeline all its microbatches, without one of them."""
    size, batch = facts["layout.microbatch_size"], facts["job.global_batch_size"]
    piped = facts["layout.pp"] > 1
    words = {"training.local_batch_size": batch // facts["layout.dp"] if piped else size}
    words["training.global_batch_size"] = batch
    return words | ({f"{_P}pipeline_parallel_microbatch_size": size} if piped else {})


def _read_batch(given: Given) -> dict[str, Any]:
    piped = given[f"{_P}pipeline_parallel_degree"] > 1
    local, batch = given["training.local_batch_size"], given["training.global_batch_size"]
    size = given[f"{_P}pipeline_parallel_microbatch_size"] if piped else local
    replicas = _read_data(given).get("layout.dp")
    if batch < 0 and replicas is not None:
        batch = local * replicas
    return {"layout.microbatch_size": size} | ({"job.global_batch_size": batch} if batch > 0 else {})


_BATCH = EngineSetting(
    words=(
        Word(
            name="training.local_batch_size",
            kind="int",
            default=8,
            aliases=("training.batch_size",),
            states="layout.microbatch_size",
        ),
        Word(name="training.global_batch_size", kind="int", default=-1, states="job.global_batch_size"),
        Word(
            name=f"{_P}pipeline_parallel_microbatch_size",
            kind="int",
            default=1,
            states="said.pipeline_microbatch",
        ),
    ),
    fields=("layout.microbatch_size", "job.global_batch_size"),
    write=_write_batch,
    read=_read_batch,
)


def _write_recompute(facts: Facts) -> dict[str, Any]:
    every = facts["layout.recompute"] != "full" or any(facts["split.recompute"])
    return {"activation_checkpoint": _POLICIES.get(facts["layout.recompute"]) if every else None}


def _read_recompute(given: Given) -> dict[str, Any]:
    """The policy; under FullAC every layer is recomputed."""
    named, mode = given["activation_checkpoint"], given["activation_checkpoint.mode"]
    policies = {theirs: ours for ours, theirs in _POLICIES.items()} | {"None": "none"}
    policy = policies.get(str(named).partition(".Config")[0], "none") if mode is None else _MODES[str(mode)]
    option = str(given["activation_checkpoint.selective_ac_option"])
    if policy == "selective-op" and mode is not None and option.isdecimal():
        policy = "full"  # of every so many layers
    split = _read_pipeline(given)
    if policy != "full" or "split.layers" not in split:
        return {"layout.recompute": policy}
    layout = ParallelLayout(
        pp=given[f"{_P}pipeline_parallel_degree"],
        schedule=split["layout.schedule"],
        virtual_stages=split["layout.virtual_stages"],
    )
    from costmodel.pipeline.stages import ranks_of_chunks

    recomputed = [0] * layout.pp
    for rank, held in zip(ranks_of_chunks(layout), split["split.layers"], strict=True):
        recomputed[rank] += held
    return {"layout.recompute": policy, "split.recompute": tuple(recomputed)}


_RECOMPUTE = EngineSetting(
    words=(
        Word(name="activation_checkpoint", states="said.recompute"),
        Word(name="activation_checkpoint.mode", states="said.recompute"),
        Word(name="activation_checkpoint.selective_ac_option", states="said.recompute_option"),
    ),
    fields=("layout.recompute", "split.recompute"),
    write=_write_recompute,
    read=_read_recompute,
)


SETTINGS = (
    value(
        f"{_P}tensor_parallel_degree", "layout.tp", default=1, aliases=("training.tensor_parallel_degree",)
    ),
    EngineSetting(
        words=(Word(name=f"{_P}enable_sequence_parallel", kind="flag", default=True),),
        fields=("layout.sequence_parallel",),
        write=lambda facts: {f"{_P}enable_sequence_parallel": facts["layout.sequence_parallel"]},
        read=lambda given: {
            "layout.sequence_parallel": given[f"{_P}enable_sequence_parallel"]
            and given[f"{_P}tensor_parallel_degree"] > 1
        },
    ),
    value(
        f"{_P}pipeline_parallel_degree", "layout.pp", default=1,
        aliases=("experimental.pipeline_parallel_degree",),
    ),
    value(
        f"{_P}context_parallel_degree", "layout.cp", default=1,
        aliases=("experimental.context_parallel_degree",),
    ),
    value(f"{_P}expert_parallel_degree", "layout.ep", default=1),
    _DATA,
    _PIPELINE,
    _BATCH,
    value("training.seq_len", "job.sequence_length", default=2048),
    flag("training.enable_cpu_offload", "job.offload", on="parameters", off=None),
    _RECOMPUTE,
    PRECISION,
    SCALING,
    SAVING,
    GRAPHS,
    COMPILE,
    EngineSetting(
        words=(
            Word(
                name="compile.enable_async_tensor_parallel", kind="flag", default=False,
                aliases=(f"{_P}enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel"),
                states="said.async_tp"),
        ),
        fields=("stack.tp_overlap_share",),
        write=lambda facts: {"compile.enable_async_tensor_parallel": facts["stack.tp_overlap_share"] > 0},
        read=lambda given: {"stack.tp_overlap_share": given["compile.enable_async_tensor_parallel"]},
    ),
    CHUNKED,
    ATTENTION,
    fixed("layout.cp_kind", always="allgather"),
    fixed("layout.expert_tp", always=1),
    fixed("layout.axis_order", always=DEFAULT_AXIS_ORDER),
    fixed("job.optimizer", always="adamw"),
)  # fmt: skip


def _alone_broken(_: Problem, t: LayoutTable) -> Any:
    return (t.zero_stage > 0) & (t.shard_degree == 1)


def _shared_broken(_: Problem, t: LayoutTable) -> Any:
    return (t.zero_stage > 0) & (t.shard_degree % np.maximum(t.cp, 1) != 0)


LIMITS = (
    layers_limit("torchtitan", "torchtitan"),
    adapter_limit("torchtitan"),
    compression_limit("torchtitan"),
    further_limit("torchtitan"),
    offload_limit("torchtitan", ("parameters",)),
    optimizer_limit("torchtitan"),
    *PRECISION_LIMITS,
    *KERNEL_LIMITS,
    limit(
        name="context-exchange",
        reads=("cp", "cp_kind"),
        broken=lambda _, t: (t.cp > 1) & (t.cp_kind != _ALLGATHER),
        says=lambda _, x: (
            f"cp = {x.cp} by {x.cp_kind}: keys and values are gathered",
            "set cp_kind=allgather",
        ),
    ),
    limit(
        name="selective",
        reads=("recompute",),
        broken=lambda _, t: t.recompute == _SELECTIVE,
        says=lambda *_: ("recompute = selective: SelectiveAC chooses by op", "set recompute=selective-op"),
    ),
    limit(
        name="expert-tensors",
        reads=("expert_tp",),
        broken=lambda _, t: t.expert_tp > 1,
        says=lambda _, x: (f"expert_tp = {x.expert_tp}: experts are not split over tp", "set expert_tp=1"),
    ),
    limit(
        name="sharding-alone",
        reads=("zero_stage", "shard_degree", "dp", "cp"),
        broken=_alone_broken,
        says=lambda _, x: (
            f"zero_stage = {x.zero_stage} over one rank shards nothing",
            "set zero_stage=0",
        ),
    ),
    limit(
        name="shards-of-context",
        reads=("zero_stage", "shard_degree", "cp", "dp"),
        broken=_shared_broken,
        says=lambda _, x: (
            f"shard_degree % cp = {x.effective_shard_degree} % {x.cp}: ranks of cp always share the shards",
            "leave out shard_degree",
        ),
    ),
    limit(
        name="expert-block",
        reads=("ep", "zero_stage", "shard_degree", "cp", "tp", "dp"),
        broken=lambda _, t: (t.ep > 1) & (np.where(t.zero_stage > 0, t.shard_degree, 1) * t.tp % t.ep != 0),
        says=lambda _, x: (
            f"(dp_shard·cp·tp) % ep = ({x.effective_shard_degree}·{x.tp}) % {x.ep}, must be 0",
            "use a smaller ep, or leave out shard_degree",
        ),
    ),
)


def _mesh_stops(given: Given) -> tuple[str, str] | None:
    """Degrees that are all stated and do not multiply to the processes that are started (ParallelDims)."""
    copies, shards = (given[word] for word in _DATA_DEGREES)
    split = [given[word] for word in _MODEL_DEGREES]
    if given.num_gpus is None or shards < 1 or copies < 1 or min(split) < 1:
        return None
    others = copies * math.prod(split)
    product = others * shards
    if product == given.num_gpus:
        return None
    degrees = {"replicate": copies, "shard": shards, **dict(zip(("tp", "pp", "cp"), split, strict=True))}
    mesh = " · ".join(f"{name} {size}" for name, size in degrees.items() if size > 1) or f"shard {shards}"
    left = 0 if RANKS.rest(given.num_gpus, others) else given.num_gpus // others
    way = f"set {_DATA_DEGREES[1]} {left}, or start {product} GPUs" if left else f"start {product} GPUs"
    return f"{mesh} is a mesh of {product}, and {given.num_gpus} GPUs are started", way


_DATA_DEGREES = (f"{_P}data_parallel_replicate_degree", f"{_P}data_parallel_shard_degree")
_MODEL_DEGREES = tuple(f"{_P}{axis}_parallel_degree" for axis in ("tensor", "pipeline", "context"))
MESH = stop(name="mesh", reads=(*_DATA_DEGREES, *_MODEL_DEGREES), stops=_mesh_stops)

TORCHTITAN = Contract(
    engine=TARGET,
    title="torchtitan",
    package="torchtitan",
    releases=("0.3", "0.3"),
    stacks=("torchtitan",),
    settings=SETTINGS,
    limits=LIMITS,
    refusals=(MESH,),
    recomputes="all",
    even_layers=weighted_ends,
    environment=(
        Variable(
            name="PYTORCH_CUDA_ALLOC_CONF",
            value="expandable_segments:True",
            why="less of the memory is lost to fragments",
            needed=lambda _, gpu: generation_of(gpu).maker == "nvidia",
        ),
    ),
    built_in={
        "flash_attention": "scaled_dot_product_attention takes a fused kernel",
        "vocab_parallel_loss": "with tensor parallelism the loss is computed on shards",
        "gradient_overlap": "FSDP2 reduces layer by layer, DDP bucket by bucket",
        "parameter_overlap": "FSDP2 gathers layer by layer",
        "fsdp_prefetch": "FSDP2 gathers the next layer ahead",
        "cp_overlap": "keys and values are gathered beside attention",
        "p2p_overlap": "torch.distributed.pipelining sends beside compute",
        "early_stop_recompute": "priced as before 0.3, whose FullAC repeats the last product too",
    },
    source="torchtitan/config/configs.py of the torchtitan 0.3.0 wheel",
)
