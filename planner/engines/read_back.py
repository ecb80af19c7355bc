"""What an engine would run of what was written for it, held against the plan.

The written words are read back and the layout they say is estimated on the plan's cluster. Only if step time
and memory are the plan's is an export the plan; what differs is named by its fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.job import TrainingJob
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.stack import stack
from costmodel.updates.adapters import parse_adapter
from costmodel.updates.offload import parse_offload
from planner.engines.contract import Contract, EngineReading
from planner.engines.contracts import takes, way_out
from planner.engines.fields import Facts, layout_facts, model_with, stack_with
from planner.engines.limit import difference_words
from planner.plan import Plan
from planner.pricing import capacity_of_fullest, estimate_split, split_of
from planner.structure import close
from topology.base.errors import InputError, NoFeasiblePlanError
from topology.base.units import format_bytes, format_seconds

_JUDGED = ("layout", "split", "job", "model", "campaign")
_UNSAID = layout_facts(ParallelLayout())
_UNIMPORTANT = ("job.total_tokens", "job.deadline_s", "job.budget_usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportVerdict:
    """What an engine would run.

    Attributes:
        differs: Fields that are not the plan's: name, the plan's value, the engine's.
        priced_otherwise: Whether the plan is priced by a profile that is not the engine's.
        step_time_s: Its step; None where what was read is no layout of the model.
        peak_memory_bytes: Its memory, likewise.
    """

    differs: tuple[tuple[str, Any, Any], ...]
    priced_otherwise: bool
    step_time_s: float | None
    peak_memory_bytes: float | None


def verdict_of(plan: Plan, facts: Facts, contract: Contract, reading: EngineReading) -> ExportVerdict:
    """Estimate what was read back on the plan's cluster.

    Args:
        plan: the plan.
        facts: what it says, by field.
        contract: the engine.
        reading: what the engine's files say.
    """
    problem, read = plan.problem, reading.fields
    differs = tuple(differences(facts, read))
    name = plan.request.stack
    profile = problem.stack if name in contract.stacks else stack(contract.stacks[0])
    try:
        layout = _layout(read)
        job = _job(plan, read)
        model = model_with(plan.request.model, read)
        heard = problem.of(model=model, job=job, stack=stack_with(profile, read))
        layers = read.get("split.layers", plan.layers_of_stage)
        recomputed = read.get("split.recompute", plan.recompute_of_stage)
        split = split_of(model, layout, tuple(layers), tuple(recomputed))
        now, _ = estimate_split(heard, plan, layout, split)
    except (InputError, ValueError, IndexError, ZeroDivisionError):
        return ExportVerdict(
            differs=differs,
            priced_otherwise=name not in contract.stacks,
            step_time_s=None,
            peak_memory_bytes=None,
        )
    return ExportVerdict(
        differs=differs,
        priced_otherwise=name not in contract.stacks,
        step_time_s=now.step_time_s,
        peak_memory_bytes=now.peak_memory_bytes,
    )


def _job(plan: Plan, read: dict[str, Any]) -> TrainingJob:
    """The job that an engine says; what it does not say is the plan's."""
    parts = {part: read[f"job.{part}"] for part in _JOB if f"job.{part}" in read}
    if "job.adapter" in read:
        parts["adapter"] = parse_adapter(read["job.adapter"]) if read["job.adapter"] else None
    if "job.offload" in read:
        parts["offload"] = parse_offload(read["job.offload"])[0] if read["job.offload"] else None
    return replace(plan.request.job, **parts)


_JOB = ("sequence_length", "global_batch_size", "precision", "optimizer", "bucket_bytes", "mtp_layers")


def _layout(read: dict[str, Any]) -> ParallelLayout:
    """The layout that an engine says; what it does not say is the default."""
    parts = {name.removeprefix("layout."): read.get(name, usual) for name, usual in _UNSAID.items()}
    return ParallelLayout(**parts)


def differences(facts: Facts, read: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Fields with another value, those of a layout in their plainest form."""
    plain = {**read, **layout_facts(_layout(read))}
    for name, value in facts.items():
        group = name.partition(".")[0]
        if name in _UNIMPORTANT or (name not in read and group != "layout"):
            continue
        if group in _JUDGED and plain[name] != value:
            yield name, value, plain[name]
        elif group == "stack" and _switched(value, read[name]):
            yield name, value, read[name]


def _switched(planned: Any, read: Any) -> bool:
    """Whether a mechanism is on in one and off in the other, or has another value."""
    return bool(planned) != read if isinstance(read, bool) else bool(planned != read)


def require_runnable(plan: Plan, contract: Contract) -> None:
    """Refuse a plan that breaks a limit of the engine: there is nothing near to write.

    What the engine refuses of any layout is told before what it refuses of this one.
    """
    problem, row = plan.problem, LayoutTable.from_rows([plan.layout])
    for limit in sorted(contract.limits, key=lambda limit: bool(limit.reads)):
        if bool(np.any(limit.broken(problem, row))):
            pinned = plan.request.pins.keys()
            helps = takes(contract, problem, plan.layout, pinned)
            raise NoFeasiblePlanError(
                answer=limit,
                what=f"{contract.engine} cannot run this plan: {contract.engine}-{limit.name}",
                cause=limit.says(problem, plan.layout)[0],
                fix=way_out(limit, problem, plan.layout, pinned)
                + (f", as plan --for {contract.engine} does" if helps else ""),
            )


def is_the_plan(plan: Plan, verdict: ExportVerdict) -> bool:
    """Whether an engine would run the plan: what its layout, job and model are, in its time and memory."""
    same = not any(name.partition(".")[0] in _JUDGED for name, _, _ in verdict.differs)
    if verdict.step_time_s is None or verdict.peak_memory_bytes is None:
        return False
    steps = close(verdict.step_time_s, plan.estimate.step_time_s)
    return same and steps and close(verdict.peak_memory_bytes, plan.estimate.peak_memory_bytes)


def export_error(plan: Plan, contract: Contract, verdict: ExportVerdict) -> NoFeasiblePlanError:
    """The error of a plan that an engine cannot be told: fields, the cost of the nearest, the way out."""
    names = [name for name, _, _ in verdict.differs]
    reason = f"priced by {plan.request.stack}" if verdict.priced_otherwise else "what is priced as on"
    fields = ", ".join(_few(names)) or reason
    return NoFeasiblePlanError(
        answer=verdict,
        what=f"{contract.engine} cannot be told this plan: {fields}",
        cause="; ".join(
            [
                *_few([difference_words(name, here, there) for name, here, there in verdict.differs]),
                cost(plan, verdict),
            ]
        ),
        fix=f"plan it with --for {contract.engine}, or write the nearest with --nearest",
    )


def cost(plan: Plan, verdict: ExportVerdict) -> str:
    """Step and memory of the plan and of what the engine would run."""
    now = plan.estimate
    here = f"{format_seconds(now.step_time_s)} a step in {format_bytes(now.peak_memory_bytes)}"
    if verdict.step_time_s is None or verdict.peak_memory_bytes is None:
        return f"the plan takes {here}, what is left of it is no layout of the model"
    capacity = capacity_of_fullest(plan)
    of = f" of {format_bytes(capacity)}, out of memory" if verdict.peak_memory_bytes > capacity else ""
    there = f"{format_seconds(verdict.step_time_s)} in {format_bytes(verdict.peak_memory_bytes)}{of}"
    return f"the plan takes {here}, the nearest {there}"


def _few(texts: list[str], most: int = 4) -> list[str]:
    """The first of some texts, and how many more there are."""
    more = len(texts) - most
    return texts[:most] + ([f"and {more} more"] if more > 0 else [])
