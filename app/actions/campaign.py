"""Ask for the campaign of a plan: the run to its last token, in the world of a file or as published."""

from __future__ import annotations

from pathlib import Path

from app.reports.answer import note
from planner.campaign.finish import finished
from planner.plan import Plan


def run_to_its_end(plan: Plan, failures: Path | None) -> Plan:
    """The plan with its campaign.

    What a user's own file makes impossible is an error. Where published failures do, the plan of a step
    stands, and a note says why there is no more.
    """
    return finished(
        plan, failures, lambda error: note(f"no campaign: {error.what}; {error.cause}; {error.fix}")
    )
