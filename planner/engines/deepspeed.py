"""DeepSpeed: its contract, and a plan as a JSON configuration.

Names are those of ``deepspeed/runtime/config.py`` of DeepSpeed 0.19. Stages of a pipeline, experts and the
split of a sequence are made in a program's own code, so a configuration alone cannot say them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from costmodel.kernels.precisions import TRAINING
from costmodel.layout import DEFAULT_AXIS_ORDER
from planner.engines.contract import Contract
from planner.engines.dotted import flat, nested
from planner.engines.fields import Facts
from planner.engines.limit import Variable, compression_limit, further_limit, limit, offload_limit
from planner.engines.program import PROGRAM
from planner.engines.setting import EngineSetting, Given, Word, fixed, value
from planner.law import PlanLaw
from planner.plan import Plan, Problem

_Z, _BATCH = "zero_optimization.", "train_micro_batch_size_per_gpu"
_ON_HOST = (f"{_Z}offload_param.device", f"{_Z}offload_optimizer.device")
_CHECKPOINTS = "activation_checkpointing.number_checkpoints"
MOST_LAYERS = 4096


def _number(given: Given, name: str) -> int | None:
    """A count that may be left to the Trainer as "auto"."""
    count = given[name]
    return None if count in (None, "auto") else int(count)


def _replicas(given: Given) -> int | None:
    """Ranks that hold a copy: those of the launcher, or what the batches divide to."""
    tp = _number(given, "tensor_parallel.autotp_size") or 1
    if given.num_gpus is not None:
        return max(1, given.num_gpus // tp)
    batch, size, steps = (
        _number(given, name) for name in ("train_batch_size", _BATCH, "gradient_accumulation_steps")
    )
    return None if None in (batch, size, steps) else (batch or 0) // ((size or 1) * (steps or 1))


def _read_batch(given: Given) -> dict[str, Any]:
    """The triple of batches, of which any two and the replicas give the third."""
    size, batch = _number(given, _BATCH), _number(given, "train_batch_size")
    steps, replicas = _number(given, "gradient_accumulation_steps"), _replicas(given)
    facts: dict[str, Any] = {} if replicas is None else {"layout.dp": replicas}
    if size is None and batch is not None and replicas:
        size = batch // (replicas * (steps or 1))
    if batch is None and size is not None and replicas:
        batch = size * replicas * (steps or 1)
    facts |= {} if size is None else {"layout.microbatch_size": size}
    return facts | ({} if batch is None else {"job.global_batch_size": batch})


def _write_batch(facts: Facts) -> dict[str, Any]:
    size, batch, dp = (facts[f] for f in ("layout.microbatch_size", "job.global_batch_size", "layout.dp"))
    return {"train_batch_size": batch, _BATCH: size, "gradient_accumulation_steps": batch // (dp * size)}


def _read_offload(given: Given) -> dict[str, Any]:
    """What is on the host: all that is sharded, or the optimizer's state and its gradients."""
    parameters, optimizer = (str(given[name]).lower() in ("cpu", "nvme") for name in _ON_HOST)
    offload = "parameters" if parameters else "optimizer:1"
    return {"job.offload": offload if parameters or optimizer else None}


def _read_stage(given: Given) -> dict[str, Any]:
    """ZeRO stage; MiCS, until 0.18, sharded everything within a group, which is what a shard degree says."""
    stage, group = _number(given, f"{_Z}stage") or 0, _number(given, f"{_Z}mics_shard_size")
    return {"layout.zero_stage": stage, "layout.shard_degree": group if group and group > 0 else None}


def _write_precision(facts: Facts) -> dict[str, Any]:
    return {f"{TRAINING[facts['job.precision']].half}.enabled": True}


def _read_precision(given: Given) -> dict[str, Any]:
    named = [name for name in ("bf16", "fp16") if given[f"{name}.enabled"] in (True, "true")]
    return {"job.precision": named[0]} if named else {}


def _write_recompute(facts: Facts) -> dict[str, Any]:
    layers = sum(facts["split.recompute"]) if facts["layout.recompute"] == "full" else 0
    return {_CHECKPOINTS: layers} if layers else {}


