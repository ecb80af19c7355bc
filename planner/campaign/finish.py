"""A plan run to its last token: when it is finished, for how much, and how much of it is useful."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from costmodel.campaign.answer import campaign
from costmodel.campaign.checkpoint import checkpoint_bytes, checkpoint_state
from costmodel.campaign.compose import CampaignJob
from costmodel.campaign.failures import default_model, read_failures
from costmodel.campaign.record import Campaign, FailureModel
from costmodel.campaign.worth import RunPrice
from costmodel.case import Workload
from costmodel.estimate import Estimate
from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from planner.campaign.rental import idle_nodes_of, paid_usd_per_hour
from planner.plan import Plan, PlanRequest, stack_of, steps_of_request
from topology.base.errors import InputError
from topology.builders import build
from topology.pools.rates import mean_usd_per_gpu_hour
from topology.spec import ClusterSpec

SHORT_VOCABULARY = 65_500
"""Below it megatron-core writes token numbers in 16 bits (`DType.optimal_dtype` of its indexed data sets)."""
_SHARDED = 3
"""The ZeRO stage that saves fewest bytes of a parameter."""


def with_campaign(plan: Plan, world: FailureModel | None = None) -> Plan:
    """The plan with its campaign.

    Args:
        plan: A plan whose job says how many tokens.
        world: What fails; by default what is published of such GPUs.

    Raises:
        InputError: no tokens were asked for, or the run makes no headway.
    """
    return replace(plan, campaign=campaign_of(plan, world or world_of_request(plan.request)))


def finished(
    plan: Plan,
    failures: str | Path | None,
    value: Callable[[InputError], None] = lambda _: None,
    *,
    min_gpus: int | None = None,
    by_date: bool = False,
) -> Plan:
    """The plan with its campaign; as it is where published failures make none possible.

    Args:
        plan: A plan whose job says how many tokens.
        failures: A file of the user's own; what it makes impossible is an error.
        value: Hears why there is no campaign.
        min_gpus: Fewest GPUs the run goes on with where no spare is left; None for that of the file.
        by_date: Whether spares make the earliest finish, in place of the cheapest.
    """
    campaign_job_of(plan)  # refuses a plan without tokens, before its file is looked at
    world = world_of(plan.request.cluster, failures, min_gpus=min_gpus, by_date=by_date)
    try:
        return with_campaign(plan, world)
    except InputError as impossible:
        if failures is not None or min_gpus is not None:
            raise
        value(impossible)
        return plan


def world_of(
    cluster: ClusterSpec, failures: str | Path | None, *, min_gpus: int | None = None, by_date: bool = False
) -> FailureModel:
    """What is assumed of a cluster's failures: a file's or the published, with what was said beside it.

    Raises:
        InputError: the file is none, or the run should go on with more GPUs than there are.
    """
    gpu = cluster.nodes[0].gpu
    world = default_model(gpu) if failures is None else read_failures(Path(failures), gpu)
    if min_gpus is not None:
        if not 0 < min_gpus <= cluster.num_gpus:
            raise InputError(
                what="a run cannot go on with so many GPUs",
                cause=f"--min-gpus {min_gpus:,}, of {cluster.num_gpus:,} GPUs",
                fix=f"give --min-gpus from 1 to {cluster.num_gpus:,}; without it the run waits for a node",
            )
        world = replace(world, min_gpus=min_gpus)
    return replace(world, spares_for="date") if by_date else world


def in_world(
    request: PlanRequest, failures: str | Path | None, *, min_gpus: int | None = None, by_date: bool = False
) -> PlanRequest:
    """The request with what is said of its failures, so that limits are judged by it; see `world_of`."""
    unsaid = failures is None and min_gpus is None and not by_date
    if unsaid or request.job.total_tokens is None:
        return request
    world = world_of(request.cluster, failures, min_gpus=min_gpus, by_date=by_date)
    return replace(request, failures=world)


def token_bytes(model: ModelSpec, world: FailureModel | None) -> float:
    """Bytes of a token in a file of token numbers: two where the vocabulary allows, else four.

    Those of megatron-core; of a sample of a module nobody knows, and it is 0 unless it is said.
    """
    bytes_per_token = None if world is None else world.loader.bytes_per_token
    if bytes_per_token is None and model.module is not None:
        return 0.0
    return bytes_per_token or (2.0 if model.vocab_size < SHORT_VOCABULARY else 4.0)


def campaign_of(plan: Plan, world: FailureModel) -> Campaign:
    """When a plan is finished in a world; see `with_campaign`."""
    estimate = plan.estimate
    return _campaign_of_run(
        campaign_job_of(plan, world),
        world,
        plan.request.cluster,
        step_band_s=(estimate.lower_s, estimate.upper_s),
        least_bytes=least_saved_bytes(plan.request),
        price=run_price_of(plan),
        deadline_s=plan.request.job.deadline_s,
        budget_usd=plan.request.job.budget_usd,
    )


_campaign_of_run = functools.lru_cache(maxsize=256)(campaign)
"""One answer to one run, however many tables, tiles and pictures ask for it."""


def campaign_or_none(plan: Plan) -> Campaign | None:
    """The run of a plan to its last token: what every number of days and dollars of it is read from.

    Returns:
        The plan's own campaign, else that in the world of its request; None without tokens, and where
        failures leave the run no headway.
    """
    if plan.campaign is not None or plan.request.job.total_tokens is None:
        return plan.campaign
    try:
        return campaign_of(plan, world_of_request(plan.request))
    except InputError:
        return None


def with_campaign_if_any(plan: Plan) -> Plan:
    """The plan with its campaign where it has one; see `campaign_or_none`."""
    return replace(plan, campaign=campaign_or_none(plan))


def world_of_request(request: PlanRequest) -> FailureModel:
    """What fails where a request runs: what it says, else what is published of such GPUs."""
    return request.failures or default_model(request.cluster.nodes[0].gpu)


def least_saved_bytes(request: PlanRequest) -> float:
    """Bytes of the smallest checkpoint of a request's model under any ZeRO stage."""
    stack = stack_of(request)
    return min(
        checkpoint_bytes(Workload(model=request.model, job=request.job, stack=stack), stage)
        for stage in range(_SHARDED + 1)
    )


