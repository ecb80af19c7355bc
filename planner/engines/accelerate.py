"""Hugging Face Accelerate with the Trainer: their contract, and a plan as their two files.

Names are those of ``accelerate/commands/config/config_args.py`` and `ParallelismConfig` of Accelerate 1.15,
and of `TrainingArguments`, which hold what Accelerate leaves to a program: the batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from costmodel.layout import DEFAULT_AXIS_ORDER, LayoutTable
from planner.engines.contract import Contract
from planner.engines.deepspeed import (
    HALF_ONLY,
    TENSORS_ALONE,
    UNCUT_COMPRESSION,
    WHOLE_LAYERS,
    axis_limit,
    in_code,
)
from planner.engines.dotted import flat, nested
from planner.engines.fields import Facts
from planner.engines.limit import Variable, compression_limit, further_limit, limit, offload_limit
from planner.engines.program import PROGRAM
from planner.engines.quoting import yaml
from planner.engines.setting import EngineSetting, Given, Word, fixed
from planner.engines.switch_words import switch_words
from planner.plan import Problem
from topology.base.units import MIB

_F, _P, _T = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_", "trainer."
_BUCKET = f"{_T}ddp_bucket_cap_mb"
CONFIG, ARGUMENTS = "accelerate.yaml", "training_args.json"


def _degree(given: Given, name: str) -> int:
    size = given[f"{_P}{name}_size"]
    return 1 if size is None else int(size)


def _degrees(given: Given) -> dict[str, Any]:
    """Replicas of shards: what the file says, or all processes where it says nothing of them."""
    copies, shards, tp = (_degree(given, name) for name in ("dp_replicate", "dp_shard", "tp"))
    ring, ulysses = _degree(given, "cp"), _degree(given, "sp")
    kind = given["distributed_type"]
    sharded = str(kind).upper() == "FSDP" or (kind is None and shards > 1)
    processes = given["num_processes"] or given.num_gpus
    if copies * shards == 1 and processes is not None:
        replicas = max(1, int(processes) // (tp * ring * ulysses))
        copies, shards = (1, replicas) if sharded else (replicas, 1)
    cp = ring * ulysses
    stage = _stage(given) if sharded else 0
    whole = copies == 1 or not stage
    return {
        "layout.dp": copies * shards,
        "layout.tp": tp,
        "layout.cp": cp,
        "layout.cp_kind": "ulysses" if ulysses > 1 else _exchange(given, ring),
        "layout.zero_stage": stage,
        "layout.shard_degree": None if whole else shards * cp,
    }


def _stage(given: Given) -> int:
    """What FSDP shards: parameters too where nothing is said, as its plugin has it for both of its versions.

    ``fsdp_sharding_strategy``, by name or number, is the first version's word (utils/dataclasses.py,
    FullyShardedDataParallelPlugin).
    """
    reshards, strategy = given[f"{_F}reshard_after_forward"], given[f"{_F}sharding_strategy"]
    word = str(strategy if reshards is None else reshards).lower()
    return _STAGES.get(word, 3)


_STAGES = {
    "false": 2, "shard_grad_op": 2, "2": 2, "_hybrid_shard_zero2": 2, "hybrid_shard_zero2": 2, "5": 2,
    "no_shard": 0, "3": 0,
}  # fmt: skip
"""Of strategies under which parameters stay whole after the forward pass."""


def _exchange(given: Given, ring: int) -> str:
    """How keys and values come together: all at once unless the file says from rank to rank."""
    at_once = str(given[f"{_P}cp_comm_strategy"]).lower() != "alltoall"
    return "allgather" if ring > 1 and at_once else "ring"


def _write_degrees(facts: Facts) -> dict[str, Any]:
    dp, cp, stage = facts["layout.dp"], facts["layout.cp"], facts["layout.zero_stage"]
    share = facts["layout.shard_degree"] or dp * cp
    shards = max(1, share // cp) if stage else 1
    ulysses = cp > 1 and facts["layout.cp_kind"] == "ulysses"
    words: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if stage else "MULTI_GPU",
        "num_processes": facts["cluster.num_gpus"],
    }
    if stage:
        words |= {
            f"{_F}version": 2,
            f"{_F}reshard_after_forward": stage >= 3,
            f"{_F}auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            f"{_F}state_dict_type": "SHARDED_STATE_DICT",
        }
    return words | {
        f"{_P}dp_replicate_size": dp // shards,
        f"{_P}dp_shard_size": shards,
        f"{_P}tp_size": facts["layout.tp"],
        f"{_P}cp_size": 1 if ulysses else cp,
        f"{_P}sp_size": cp if ulysses else 1,
        f"{_P}cp_comm_strategy": "alltoall" if facts["layout.cp_kind"] == "ring" else "allgather",
        "use_cpu": False,
    }


_SHARDING = {
    "version": "said.fsdp_version", "reshard_after_forward": "said.reshard", "auto_wrap_policy": "",
    "state_dict_type": "", "sharding_strategy": "said.sharding",
}  # fmt: skip
_SIZES = {
    "dp_replicate": "said.dp_replicate", "dp_shard": "said.dp_shard", "tp": "layout.tp", "cp": "layout.cp",
    "sp": "",
}  # fmt: skip
_DEGREES = EngineSetting(
    words=(
        Word(name="compute_environment"),
        Word(name="distributed_type", states="said.distributed_type"),
        Word(name="num_processes", kind="int", states="said.num_gpus"),
        Word(name="num_machines", kind="int", states="said.machines"),
        Word(name="machine_rank", kind="int"),
        *(Word(name=f"{_F}{name}", kind="any", aliases=(f"fsdp_config.{name}",), states=states)
          for name, states in _SHARDING.items()),
        *(Word(name=f"{_P}{name}_size", kind="int", aliases=(f"{name}_size",), states=states)
          for name, states in _SIZES.items()),
        Word(name=f"{_P}cp_comm_strategy", default="allgather"),
        Word(name="use_cpu", kind="flag", default=False),
    ),
    fields=tuple(f"layout.{name}" for name in ("dp", "tp", "cp", "cp_kind", "zero_stage", "shard_degree")),
    write=_write_degrees,
    read=_degrees,
)  # fmt: skip


def _write_batch(facts: Facts) -> dict[str, Any]:
    size, batch, dp = (facts[f] for f in ("layout.microbatch_size", "job.global_batch_size", "layout.dp"))
    return {
        f"{_T}per_device_train_batch_size": size,
        f"{_T}gradient_accumulation_steps": batch // (dp * size),
        f"{_T}max_length": facts["job.sequence_length"],
    }


def _read_batch(given: Given) -> dict[str, Any]:
    size, steps = given[f"{_T}per_device_train_batch_size"], given[f"{_T}gradient_accumulation_steps"]
    length = given[f"{_T}max_length"]
    facts = {
        "layout.microbatch_size": size,
        "job.global_batch_size": size * steps * _degrees(given)["layout.dp"],
    }
    return facts | ({} if length is None else {"job.sequence_length": length})


_BATCH = EngineSetting(
    words=(
        Word(name=f"{_T}per_device_train_batch_size", kind="int", default=8, states="layout.microbatch_size"),
        Word(name=f"{_T}gradient_accumulation_steps", kind="int", default=1,
             aliases=("gradient_accumulation_steps",), states="said.accumulation"),
        Word(name=f"{_T}max_length", kind="int", aliases=("trainer.max_seq_length", "trainer.cutoff_len"),
             states="job.sequence_length"),
    ),
    fields=("layout.microbatch_size", "job.global_batch_size", "job.sequence_length"),
    write=_write_batch,
    read=_read_batch,
)  # fmt: skip


def _write_recompute(facts: Facts) -> dict[str, Any]:
    recomputes = facts["layout.recompute"] == "full" and any(facts["split.recompute"])
    name = f"{_F}activation_checkpointing" if facts["layout.zero_stage"] else f"{_T}gradient_checkpointing"
    return {name: recomputes}


def _read_recompute(given: Given) -> dict[str, Any]:
    """All layers, or none; how many there are is the model's."""
    checkpointing = (given[f"{_F}activation_checkpointing"], given[f"{_T}gradient_checkpointing"])
    recomputes = any(str(value).lower() == "true" for value in checkpointing)
    return {"layout.recompute": "full" if recomputes else "none"} | (
        {} if recomputes else {"split.recompute": (0,)}
    )


