"""What configuration files of every engine say, in one set of names: the canonical fields.

A *field* is a dotted name and has one meaning for all engines:

- ``cluster.num_gpus``: GPUs the job is started on; launchers state it, engine files seldom do
- ``cluster.gpu``: their kind, by its name in the catalog
- ``layout.NAME``: a field of `costmodel.layout.ParallelLayout`, as ``layout.tp``, ``layout.zero_stage``
- ``split.layers``: layers of each virtual stage in model order, a tuple of pp · virtual_stages numbers
- ``split.recompute``: recomputed layers of each pipeline rank, a tuple of pp numbers
- ``job.NAME``: a field of `costmodel.job.TrainingJob`, as ``job.sequence_length``, ``job.precision``
- ``model.NAME``: a field of `costmodel.models.spec.ModelSpec`, nested ones as ``model.rotary.theta``,
  ``model.routing.n_group``
- ``stack.NAME``: a field of the groups timing and memory of a stack profile; of a mechanism whether it is
  on, of a share True: as the profile prices it, False: none, a number: that value
- ``campaign.NAME``: how a run saves, of `planner.campaign.saving.saving_facts`; None where none was asked
- ``recipe.NAME``: what no estimate depends on: ``fp8_recipe``, ``recompute_modules``, ``dispatcher``,
  ``optimizer``

Equal meanings have equal values: `facts_of` writes what makes no difference (the order of axes of one member,
the exchange of context without context parallelism, …) in one way.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from costmodel.job import TrainingJob
from costmodel.layout import AXIS_ORDERS, ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.schedules import usual_schedule
from costmodel.stack import SoftwareStack
from planner.campaign.saving import saving_facts
from planner.plan import Plan, stack_of

Facts = Mapping[str, Any]
"""Values by field."""

UNTOLD = (
    "model.name", "model.source", "model.as_of", "model.weight_format", "model.module", "model.left_out",
    "model.tower", "model.encoder", "model.num_nextn_predict_layers", "model.stored",
)  # fmt: skip
"""What says nothing of the computation, and what no engine is told: a traced module, a tower."""
_NUMERIC_SWITCHES = frozenset(
    f"stack.{name}"
    for name in (
        "dropout", "narrow_head", "dispatches_in_eight_bits", "drops_tokens", "weight_bytes",
        "gradient_bytes", "bf16_sum_bytes", "optimizer_bytes", "moment_bytes", "gradient_reduce_bytes",
        "parameter_gather_bytes", "fp8_weight_copies",
    )
)  # fmt: skip


def is_numeric(name: str) -> bool:
    """Whether a field decides what is computed and trained, not only where and when.

    Model and job are, and of the switches formats of what is kept and exchanged, dropout, and dropped tokens.

    >>> is_numeric("job.precision"), is_numeric("stack.dropout"), is_numeric("layout.tp")
    (True, True, False)
    """
    group = name.partition(".")[0]
    return group == "model" or (group == "job" and name != "job.bucket_bytes") or name in _NUMERIC_SWITCHES


def facts_of(plan: Plan) -> dict[str, Any]:
    """Everything a plan says, by field."""
    return {
        "cluster.num_gpus": plan.layout.num_gpus,
        "cluster.gpu": plan.request.cluster.nodes[0].gpu,
        **layout_facts(plan.layout),
        "split.layers": tuple(plan.layers_of_stage),
        "split.recompute": tuple(plan.recompute_of_stage),
        **job_facts(plan.request.job),
        **model_facts(plan.request.model.with_positions(plan.request.job.sequence_length)),
        **stack_facts(stack_of(plan.request)),
        **saving_facts(plan),
    }


def job_facts(job: TrainingJob) -> dict[str, Any]:
    """The fields of a job; an adapter and an offload are the words that say them."""
    facts = {f"job.{field.name}": getattr(job, field.name) for field in fields(job)}
    words = {name: getattr(job, name) for name in ("adapter", "offload")}
    return facts | {f"job.{name}": None if kind is None else kind.words for name, kind in words.items()}


def layout_facts(layout: ParallelLayout) -> dict[str, Any]:
    """The fields of a layout."""
    same = plainest(layout)
    return {f"layout.{field.name}": getattr(same, field.name) for field in fields(same)}


def plainest(layout: ParallelLayout) -> ParallelLayout:
    """The same layout with what makes no difference in it written in one way.

    >>> plainest(ParallelLayout(tp=2, dp=2, axis_order=("dp", "pp", "cp", "tp"))).axis_order
    ('pp', 'dp', 'cp', 'tp')
    """
    active = tuple(axis for axis in layout.axis_order if getattr(layout, axis) > 1)
    whole = layout.zero_stage == 0 or layout.effective_shard_degree >= layout.replicas
    return replace(
        layout,
        axis_order=_first_order(active),
        shard_degree=None if whole else layout.shard_degree,
        cp_kind=layout.cp_kind if layout.cp > 1 else "ring",
        sequence_parallel=layout.sequence_parallel and layout.tp > 1,
        schedule=layout.schedule if layout.pp > 1 else usual_schedule(1),
        virtual_stages=layout.virtual_stages if layout.pp > 1 else 1,
    )


@functools.cache
def _first_order(active: tuple[str, ...]) -> tuple[str, ...]:
    """The first of the orders that place these axes alike; where the others are matters to no rank."""
    alike = (order for order in AXIS_ORDERS if tuple(axis for axis in order if axis in active) == active)
    return next(alike)


def model_facts(model: ModelSpec) -> dict[str, Any]:
    """The fields of a model, those of rotary positions and routing one by one."""
    facts: dict[str, Any] = {}
    for field in fields(model):
        value = getattr(model, field.name)
        if field.name in ("rotary", "routing") and is_dataclass(value):
            facts |= {f"model.{field.name}.{part.name}": getattr(value, part.name) for part in fields(value)}
        else:
            facts[f"model.{field.name}"] = value
    if facts["model.query_pre_attn_scalar"] == model.qk_head_dim:
        facts["model.query_pre_attn_scalar"] = None  # that of the head's size is what None means
    return {name: value for name, value in facts.items() if name not in UNTOLD}


def stack_facts(stack: SoftwareStack) -> dict[str, Any]:
    """What a profile times and keeps."""
    groups = (stack.timing, stack.memory)
    return {f"stack.{field.name}": getattr(group, field.name) for group in groups for field in fields(group)}


def model_with(model: ModelSpec, facts: Facts) -> ModelSpec:
    """A model with the fields that a file states."""
    flat: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in facts.items():
        group, _, rest = name.partition(".")
        if group != "model":
            continue
        outer, _, inner = rest.partition(".")
        if inner:
            parts.setdefault(outer, {})[inner] = value
        else:
            flat[outer] = value
    nested = {name: replace(getattr(model, name), **values) for name, values in parts.items()}
    return replace(model, **flat, **nested)


def stack_with(stack: SoftwareStack, facts: Facts) -> SoftwareStack:
    """A profile with the mechanisms that a file switches on or off, or sets to a value."""
    groups = {"timing": stack.timing, "memory": stack.memory}
    for name, value in facts.items():
        group, _, field = name.partition(".")
        if group != "stack":
            continue
        home = "timing" if hasattr(stack.timing, field) else "memory"
        kind = type(getattr(groups[home], field))
        if value is True and kind is not bool:
            continue
        groups[home] = replace(groups[home], **{field: kind(value)})  # type: ignore[type-var]
    return replace(stack, **groups)  # type: ignore[arg-type]
