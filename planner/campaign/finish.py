"""A plan run to its last token: when it is finished, for how much, and how much of it is useful."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from costmodel.campaign.answer import campaign
from costmodel.campaign.checkpoint import checkpoint_state, saved_bytes
from costmodel.campaign.compose import Job
from costmodel.campaign.failures import default_model, read_failures
from costmodel.campaign.record import Campaign, FailureModel
from costmodel.campaign.worth import Price
from costmodel.models.spec import ModelSpec
from planner.plan import RENTS_WHAT_IT_USES, Plan, stack_of
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
    usual = default_model(plan.request.cluster.nodes[0].gpu)
    return replace(plan, campaign=campaign_of(plan, world or usual))


def finished(
    plan: Plan,
    failures: str | Path | None,
    told: Callable[[InputError], None] = lambda _: None,
    *,
    min_gpus: int | None = None,
    by_date: bool = False,
) -> Plan:
    """The plan with its campaign; as it is where published failures make none possible.

    Args:
        plan: A plan whose job says how many tokens.
        failures: A file of the user's own; what it makes impossible is an error.
        told: Hears why there is no campaign.
        min_gpus: Fewest GPUs the run goes on with where no spare is left; None for that of the file.
        by_date: Whether spares make the earliest finish, in place of the cheapest.
    """
    job_of(plan)  # refuses a plan without tokens, before its file is looked at
    world = world_of(plan.request.cluster, failures, min_gpus=min_gpus, by_date=by_date)
    try:
        return with_campaign(plan, world)
    except InputError as impossible:
        if failures is not None or min_gpus is not None:
            raise
        told(impossible)
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


def token_bytes(model: ModelSpec, world: FailureModel | None) -> float:
    """Bytes of a token in a file of token numbers: two where the vocabulary allows, else four.

    Those of megatron-core; of a sample of a module nobody knows, and it is 0 unless it is said.
    """
    said = None if world is None else world.loader.bytes_per_token
    if said is None and model.module is not None:
        return 0.0
    return said or (2.0 if model.vocab_size < SHORT_VOCABULARY else 4.0)


def campaign_of(plan: Plan, world: FailureModel) -> Campaign:
    """When a plan is finished in a world; see `with_campaign`."""
    request, estimate = plan.request, plan.estimate
    cluster = request.cluster
    usd = mean_usd_per_gpu_hour(cluster, plan.layout.num_gpus)
    price = None
    if usd is not None:
        rented = 0 if request.objective in RENTS_WHAT_IT_USES else plan.idle_gpus
        idle = 1 + rented / plan.layout.num_gpus
        price = Price(usd_per_gpu_hour=usd * idle, gpus_per_node=cluster.num_gpus / cluster.num_nodes)
    stack = stack_of(request)
    least = min(saved_bytes(request.model, request.job, stack, stage) for stage in range(_SHARDED + 1))
    return campaign(
        job_of(plan, world),
        world,
        cluster,
        step_band_s=(estimate.lower_s, estimate.upper_s),
        least_bytes=least,
        price=price,
    )


def finish_gap(plan: Plan) -> float | None:
    """By what share of its time another layout, interval or number of spares could at most finish earlier.

    A run of any layout on as many GPUs takes steps · step / useful share. No step is below the certificate's
    bound, no useful share above that of `bound_useful_share`, so 1 − (bound/step)·(share/bound of shares).

    Returns:
        The share, in the mean; None without a campaign, where the closed form does not answer it, or where
        the plan is not the fastest: under another objective, or not proven.
    """
    found, proof = plan.campaign, plan.optimality
    if found is None or found.bound_useful_share is None or plan.request.objective != "step-time":
        return None
    if proof.status != "proven":
        return None
    step = proof.bound_s / plan.estimate.step_time_s
    return max(0.0, 1 - step * found.mean_useful_share / found.bound_useful_share)


def job_of(plan: Plan, world: FailureModel | None = None) -> Job:
    """What of a plan a campaign reads, in a world that may say how many bytes a token is."""
    request, layout = plan.request, plan.layout
    tokens = request.job.total_tokens
    if tokens is None:
        raise InputError(
            what="a campaign needs an end",
            cause="the plan was asked without tokens",
            fix="add for example --tokens 15T",
        )
    weights = [stage.weights_bytes for stage in plan.estimate.memory_by_stage]
    return Job(
        work_s=math.ceil(tokens / request.job.tokens_per_step) * plan.estimate.step_time_s,
        step_s=plan.estimate.step_time_s,
        gpus=layout.num_gpus,
        replica_gpus=layout.num_gpus // layout.dp,
        checkpoint=checkpoint_state(request.model, request.job, stack_of(request), layout, weights),
        loaded_bytes_per_s=request.job.tokens_per_step
        * token_bytes(request.model, world)
        / plan.estimate.step_time_s,
        power_w=layout.num_gpus * build(request.cluster).gpu.tdp_w,
    )
