"""What of a campaign an engine is told: after how many steps it saves, and how many checkpoints it keeps."""

from __future__ import annotations

import math
from typing import Any

from costmodel.campaign.record import Campaign
from planner.plan import Plan

LEAST_KEPT = 2
"""One that is whole, while the next is written."""


def kept_checkpoints(campaign: Campaign) -> int:
    """Checkpoints to keep: where wrong numbers are counted, also those written before they are noticed."""
    world = campaign.failures
    if all(cause.noticed != "corruption" for cause in world.site.causes):
        return LEAST_KEPT
    return LEAST_KEPT + math.ceil(world.times.corruption_notice.seconds / campaign.checkpoint_interval_s)


def save_interval_steps(plan: Plan) -> int | None:
    """Whole steps between two checkpoints, the nearest to the interval of the campaign; None without one."""
    if plan.campaign is None:
        return None
    return max(1, round(plan.campaign.checkpoint_interval_s / plan.estimate.step_time_s))


def saving_facts(plan: Plan) -> dict[str, Any]:
    """The same as fields that engines are told, None in all where there is no campaign."""
    found = plan.campaign
    return {
        "campaign.save_interval_steps": save_interval_steps(plan),
        "campaign.kept_checkpoints": None if found is None else kept_checkpoints(found),
        "campaign.asynchronous": None if found is None else found.failures.asynchronous,
    }