def run_price_of(plan: Plan) -> RunPrice | None:
    """What is paid an hour: a spare costs as much as the mean node that works, nodes that idle beside.

    What the estimate of a step pays as well, whole nodes; None where no price is known.
    """
    cluster, hour = plan.request.cluster, paid_usd_per_hour(plan)
    usd = mean_usd_per_gpu_hour(cluster, plan.layout.num_gpus)
    if hour is None or usd is None:
        return None
    per_node = cluster.num_gpus / cluster.num_nodes
    working = (usd - cluster.idle_usd_per_hour / plan.layout.num_gpus) * per_node
    nodes = max(1, math.ceil(plan.layout.num_gpus / per_node))
    return RunPrice(
        usd_per_gpu_hour=working / per_node,
        gpus_per_node=per_node,
        idle_usd_per_hour=hour - working * nodes,
    )


def finish_gap(plan: Plan) -> float | None:
    """By what share of its time another layout, interval or number of spares could at most finish earlier.

    A run of any layout on as many GPUs takes steps · step / useful share. No step is below the certificate's
    bound, no useful share above that of `bound_useful_share`, so 1 − (bound/step)·(share/bound of shares).

    Returns:
        The share, in the mean; None without a campaign, where the closed form does not answer it, or where
        the plan is not the fastest: under another objective, or not proven.
    """
    result, proof = plan.campaign, plan.optimality
    if result is None or result.bound_useful_share is None or plan.request.objective != "step-time":
        return None
    if proof.status != "proven":
        return None
    step = proof.bound_s / plan.estimate.step_time_s
    return max(0.0, 1 - step * result.mean_useful_share / result.bound_useful_share)


def campaign_job_of(plan: Plan, world: FailureModel | None = None) -> CampaignJob:
    """What of a plan a campaign reads, in a world that may say how many bytes a token is."""
    return job_of_layout(plan.request, plan.layout, plan.estimate, world)


def job_of_layout(
    request: PlanRequest, layout: ParallelLayout, estimate: Estimate, world: FailureModel | None = None
) -> CampaignJob:
    """The same of a layout of a request, with what it was estimated to take."""
    if request.job.total_tokens is None:
        raise InputError(
            what="a campaign needs an end",
            cause="the plan was asked without tokens",
            fix="add for example --tokens 15T",
        )
    weights = [stage.weights_bytes for stage in estimate.memory_by_stage]
    step_s, tokens = estimate.step_time_s, request.job.tokens_per_step
    return CampaignJob(
        work_s=steps_of_request(request) * step_s,
        step_s=step_s,
        gpus=layout.num_gpus,
        replica_gpus=layout.num_gpus // layout.dp,
        checkpoint=checkpoint_state(
            Workload(model=request.model, job=request.job, stack=stack_of(request)), layout, weights
        ),
        loaded_bytes_per_s=tokens * token_bytes(request.model, world) / step_s,
        power_w=layout.num_gpus * build(request.cluster).gpu.tdp_w,
        idle_nodes=idle_nodes_of(request, layout),
    )
