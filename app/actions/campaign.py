"""Ask for the campaign of a plan: the run to its last token, in the world of a file or as published."""

from __future__ import annotations

from pathlib import Path

from app.reports.answer import note
from planner.campaign.finish import job_of, with_campaign
from planner.plan import Plan
from topology.base.errors import InputError


def run_to_its_end(plan: Plan, failures: Path | None) -> Plan:
    """The plan with its campaign.

    What a user's own file makes impossible is an error. Where published failures do, the plan of a step
    stands, and a note says why there is no more.
    """
    job_of(plan)  # refuses a plan without tokens, before its file is looked at
    if failures is not None:
        from costmodel.campaign.failures import read_failures

        return with_campaign(plan, read_failures(failures, plan.request.cluster.nodes[0].gpu))
    try:
        return with_campaign(plan)
    except InputError as impossible:
        note(f"no campaign: {impossible.what}; {impossible.cause}; {impossible.fix}")
        return plan
