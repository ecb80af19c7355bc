"""Ask for the campaign of a plan: the run to its last token, in the world of a file or as published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from app.reports.answer import note
from planner.campaign.finish import finished, in_world, world_of
from planner.plan import Plan, PlanRequest
from topology.base.counts import parse_count

if TYPE_CHECKING:
    from app.reports.answer import Answer
    from planner.questions.flags import Flags


def run_to_its_end(
    plan: Plan, failures: Path | None, *, min_gpus: str | None = None, by_date: bool = False
) -> Plan:
    """The plan with its campaign.

    What a user's own file makes impossible is an error. Where published failures do, the plan of a step
    stands, and a note says why there is no more.
    """
    return finished(
        plan,
        failures,
        lambda error: note(f"no campaign: {error.what}; {error.cause}; {error.fix}"),
        min_gpus=_count(min_gpus),
        by_date=by_date,
    )


def in_stated_world(
    request: PlanRequest, failures: Path | None, *, min_gpus: str | None = None, by_date: bool = False
) -> PlanRequest:
    """The request with what was said of its failures, by which the search judges its limits."""
    return in_world(request, failures, min_gpus=_count(min_gpus), by_date=by_date)


def _count(min_gpus: str | None) -> int | None:
    """The GPUs of a flag, None where it was not given."""
    return None if min_gpus is None else parse_count(min_gpus, "--min-gpus")


def planned_phases(path: Path, flags: Flags, failures: Path | None, min_gpus: str | None = None) -> Answer:
    """The layouts of a run in phases, in the world of a file or as published."""
    from app.actions.plan import find_plan
    from app.reports.campaign.phases import phases_answer
    from costmodel.kernels.saved import calibration_for
    from planner.analysis.campaign.phases import run_of_phases
    from planner.questions.phases import read_phases
    from planner.search.given_layout import plan_of_layout

    phases, notes = read_phases(path, flags)
    for text in notes:
        note(text)
    cluster = phases[0].request.cluster
    world = world_of(cluster, failures, min_gpus=_count(min_gpus), by_date=flags.objective == "date")

    def given(request: PlanRequest) -> Plan | None:
        """The plan of a pinned layout, None where it breaks a rule."""
        plan = plan_of_layout(request, calibration_for(request.cluster))
        return plan if isinstance(plan, Plan) else None

    return phases_answer(run_of_phases(phases, world, find_plan, given))
