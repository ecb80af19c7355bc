"""A server as it was started, under a load: its plan, its latencies, and what it carries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.serving.simulation.disaggregated import sent_bytes_per_token
from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.simulator import Simulation, simulate, simulate_apart
from planner.audit.serving.kept_prefixes import through_prefills, with_kept_prefixes
from planner.audit.serving.pools import Pools
from planner.audit.serving.server import Server, planned_server
from planner.audit.serving.start import server_budget, server_deployment
from planner.audit.serving.transport import OverTcp, over_tcp
from planner.serving.answer import plan_of_fleet
from planner.serving.board import RESOLUTION
from planner.serving.capacity import bracket_per_s, broken_limits
from planner.serving.closed_pools import PrefillShort, short_of_prefill
from planner.serving.fleet import FleetRun, run_closed, run_closed_pools, run_fleet, run_pools
from planner.serving.fleet_choice import Selection
from planner.serving.headroom import bracket_of_fleet, broken_at
from planner.serving.plan import Headroom, Percentiles, ServingOptimality, ServingPlan, ServingRequest
from planner.serving.replica import (
    OUTPUT_ONLY,
    PROMPT_ONLY,
    WHOLE,
    Option,
    Rejected,
    rate_bound_per_s,
    started_option,
)
from topology.fabric.hierarchy import Hierarchy


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server under a load: its plan, means over its requests, and what it carries.

    Attributes:
        plan: As `plan serve` would have told it.
        ttft_s: Mean time to first token, seconds.
        tpot_s: Mean time per further output token, seconds.
        requests_per_s: In a closed loop what it answers, else the highest rate within the limits.
        broken: What breaks under the load, in words.
        prefill_short: What a prefill pool lacks whose prompts wait.
        simulation: Every request as it was simulated: one replica's, or all of a trace.
        prefill_per_s: Prompts a second that a prefill pool computes at most; None without one.
        over_tcp: What two pools do at the least and the most of TCP; None where caches travel otherwise.
    """

    plan: ServingPlan
    ttft_s: float
    tpot_s: float
    requests_per_s: float
    broken: str
    simulation: Simulation
    prefill_short: PrefillShort | None = None
    prefill_per_s: float | None = None
    over_tcp: tuple[OverTcp, OverTcp] | None = None
    cached_share: float = 0.0
    """Share of a trace's prompt tokens that prefix caches have."""

    @property
    def is_bound_by_tcp(self) -> bool:
        """Whether the least of TCP moves fewer caches than the load has."""
        return self.over_tcp is not None and self.over_tcp[0].busy >= 1


def running(
    cal: Calibration,
    server: Server,
    request: ServingRequest,
    hierarchy: Hierarchy,
    trace: Load | None = None,
) -> RunningServer | Rejected:
    """The server under the load of a request, or under a trace, or why it holds none of it."""
    option = _started(cal, server, request, hierarchy)
    if isinstance(option, Rejected):
        return option
    if trace is None:
        return _under_load(cal, server, request, hierarchy, option)
    met = with_kept_prefixes(option, server.replicas, trace, keeps=server.keeps_prefixes)
    now = _judged(cal, request, hierarchy, _under_trace(option, server.replicas, met), None)
    return replace(now, cached_share=_cached_share(met))


TENTH = 1.1
"""The 99th percentile of lengths over their mean, of requests that a client draws from 0.8 of a length on."""
CLUMPED = 2.0
"""Times the least first token of a closed loop that its mean is, from which prompts wait for each other."""


def first_token_spread(
    request: ServingRequest,
    now: RunningServer,
    run: Callable[[ServingRequest], RunningServer | Rejected],
) -> Percentiles | None:
    """First tokens of a closed loop whose requests differ in length by a tenth; None where it changes little.

    Requests of one length that begin together end together: their prompts queue in one clump for ever.

    Args:
        request: The load, of requests of one length.
        now: What the server, or two pools, do under it.
        run: What they do under another.
    """
    job, least_s = request.job, float(np.min(now.simulation.ttft_s))
    if (job.concurrency or 0) < 2 or job.input_tokens_p99 or job.output_tokens_p99:
        return None
    if now.ttft_s < CLUMPED * least_s:
        return None
    other = run(with_spread_lengths(request))
    if isinstance(other, Rejected):
        return None
    first = other.plan.estimate.ttft
    return first if CLUMPED * first.p50_s < now.plan.estimate.ttft.p50_s else None


