"""Why did the other plans lose? The parts of the step in which each of them takes longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.figures.step_time import PART_LABELS
from app.quantities import format_like
from costmodel.estimate import PART_NAMES
from costmodel.kernels.saved import calibration_for
from planner.explain import Share, runner_up
from planner.plan import Plan
from planner.problem import setting_of

MOST_PARTS = 2
LEAST_SHARE = 0.005
"""Parts that differ by less of the step do not decide."""


def why_lost(plan: Plan) -> tuple[str, ...]:
    """For every alternative, what it loses most on."""
    setting, cal = setting_of(plan.request), calibration_for(plan.request.cluster)
    rivals = (runner_up(replace(plan, alternatives=(other,)), setting, cal) for other in plan.alternatives)
    return tuple(lost_words(rival.lost_on, plan.estimate.step_time_s) for rival in rivals if rival)


def lost_words(lost: Sequence[Share], step_time_s: float) -> str:
    """The parts that cost most, in words.

    >>> lost_words([Share(part="pipeline bubble", seconds_s=2.0, share=0.2)], 10.0)
    'bubble +2.00 s'
    """
    label = {name: PART_LABELS[field.removesuffix("_s")] for field, name in PART_NAMES.items()}
    parts = [share for share in lost if share.share >= LEAST_SHARE][:MOST_PARTS]
    texts = (f"{label[share.part]} +{format_like(share.seconds_s, step_time_s)}" for share in parts)
    return ", ".join(texts) or "–"