def _read_recompute(given: Given) -> dict[str, Any]:
    layers = _number(given, _CHECKPOINTS) or 0
    return {"layout.recompute": "full" if layers else "none", "split.recompute": (layers,)}


_DEEP = "compile.deepcompile"
_COMPILE = EngineSetting(
    words=(Word(name=_DEEP, kind="flag", default=False),),
    fields=(),
    write=lambda _: {},
    read=lambda _: {},
    granted=lambda given: (
        (f"{_DEEP} works where the program calls compile(), and is priced as without it",)
        if given[_DEEP]
        else ()
    ),
)

SETTINGS = (
    _COMPILE,
    EngineSetting(
        words=(
            Word(name="train_batch_size", kind="any", states="job.global_batch_size"),
            Word(name=_BATCH, kind="any", states="layout.microbatch_size"),
            Word(name="gradient_accumulation_steps", kind="any", states="said.accumulation"),
        ),
        fields=("layout.dp", "layout.microbatch_size", "job.global_batch_size"),
        write=_write_batch,
        read=_read_batch,
    ),
    EngineSetting(
        words=(
            Word(name=f"{_Z}stage", kind="any", default=0, states="said.zero_stage"),
            Word(name=f"{_Z}mics_shard_size", kind="any", states="layout.shard_degree"),
            Word(name=f"{_Z}zero_hpz_partition_size", kind="any", states="said.second_shard"),
        ),
        fields=("layout.zero_stage", "layout.shard_degree"),
        write=lambda facts: {f"{_Z}stage": facts["layout.zero_stage"]},  # MiCS is gone
        read=_read_stage,
    ),
    EngineSetting(
        words=(Word(name=f"{_Z}overlap_comm", kind="any"),),
        fields=("stack.gradient_overlap",),
        write=lambda facts: {f"{_Z}overlap_comm": bool(facts["stack.gradient_overlap"])},
        read=lambda given: {
            "stack.gradient_overlap": (_read_stage(given)["layout.zero_stage"] == 3)
            if given[f"{_Z}overlap_comm"] in (None, "auto") else bool(given[f"{_Z}overlap_comm"])
        },
    ),
    EngineSetting(
        words=(
            Word(name="bf16.enabled", kind="any", states="said.bf16"),
            Word(name="fp16.enabled", kind="any", states="said.fp16"),
        ),
        fields=("job.precision",),
        write=_write_precision,
        read=_read_precision,
    ),
    EngineSetting(
        words=(Word(name=_CHECKPOINTS, kind="any"),),
        fields=("layout.recompute", "split.recompute"),
        write=_write_recompute,
        read=_read_recompute,
    ),
    EngineSetting(
        words=(
            Word(name=_ON_HOST[0], states="said.offload_param"),
            Word(name=_ON_HOST[1], states="said.offload_optimizer"),
        ),
        fields=("job.offload",),
        write=lambda facts: dict.fromkeys(_ON_HOST, "cpu") if facts["job.offload"] else {},
        read=_read_offload,
    ),
    EngineSetting(
        words=(Word(name="gradient_clipping", kind="any"),),
        fields=(),
        write=lambda _: {"gradient_clipping": 1.0},
        read=lambda _: {},
    ),
    value(
        "tensor_parallel.autotp_size", "layout.tp", default=1, when=lambda facts: facts["layout.tp"] > 1
    ),
    *PROGRAM,
    fixed("layout.sequence_parallel", always=False),
    fixed("layout.pp", always=1),
    fixed("layout.cp", always=1),
    fixed("layout.ep", always=1),
    fixed("layout.axis_order", always=DEFAULT_AXIS_ORDER),
    fixed("job.optimizer", always="adamw"),
)  # fmt: skip


def in_code(engine: str) -> str:
    """Why its files do not say an axis."""
    return f"a program for {engine} splits that in its code, no file says it"


def axis_limit(axis: str, why: str) -> PlanLaw:
    """The limit of an engine that cannot be told to split a job over an axis, and why."""
    return limit(
        name=axis,
        reads=(axis,),
        broken=lambda _, t: getattr(t, axis) > 1,
        says=lambda _, x: (f"{axis} = {getattr(x, axis)}: {why}", f"set {axis}=1"),
    )