def with_spread_lengths(request: ServingRequest) -> ServingRequest:
    """The same load of requests whose lengths differ by a tenth."""
    job = request.job
    spread = replace(
        job,
        input_tokens_p99=round(TENTH * job.input_tokens),
        output_tokens_p99=round(TENTH * job.output_tokens),
    )
    return replace(request, job=spread)


def covering(now: RunningServer, first: Percentiles) -> RunningServer:
    """A server whose band of first tokens covers those of another spread of lengths, too."""
    estimate = now.plan.estimate
    ttft = replace(
        estimate.ttft,
        lower_s=min(estimate.ttft.lower_s, first.lower_s),
        upper_s=max(estimate.ttft.upper_s, first.upper_s),
    )
    return replace(now, plan=replace(now.plan, estimate=replace(estimate, ttft=ttft)))


def _under_trace(option: Option, replicas: int, trace: Load) -> FleetRun:
    """All requests of a trace on replicas that take them by turns, however long they wait."""
    if replicas == 1:
        simulation = simulate(option.times, option.rules, trace)
    else:
        sent = trace if len(trace.replica) else replace(trace, replica=np.arange(len(trace)) % replicas)
        simulation = simulate_apart(option.times, option.rules, sent, replicas)
    served = len(trace) / simulation.makespan_s
    return FleetRun(
        selection=Selection(counts={0: replicas}, rate_per_s=served, num_gpus=replicas * option.num_gpus),
        decode=option,
        decode_workers=replicas,
        prefill=None,
        prefill_workers=0,
        simulation=simulation,
        request_rate_per_s=served,
        limits=broken_limits(option, simulation),
        finished=True,
    )


def _cached_share(trace: Load) -> float:
    """Share of the prompt tokens of a trace that need not be computed."""
    return float(trace.cached_tokens.sum() / trace.input_tokens.sum())


def running_pools(
    cal: Calibration,
    pools: Pools,
    request: ServingRequest,
    hierarchy: Hierarchy,
    trace: Load | None = None,
    *,
    prompts_of: tuple[ServingRequest, Hierarchy] | None = None,
) -> RunningServer | Rejected:
    """Two pools under the load of a request, or under a trace, or why one of them holds none of it.

    Args:
        cal: Kernel and collective tables.
        pools: As they were started.
        request: Their load, on the GPUs of decode.
        hierarchy: The links of these.
        trace: Requests that take the load's place.
        prompts_of: The same load on the GPUs of prefill, and their links, where these are of another kind.
    """
    prefill = _started(cal, pools.prefill, *(prompts_of or (request, hierarchy)), phase=PROMPT_ONLY)
    decode = _started(cal, pools.decode, request, hierarchy, phase=OUTPUT_ONLY)
    if isinstance(prefill, Rejected):
        return prefill
    if isinstance(decode, Rejected):
        return decode
    prompts, outputs = (prefill, pools.prefill.replicas), (decode, pools.decode.replicas)
    counts, rate = {0: prompts[1], 1: outputs[1]}, request.job.request_rate_per_s
    headroom = None
    if trace is not None:
        selection = Selection(counts=counts, rate_per_s=rate or 0.0, num_gpus=pools.num_gpus)
        met = through_prefills(trace, keeps=pools.prefill.keeps_prefixes)
        run = run_pools(selection, prompts, outputs, rate or 0.0, met)
        run = replace(run, request_rate_per_s=len(trace) / run.simulation.makespan_s, finished=True)
    elif rate is None:
        run = run_closed_pools(counts, prompts, outputs, request.job.concurrency or 1)
    else:
        selection = Selection(counts=counts, rate_per_s=rate, num_gpus=pools.num_gpus)
        run = run_pools(selection, prompts, outputs, rate)
        served, failed = bracket_of_fleet(run)
        headroom = Headroom(served_per_s=served, failed_per_s=failed, broken=run.broken)
    now = _judged(cal, request, hierarchy, run, headroom)
    if run.hits is not None:
        now = replace(now, cached_share=run.hits.rate)
    one_host = pools.is_of_one_kind and pools.num_gpus <= hierarchy.gpus_per_node
    if pools.transport == "rdma" or one_host:
        return now
    return replace(now, over_tcp=_over_tcp(pools, request, now, prefill, decode))