_RECOMPUTE = EngineSetting(
    words=(
        Word(name=f"{_T}gradient_checkpointing", kind="any", states="said.recompute_full"),
        Word(
            name=f"{_F}activation_checkpointing",
            kind="any",
            aliases=("fsdp_config.activation_checkpointing",),
            states="said.recompute_full",
        ),
    ),
    fields=("layout.recompute", "split.recompute"),
    write=_write_recompute,
    read=_read_recompute,
)


def _read_precision(given: Given) -> dict[str, Any]:
    named = str(given["mixed_precision"])
    return {"job.precision": named} if named in ("bf16", "fp16", "fp8") else {}


_ON_HOST = {"parameters": f"{_F}offload_params", "activations": f"{_F}activation_checkpointing_offload"}
OFFLOADS = ("parameters", "activations", "parameters+activations")


def _write_offload(facts: Facts) -> dict[str, Any]:
    kinds = str(facts["job.offload"] or "").split("+")
    return {word: True for kind, word in _ON_HOST.items() if kind in kinds}


def _read_offload(given: Given) -> dict[str, Any]:
    kinds = [kind for kind, word in _ON_HOST.items() if str(given[word]).lower() == "true"]
    return {"job.offload": "+".join(kinds) or None}


_OFFLOAD = EngineSetting(
    words=(
        Word(name=_ON_HOST["parameters"], kind="any", states="said.offload_param"),
        Word(name=_ON_HOST["activations"], kind="any"),
    ),
    fields=("job.offload",),
    write=_write_offload,
    read=_read_offload,
)