EXPERTS_UNCUT = limit(
    name="experts-of-tensor-ranks",
    reads=("tp",),
    broken=lambda s, t: (t.tp > 1) & s.model.is_moe,
    says=lambda s, x: (
        f"tp = {x.tp}: AutoTP 0.19 knows no way to divide {s.model.num_experts} experts (moe_tp_experts)",
        "set tp=1",
    ),
)


def _kept_whole(s: Problem) -> str:
    """What of a model's attention the plan of transformers keeps whole."""
    return s.model.attention.whole_in_transformers


UNCUT_COMPRESSION = limit(
    name="compressed-attention",
    reads=("tp",),
    broken=lambda s, t: (t.tp > 1) & bool(_kept_whole(s)),
    says=lambda s, x: (
        f"tp = {x.tp}: transformers keeps {_kept_whole(s)} whole on every tensor rank",
        "set tp=1",
    ),
)
"""What transformers' own plan of DeepSeek-V4 divides is its routed experts alone (5.23)."""


def _low(s: Problem, _: object) -> bool:
    return s.job.is_low_precision


HALF_ONLY = limit(
    name="precision",
    reads=(),
    broken=_low,
    says=lambda s, _: (
        f"precision = {s.job.precision}: only sixteen bits have a word",
        f"use --precision {TRAINING[s.job.precision].half}",
    ),
)
TENSORS_ALONE = limit(
    name="sequence-parallel",
    reads=("sequence_parallel", "tp"),
    broken=lambda _, t: t.sequence_parallel & (t.tp > 1),
    says=lambda *_: ("tensor parallelism here keeps whole sequences", "set sequence_parallel=false"),
)
WHOLE_LAYERS = limit(
    name="recompute",
    reads=("recompute",),
    broken=lambda _, t: (t.recompute == 1) | (t.recompute == 2),
    says=lambda _, x: (f"recompute = {x.recompute}: only whole layers have a word", "set recompute=full"),
)

DEEPSPEED = Contract(
    engine="deepspeed",
    title="DeepSpeed",
    package="deepspeed",
    releases=("0.16", "0.19"),
    stacks=("deepspeed", "pytorch"),
    settings=SETTINGS,
    limits=(
        HALF_ONLY,
        compression_limit("DeepSpeed"),
        further_limit("DeepSpeed"),
        offload_limit("DeepSpeed", ("parameters",)),
        *(axis_limit(axis, in_code("DeepSpeed")) for axis in ("pp", "cp", "ep", "expert_tp")),
        TENSORS_ALONE,
        EXPERTS_UNCUT,
        WHOLE_LAYERS,
        limit(
            name="groups-of-shards",
            reads=("zero_stage", "shard_degree", "dp", "cp"),
            broken=lambda _, t: (t.zero_stage > 0) & (t.shard_degree < t.replicas),
            says=lambda _, x: (f"shard_degree = {x.shard_degree} of {x.replicas} replicas: 0.19 has no MiCS",
                               "leave out shard_degree"),
        ),
    ),
    recomputes="all",
    built_in={
        "parameter_overlap": "ZeRO-3 gathers ahead",
        "fsdp_prefetch": "ZeRO-3 gathers ahead by default, stage3_prefetch_bucket_size",
        "cp_overlap": "no context parallelism here",
        "p2p_overlap": "no pipeline here",
        "p2p_sharded": "no pipeline here",
        "early_stop_recompute": "checkpoints of torch stop at the last tensor that is needed",
    },
    program=(
        "hands it to deepspeed.initialize(config=…), or to TrainingArguments(deepspeed=…)"
    ),
    source="deepspeed/runtime/config.py and zero/config.py of the DeepSpeed 0.19.8 archive",
)  # fmt: skip


def render(words: Mapping[str, Any], _: tuple[Variable, ...]) -> str:
    """The JSON configuration."""
    return json.dumps(nested(words), indent=2) + "\n"


def parse(text: str, _: Contract) -> dict[str, Any]:
    """Its dotted keys."""
    return flat(json.loads(text))


def notes(plan: Plan) -> tuple[str, ...]:
    """What the program must do that the file cannot."""
    if plan.layout.recompute != "full" or not any(plan.recompute_of_stage):
        return ()
    return ("checkpoint every layer in the program: gradient_checkpointing=True of the HF Trainer",)