def under_load(
    cal: Calibration, plan: ServingPlan, request: ServingRequest, hierarchy: Hierarchy
) -> ServingPlan:
    """A plan under the open load of a request: what it carries is within the limits as they were asked.

    A plan is found for the most that its GPUs carry, under limits that are kept surely; what stands beside a
    server must be asked the same. A closed loop is the same load already.
    """
    if request.job.request_rate_per_s is None:
        return plan
    servers = {role: planned_server(plan, pool) for role, pool in plan.pools}
    if "" in servers:
        now = running(cal, servers[""], request, hierarchy)
    else:
        pools = Pools(prefill=servers["prefill"], decode=servers["decode"], transport="rdma")
        now = running_pools(cal, pools, request, hierarchy)
    return plan if isinstance(now, Rejected) else replace(plan, estimate=now.plan.estimate)


def _over_tcp(
    pools: Pools, request: ServingRequest, now: RunningServer, prefill: Option, decode: Option
) -> tuple[OverTcp, OverTcp]:
    """What pools do whose caches travel over TCP, at the least and the most that a GPU sends."""
    job, estimate = request.job, now.plan.estimate
    sent_bytes = job.input_tokens * sent_bytes_per_token(prefill.deployment, decode.deployment)
    slow, fast = (
        over_tcp(
            cache_s=sent_bytes / rate,
            links=min(pools.prefill.replicas, pools.decode.replicas),
            concurrency=job.concurrency,
            rate_per_s=job.request_rate_per_s,
            requests_per_s=now.requests_per_s,
            first_token_s=estimate.ttft.p50_s,
            outputs_s=(job.output_tokens - 1) * estimate.tpot.p50_s,
        )
        for rate in prefill.deployment.stack.tcp_bytes_per_s
    )
    return slow, fast


def _started(
    cal: Calibration, server: Server, request: ServingRequest, hierarchy: Hierarchy, *, phase: str = WHOLE
) -> Option | Rejected:
    """A replica of the server."""
    deployment = server_deployment(server, request, hierarchy)
    return started_option(
        cal,
        deployment,
        request.job,
        max_batch=server.max_batch,
        token_budget=server_budget(server, deployment) if deployment.stack.chunked else server.token_budget,
        balance_steps=server.balance_steps,
        gather_steps=server.gather_steps,
        phase=phase,
    )


def _under_load(
    cal: Calibration, server: Server, request: ServingRequest, hierarchy: Hierarchy, option: Option
) -> RunningServer:
    """Its plan, as it was started."""
    run, headroom = _run(server, request, option)
    return _judged(cal, request, hierarchy, run, headroom)


def _judged(
    cal: Calibration,
    request: ServingRequest,
    hierarchy: Hierarchy,
    run: FleetRun,
    headroom: Headroom | None,
) -> RunningServer:
    """What a simulated server or pair of pools does."""
    plan = plan_of_fleet(
        cal,
        request,
        hierarchy,
        run,
        optimality=_AS_GIVEN,
        runners_up=(),
        headroom=headroom,
        search_time_s=0.0,
    )
    return RunningServer(
        plan=plan,
        ttft_s=float(np.mean(run.simulation.ttft_s)),
        tpot_s=float(np.nanmean(run.simulation.tpot_s)),
        requests_per_s=plan.estimate.served_per_s,
        broken=broken_at(run),
        simulation=run.simulation,
        prefill_short=short_of_prefill(run),
        prefill_per_s=None if run.prefill is None else run.prefill_workers * rate_bound_per_s(run.prefill),
    )


_AS_GIVEN = ServingOptimality(
    status="best-found",
    bound=float("inf"),
    value=0.0,
    enumerated=1,
    pruned={},
    simulated=1,
    scope="one server",
)


def _run(server: Server, request: ServingRequest, option: Option) -> tuple[FleetRun, Headroom | None]:
    """Its simulation, and under an open load the rates between which it breaks."""
    rate, count = request.job.request_rate_per_s, server.replicas
    if rate is None:
        return run_closed(option, count, request.job.concurrency or 1, which=0), None
    selection = Selection(counts={0: count}, rate_per_s=rate, num_gpus=server.num_gpus)
    run = run_fleet([option], selection, rate)
    served, failed = bracket_per_s(option, most_per_s=1.01 * rate_bound_per_s(option), precision=RESOLUTION)
    return run, Headroom(served_per_s=count * served, failed_per_s=count * failed, broken=run.broken)