def _write_buckets(facts: Facts) -> dict[str, Any]:
    bucket, replicas = facts.get("job.bucket_bytes"), facts["layout.dp"] * facts["layout.cp"]
    return {_BUCKET: int(bucket // MIB)} if bucket and replicas > 1 else {}


def _read_buckets(given: Given) -> dict[str, Any]:
    """Bytes of a bucket of DDP, which FSDP2 has none of."""
    bucket = None if _degrees(given)["layout.zero_stage"] else given[_BUCKET]
    return {} if bucket is None else {"job.bucket_bytes": float(bucket * MIB)}


_BUCKETS = EngineSetting(
    words=(Word(name=_BUCKET, kind="int", states="said.bucket_mib"),),
    fields=("job.bucket_bytes",),
    write=_write_buckets,
    read=_read_buckets,
)

_COMPILED, _COMPILER, _LIGER = (
    f"{_T}torch_compile", "dynamo_config.dynamo_backend", f"{_T}use_liger_kernel",
)  # fmt: skip


def _compiled(given: Given) -> str:
    """Whether layers are: by the Trainer, or by a compiler that the launcher names."""
    return "on" if given[_COMPILED] or str(given[_COMPILER]).lower() not in ("none", "no") else "off"


_COMPILE = switch_words(
    "compile",
    words=(
        Word(name=_COMPILED, kind="flag", default=False, states="said.compile"),
        Word(name=_COMPILER, aliases=("dynamo_backend",), states="said.compile"),
    ),
    write=lambda value, _: {_COMPILED: True} if value == "on" else {},
    read=_compiled,
)
_LOSS = switch_words(
    "loss",
    words=(Word(name=_LIGER, kind="flag", default=False, states="said.liger"),),
    write=lambda value, _: {_LIGER: True} if value == "fused_linear" else {},
    read=lambda given: "fused_linear" if given[_LIGER] else "whole",
    untold=dict.fromkeys(
        ("chunked", "fused_cross_entropy", "chunked_logprobs"), "the Trainer has the kernels of Liger alone"
    ),
)
"""Head and loss in one kernel; what else Liger replaces is priced as without it."""

SETTINGS = (
    _DEGREES,
    EngineSetting(
        words=(Word(name="mixed_precision", default="no", states="said.precision"),),
        fields=("job.precision",),
        write=lambda facts: {"mixed_precision": facts["job.precision"]},
        read=_read_precision,
    ),
    _RECOMPUTE,
    _OFFLOAD,
    _BATCH,
    _BUCKETS,
    _COMPILE,
    _LOSS,
    *PROGRAM,
    fixed("layout.sequence_parallel", always=False),
    fixed("layout.pp", always=1),
    fixed("layout.ep", always=1),
    fixed("layout.axis_order", always=DEFAULT_AXIS_ORDER),
    fixed("job.optimizer", always="adamw"),
)


def _copies_alone_broken(_: Problem, t: LayoutTable) -> Any:
    shards = np.where(t.zero_stage > 0, t.shard_degree // np.maximum(t.cp, 1), 1)
    return (shards == 1) & (t.dp > 1) & ((t.tp > 1) | (t.cp > 1))


_BUCKETS_OF_DDP = limit(
    name="buckets",
    reads=("zero_stage", "dp", "cp"),
    broken=lambda s, t: (
        s.job.bucket_bytes is not None
        and (t.replicas > 1) & ((t.zero_stage > 0) | (s.job.bucket_bytes % MIB > 0))
    ),
    says=lambda s, x: (
        f"bucket_bytes = {s.job.bucket_bytes:g}, zero_stage = {x.zero_stage}: DDP alone has whole MiB",
        "set zero_stage=0, and give job.bucket_bytes in whole MiB",
    ),
)

ACCELERATE = Contract(
    engine="accelerate",
    title="Accelerate",
    package="accelerate",
    releases=("1.10", "1.15"),
    stacks=("pytorch", "trl"),
    settings=SETTINGS,
    limits=(
        HALF_ONLY,
        compression_limit("Accelerate", fields=("bucket_bytes",)),
        further_limit("Accelerate"),
        offload_limit("Accelerate", OFFLOADS),
        limit(
            name="offload-of-inputs",
            reads=("zero_stage",),
            broken=lambda s, t: (t.zero_stage == 0) & bool(s.job.offload and s.job.offload.activations),
            says=lambda _, x: (
                f"zero_stage = {x.zero_stage}: FSDP2 alone offloads the inputs of recomputed layers",
                "set zero_stage=2 or 3, or leave activations out of --offload",
            ),
        ),
        _BUCKETS_OF_DDP,
        *(axis_limit(axis, in_code("Accelerate")) for axis in ("pp", "ep", "expert_tp")),
        UNCUT_COMPRESSION,
        TENSORS_ALONE,
        WHOLE_LAYERS,
        limit(
            name="optimizer-alone",
            reads=("zero_stage", "dp", "cp"),
            broken=lambda _, t: (t.zero_stage == 1) | ((t.zero_stage > 0) & (t.replicas == 1)),
            says=lambda _, x: (
                f"zero_stage = {x.zero_stage} over {x.replicas} replicas: FSDP2 shards gradients too",
                "set zero_stage=2 or 3, or 0 for DDP",
            ),
        ),
        limit(
            name="copies-alone",
            reads=("zero_stage", "shard_degree", "dp", "cp", "tp"),
            broken=_copies_alone_broken,
            says=lambda _, x: (
                f"tp = {x.tp} and cp = {x.cp} beside {x.dp} copies: ParallelismConfig wants shards",
                "set zero_stage=3, or tp=1 and cp=1",
            ),
        ),
        limit(
            name="shards-of-context",
            reads=("zero_stage", "shard_degree", "cp", "dp"),
            broken=lambda _, t: (t.zero_stage > 0) & (t.shard_degree % np.maximum(t.cp, 1) != 0),
            says=lambda _, x: (
                f"shard_degree % cp = {x.effective_shard_degree} % {x.cp}: ranks of cp share the shards",
                "leave out shard_degree",
            ),
        ),
    ),
    recomputes="all",
    built_in={
        "gradient_overlap": "FSDP2 reduces layer by layer, DDP bucket by bucket",
        "parameter_overlap": "FSDP2 gathers layer by layer",
        "fsdp_prefetch": "FSDP2 gathers the next layer ahead",
        "cp_overlap": "no context parallelism in the profile",
        "p2p_overlap": "no pipeline here",
        "p2p_sharded": "no pipeline here",
        "early_stop_recompute": "checkpoints of torch stop at the last tensor that is needed",
    },
    program=(
        "hands training_args.json to its TrainingArguments or its own loop; the launcher reads the other"
    ),
    source="commands/config/config_args.py and parallelism_config.py of the accelerate 1.15.0 wheel",
)


def render(words: Mapping[str, Any], _: tuple[Variable, ...]) -> dict[str, str]:
    """The configuration of `accelerate launch`, and the arguments of a Trainer."""
    launcher = {name: value for name, value in words.items() if not name.startswith(_T)}
    trainer = {name.removeprefix(_T): value for name, value in words.items() if name.startswith(_T)}
    return {CONFIG: yaml(nested(launcher)), ARGUMENTS: json.dumps(trainer, indent=2) + "\n"}


def parse(files: Mapping[str, str], _: Contract) -> dict[str, Any]:
    """The dotted keys of both."""
    import yaml as library

    trainer = {f"{_T}{name}": value for name, value in json.loads(files[ARGUMENTS]).items()}
    return {**flat(library.safe_load(files[CONFIG]) or {}), **trainer}


__all__ = ["ACCELERATE", "parse", "render"]
