"""What an estimate rests on: its engine, GPU generation and precision, and every axis that it uses.

A key is one thing a measured run can have in common with an estimate. Degrees fall into classes, since a run
with cp 4 says something of cp 8 and one with cp 2 little: the mechanism that begins to matter (a ring with
several hops in flight, an exchange over the network, a start of a pipeline as long as the rest) sets a class.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.case import Case
from costmodel.layout import PLAIN_SCHEDULE, ParallelLayout
from costmodel.pipeline.schedules import usual_schedule
from costmodel.stack import SoftwareStack, bases, stacks
from costmodel.switches.profile import switches_of

EXPERTS = "experts"
"""The key of models that route tokens to experts."""
FURTHER = "further tokens"
"""The key of jobs that train modules which predict further tokens."""
MANY_HOPS = 2  # cp: more ranks than this pass keys on while others are still in flight
LONG_PIPELINE = 8  # pp: above, filling takes longer than most runs have microbatches for
SCALES_GPUS = (64, 512, 4096)  # a leaf, a pod, a data centre
CONTEXTS_TOKENS = (8192, 32_768)  # above, attention takes a third of a layer; more than the rest of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One thing that a run and an estimate can have in common.

    Attributes:
        name: The class, by which runs are counted.
        used: The same as this estimate has it: ``cp 8`` of the class ``cp > 2``.
    """

    name: str
    used: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Footing:
    """All that an estimate or a measured run rests on.

    Attributes:
        engine: Family of the software stack: profiles based on each other, and their successors.
        generation: Architecture of the GPU.
        precision: Of the linear layers.
        keys: Precision, profile, and every axis and mechanism in use.
    """

    engine: str
    generation: str
    precision: str
    keys: tuple[Key, ...]


@functools.cache
def engine_family(profile: str) -> str:
    """The profile at the end of a family: what it became, else what it is based on.

    >>> engine_family("megatron-lm-2021"), engine_family("megatron-bridge-overlap"), engine_family("pytorch")
    ('megatron-core', 'megatron-core', 'pytorch-fsdp1')
    """
    known = stacks().get(profile)
    next_one = (known.origin.successor if known else "") or bases().get(profile)
    return engine_family(next_one) if next_one else profile


def footing(case: Case, layout: ParallelLayout) -> Footing:
    """What an estimate of this layout rests on."""
    model, job, stack = case.model, case.job, case.stack
    keys = (
        Key(name=job.precision, used=job.precision),
        Key(name=f"profile {stack.name}", used=f"profile {stack.name}"),
        *_axes(layout, case.cluster.hierarchy.gpus_per_node),
        *_mechanisms(layout),
        *_switches(stack),
        *_classes("GPUs", layout.num_gpus, SCALES_GPUS),
        *_classes("tokens a sequence", job.sequence_length, CONTEXTS_TOKENS),
        *([Key(name=EXPERTS, used=EXPERTS)] if model.is_moe else []),
        *_gathered_heads(case, layout),
        *([Key(name=f"adapter {job.adapter.kind}", used=job.adapter.words)] if job.adapter else []),
        *([Key(name="compression", used=f"gradients {how}")] if (how := job.gradient_compression) else []),
        *([Key(name="buckets", used="gradients in buckets of a size")] if job.bucket_bytes else []),
        *([Key(name="tower", used=model.tower.named)] if model.tower else []),
        *([Key(name=FURTHER, used="further tokens predicted")] if job.mtp_layers else []),
        *([Key(name="local steps", used=f"workers apart, {how}")] if (how := job.local_steps) else []),
        *([Key(name="offload", used=f"offload {job.offload.words}")] if job.offload else []),
    )
    return Footing(
        engine=engine_family(stack.name),
        generation=case.cluster.gpu.architecture,
        precision=job.precision,
        keys=keys,
    )


def _axes(x: ParallelLayout, node_gpus: int) -> Iterator[Key]:
    """Axes with more than one rank, by the class of their degree."""
    block = x.cp * x.tp
    apart = x.axis_order.index("pp") > x.axis_order.index("dp") and x.expert_shards > block
    reach = x.expert_shards * (x.pp if apart else 1)
    classes = {
        "tp": x.tp > 1, "tp across nodes": x.tp > node_gpus,
        "cp": x.cp > 1, f"cp > {MANY_HOPS}": x.cp > MANY_HOPS,
        "pp": x.pp > 1, f"pp > {LONG_PIPELINE}": x.pp > LONG_PIPELINE,
        "ep": x.ep > 1, "ep across nodes": x.ep > 1 and reach > node_gpus,
    }  # fmt: skip
    for name, applies in classes.items():
        if applies:
            axis = name.split(maxsplit=1)[0]
            place = " across nodes" if "nodes" in name else ""
            yield Key(name=name, used=f"{axis} {getattr(x, axis)}{place}")


def _gathered_heads(case: Case, x: ParallelLayout) -> Iterator[Key]:
    """Tensor ranks that outnumber heads of keys and values, where the engine gathers them."""
    groups = case.model.attention.whole_heads
    if case.stack.timing.gathers_key_heads and x.tp > groups:
        yield Key(name="gathered key heads", used=f"{groups} key-value heads over tp {x.tp}")


def _switches(stack: SoftwareStack) -> Iterator[Key]:
    """Switches that are not as the profile has them."""
    usual = stacks().get(stack.name)
    if usual is None or (stack.timing, stack.memory) == (usual.timing, usual.memory):
        return
    before = switches_of(usual)
    for name, value in switches_of(stack).items():
        if value != before[name]:
            yield Key(name=f"switch {name} {value}", used=f"{name} {value or 'of its own'}")


def _mechanisms(x: ParallelLayout) -> Iterator[Key]:
    """Schedules, sharding and recomputation other than the plainest."""
    if x.virtual_stages > 1:
        yield Key(name="virtual stages", used=f"{x.virtual_stages} virtual stages")
    if x.schedule not in (PLAIN_SCHEDULE, usual_schedule(x.virtual_stages)):
        yield Key(name=f"schedule {x.schedule}", used=f"schedule {x.schedule}")
    if x.zero_stage and x.effective_shard_degree > 1:
        yield Key(name=f"ZeRO-{x.zero_stage}", used=f"ZeRO-{x.zero_stage}")
        if x.effective_shard_degree < x.replicas:
            yield Key(name="partial sharding", used=f"state shared by {x.effective_shard_degree}")
    if x.recompute != "none":
        yield Key(name=f"recompute {x.recompute}", used=f"recompute {x.recompute}")


def _classes(unit: str, value: int, bounds: tuple[int, ...]) -> Iterator[Key]:
    """Every class that a size has reached."""
    for bound in bounds:
        if value > bound:
            yield Key(name=f"> {bound:,} {unit}", used=f"{value:,} {unit}")
