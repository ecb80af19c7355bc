"""Facts of a job that is priced: every one is what its price takes, whoever stated it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from costmodel.layout import ParallelLayout
from planner.audit.facts import How, JobFact, JobFacts
from planner.audit.file_switches import switch_facts
from planner.audit.job import Job
from planner.audit.read import Reading
from planner.engines.fields import job_facts, layout_facts

_JOB = ("sequence_length", "global_batch_size", "precision", "mtp_layers")


def with_priced_facts(reading: Reading, job: Job) -> Reading:
    """What files say, with the values that are priced and what else of the layout its engine decides.

    Args:
        reading: What the files say.
        job: As it is priced; one that is not leaves the facts as they were read.
    """
    if job.request is None or job.layout is None:
        return reading
    stated = job_facts(job.request.job)
    priced = {**layout_facts(job.layout), **{f"job.{name}": stated[f"job.{name}"] for name in _JOB}}
    plain = {**layout_facts(ParallelLayout()), "job.mtp_layers": 0}
    open_fields = {gap.field: gap.why for gap in job.unsettled}
    idle = _without_effect(job.layout, moe=job.request.model.is_moe)
    facts = {
        name: _priced(fact, priced[name]) if name in priced and name not in idle else fact
        for name, fact in reading.facts.by_field.items()
        if priced.get(name, fact.value) is not None
    }
    for name, value in priced.items():
        if name not in facts and name in plain and value != plain[name] and name not in _UNSHOWN:
            why = open_fields.get(name, f"{reading.family.name} has it where nothing is said")
            how: How = "assumed" if name in open_fields else "default"
            facts[name] = JobFact(name=name, value=value, how=how, source=why)
    facts |= {fact.name: fact for fact in switch_facts(reading, job.request)}
    return replace(reading, facts=JobFacts(facts, set(reading.facts.unknown), list(reading.facts.notes)))


def _without_effect(layout: ParallelLayout, *, moe: bool) -> tuple[str, ...]:
    """Fields that change nothing of a layout, whatever is stated of them."""
    names = {
        "layout.sequence_parallel": layout.tp == 1,
        "layout.virtual_stages": layout.pp == 1,
        "layout.schedule": layout.pp == 1,
        "layout.expert_tp": not moe,
        "layout.zero_stage": layout.replicas == 1,
    }
    return tuple(name for name, idle in names.items() if idle)


_UNSHOWN = ("layout.axis_order", "layout.cp_kind", "layout.dp", "layout.schedule")


def _priced(fact: JobFact, value: Any) -> JobFact:
    """A fact with the value that is priced."""
    return fact if fact.value == value else replace(fact, value=value)
