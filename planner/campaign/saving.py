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
    return LEAST_KEPT + math.ceil(world.times.corruption_notice.seconds / _stored_every_s(campaign))


def save_interval_steps(plan: Plan) -> int | None:
    """Whole steps between two checkpoints on storage, nearest to its interval; None without a campaign."""
    if plan.campaign is None:
        return None
    return max(1, round(_stored_every_s(plan.campaign) / plan.estimate.step_time_s))


def nearby_interval_steps(plan: Plan) -> int | None:
    """Whole steps between two saves to the nearest place; None where checkpoints go to storage alone."""
    if plan.campaign is None or len(plan.campaign.kept) < 2:
        return None
    return max(1, round(plan.campaign.kept[0].every_s / plan.estimate.step_time_s))


def _stored_every_s(campaign: Campaign) -> float:
    """Seconds of work between two checkpoints on the place that outlives all: what engines' savers write."""
    return campaign.kept[-1].every_s if campaign.kept else campaign.checkpoint_interval_s


def saving_facts(plan: Plan) -> dict[str, Any]:
    """The same as fields that engines are told, None in all where there is no campaign."""
    campaign = plan.campaign
    return {
        "campaign.save_interval_steps": save_interval_steps(plan),
        "campaign.kept_checkpoints": None if campaign is None else kept_checkpoints(campaign),
        "campaign.asynchronous": None if campaign is None else campaign.failures.asynchronous,
    }
