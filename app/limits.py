"""Whether a run keeps its deadline and its budget, in words: computed from chances, failures included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.quantities import format_duration, format_sum
from costmodel.campaign.record import Campaign, Limit, limit_word
from topology.base.units import DAY, format_chance

if TYPE_CHECKING:
    from planner.analysis.capacity import Limits
    from planner.plan import Plan

BROKEN: Mapping[Limit, str] = {"deadline": "late", "budget": "over budget"}
"""A limit that is missed, short enough for a field of a map."""


def kept_words(chance: float) -> str:
    """Whether a limit is kept, with the chance of it: *kept* alone stands for nine times in ten.

    >>> kept_words(0.95), kept_words(0.62), kept_words(0.04)
    ('kept (chance 95.0 %)', 'kept with a chance of 62 %', 'missed (kept with a chance of 4.0 %)')
    """
    words = format_chance(chance)
    if limit_word(chance) == "kept":
        return f"kept (chance {words})"
    uncertain = f"kept with a chance of {words}"
    return uncertain if limit_word(chance) == "uncertain" else f"missed ({uncertain})"


def limits_words(run: Campaign, limits: Limits) -> tuple[str, ...]:
    """A sentence for each limit of a run: its chance, and what nine runs in ten stay below."""
    result = []
    for name, chance in limits.chances(run).items():
        band, limit = _band_and_limit(run, limits, name)
        result.append(f"{name.capitalize()} of {limit}: {kept_words(chance)}; nine runs in ten take {band}.")
    return tuple(result)


def brief_words(run: Campaign | None, limits: Limits) -> tuple[str, ...]:
    """What of its limits a run misses or may miss, in a few words each; nothing of those it keeps."""
    if run is None:
        return ()
    result = []
    for name, chance in limits.chances(run).items():
        match limit_word(chance):
            case "missed":
                result.append(BROKEN[name])
            case "uncertain":
                result.append(f"{name} {format_chance(chance)}")
    return tuple(result)


def missed_words(plan: Plan) -> tuple[str, ...]:
    """A sentence for each limit that the run of a plan misses, with what would keep it."""
    run, job = plan.campaign, plan.request.job
    if run is None:
        return ()
    from planner.analysis.capacity import Limits

    limits = Limits(deadline_s=job.deadline_s, budget_usd=job.budget_usd)
    remedies: Mapping[Limit, str] = {"deadline": _later(plan, run), "budget": _dearer(run)}
    return tuple(
        f"{name} of {limit} is missed: nine runs in ten take {band}; {remedies[name]}"
        for name in run.missed
        for band, limit in [_band_and_limit(run, limits, name)]
    )


def _later(plan: Plan, run: Campaign) -> str:
    """What keeps a deadline: a later one, and more GPUs where a step has a sequence for each.

    GPUs are those that finish in time at the speed of these; a range ends beyond, as more are each slower.
    """
    from planner.questions.gpu_ranges import end_of_gpus

    job, kept = plan.request.job, f"--deadline {math.ceil(run.days.p90)}d is kept as it is"
    used = plan.request.cluster.num_gpus - plan.idle_gpus
    needed = used * run.days.p90 * DAY / (job.deadline_s or math.inf)
    if needed > job.global_batch_size:
        return f"{kept}; at this speed it takes {math.ceil(needed):,} GPUs, more than a step has sequences"
    end = end_of_gpus(BEYOND * needed)
    return f"{kept}; --objective gpus --gpus ..{end} names the fewest GPUs that keep it"


def _dearer(run: Campaign) -> str:
    """What keeps a budget."""
    kept = f"--budget {math.ceil(run.usd.p90)} is kept as it is; " if run.usd else ""
    return f"{kept}--objective cost names the cheapest layout"


BEYOND = 1.5
"""Ends of a range over what is needed at the same speed."""


def _band_and_limit(run: Campaign, limits: Limits, name: Limit) -> tuple[str, str]:
    """What nine runs in ten stay below, and the limit, in words."""
    if name == "deadline" or run.usd is None:
        return f"up to {format_duration(run.days.p90 * DAY)}", format_duration(limits.deadline_s or 0.0)
    return f"up to {format_sum(run.usd.p90)}", format_sum(limits.budget_usd or 0.0)
