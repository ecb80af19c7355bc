"""One fleet for several services: each has replicas of its own, and machines are shared.

Two answers contend. *Apart*: every service has the cheapest fleet of whole machines that its own question
finds, on any kind of GPU. *Together*: all services on one kind of machine, each on the fewest GPUs, and
replicas of several share machines; services of one model, alike but for their loads and limits, may share
replicas too, which then keep the tightest of their limits for every request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.job import ServingJob
from costmodel.serving.simulation.load import Lengths, Load, open_load
from planner.analysis.serving.fleets import find_fleet
from planner.analysis.serving.processes import Each
from planner.questions.serving.services import Service
from planner.questions.serving.understand import Asked
from planner.serving.fleet_choice import machines_for
from planner.serving.plan import ServingPlan, ServingRequest
from topology.base.errors import NoFeasiblePlanError
from topology.hardware.offers import Offer

MIXED_REQUESTS = 4000
"""Requests of a load of several services together."""
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTogether:
    """Services that share replicas, by name, and the fleet of them; one service in most cases."""

    names: tuple[str, ...]
    plan: ServingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFleet:
    """The fleets of all services and what they cost together.

    `offer` is the machine that they share, None where every fleet has machines, or GPUs, of its own.
    `apart_usd_per_hour` is the bill of the cheapest fleets apart, None where one service has none.
    """

    fleets: tuple[ServedTogether, ...]
    offer: Offer | None
    machines: int
    num_gpus: int
    usd_per_hour: float | None
    apart_usd_per_hour: float | None

    @property
    def idle_gpus(self) -> int:
        """GPUs of the shared machines that no replica uses."""
        return self.machines * self.offer.gpus - self.num_gpus if self.offer is not None else 0


def find_shared(services: Sequence[Service], *, tell: Tell = lambda _: None, each: Each = map) -> SharedFleet:
    """The cheapest fleet of all services.

    Raises:
        NoFeasiblePlanError: a service that no kind of GPU serves within its limits.
    """
    apart: list[ServedTogether] = []
    for service in services:
        tell(f"the fleet of {service.name} alone")
        apart.append(ServedTogether(names=(service.name,), plan=find_fleet(service.asked, each=each)))
    alone = _alone(apart)
    shared = []
    for offer in _offers(services):
        tell(f"all of them on {offer.machine}")
        fleets = _on(services, offer, each)
        if fleets is not None:
            shared.append(_sharing(fleets, offer, alone.usd_per_hour))
    return min((alone, *shared), key=_bill)


def _bill(fleet: SharedFleet) -> tuple[float, int, bool]:
    """What is minimised; of equals the one that shares nothing."""
    dollars = float("inf") if fleet.usd_per_hour is None else fleet.usd_per_hour
    return dollars, fleet.num_gpus, fleet.offer is not None


def _alone(fleets: Sequence[ServedTogether]) -> SharedFleet:
    """Every service with machines of its own."""
    bills = [fleet.plan.estimate.usd_per_hour for fleet in fleets]
    known = [bill for bill in bills if bill is not None]
    total = sum(known) if len(known) == len(bills) else None
    return SharedFleet(
        fleets=tuple(fleets),
        offer=None,
        machines=sum(fleet.plan.rental.machines for fleet in fleets if fleet.plan.rental is not None),
        num_gpus=sum(fleet.plan.num_gpus for fleet in fleets),
        usd_per_hour=total,
        apart_usd_per_hour=total,
    )


def _sharing(fleets: Sequence[ServedTogether], offer: Offer, apart: float | None) -> SharedFleet:
    """All replicas on as few machines as hold them, the largest placed first."""
    workers = [(pool.layout.num_gpus, pool.workers) for fleet in fleets for _, pool in fleet.plan.pools]
    machines = machines_for(workers, offer.gpus)
    return SharedFleet(
        fleets=tuple(fleets),
        offer=offer,
        machines=machines,
        num_gpus=sum(fleet.plan.num_gpus for fleet in fleets),
        usd_per_hour=machines * offer.usd_per_hour,
        apart_usd_per_hour=apart,
    )


def _offers(services: Sequence[Service]) -> list[Offer]:
    """Machines that all services may be on."""
    of_each = [[request.offer for request, _ in service.asked.requests] for service in services]
    first = [offer for offer in dict.fromkeys(of_each[0]) if offer is not None]
    return [offer for offer in first if all(offer in offers for offers in of_each)]


def _on(services: Sequence[Service], offer: Offer, each: Each) -> list[ServedTogether] | None:
    """Fleets of the fewest GPUs on one kind of machine, replicas shared where that takes fewer still."""
    served_togethers: list[ServedTogether] = []
    for group in _alike(services):
        apart = [_fewest(service.asked, offer, each) for service in group]
        plans = [
            ServedTogether(names=(service.name,), plan=plan)
            for service, plan in zip(group, apart, strict=True)
            if plan
        ]
        together = _fewest(_merged(group, offer), offer, each) if len(group) > 1 else None
        complete = len(plans) == len(group)
        if together is not None and (not complete or together.num_gpus < sum(p.plan.num_gpus for p in plans)):
            plans = [ServedTogether(names=tuple(service.name for service in group), plan=together)]
        elif not complete:
            return None
        served_togethers += plans
    return served_togethers


def _alike(services: Iterable[Service]) -> list[list[Service]]:
    """Services of one model, engine, precision and adapters, which could share replicas."""
    groups: dict[object, list[Service]] = {}
    for service in services:
        request, job = service.asked.requests[0][0], service.asked.requests[0][0].job
        drafts = (job.draft_tokens, job.acceptance, job.drafter)
        weights = tuple(request.weights for request, _ in service.asked.requests)
        pins = tuple(sorted((request.pins or {}).items()))
        kept = (job.adapter, job.adapters, job.kv_dtype, job.memory_fraction, job.cached_share)
        key = (request.model.name, request.engine, request.modes, weights, pins, drafts, kept)
        groups.setdefault(key, []).append(service)
    return list(groups.values())


def _fewest(asked: Asked, offer: Offer, each: Each) -> ServingPlan | None:
    """The fleet of the fewest GPUs, counted one by one, of one kind of machine; None where there is none."""
    requests = [(_counted(request), fabric) for request, fabric in asked.requests if request.offer == offer]
    try:
        return find_fleet(replace(asked, requests=tuple(requests)), each=each)
    except NoFeasiblePlanError:
        return None


def _counted(request: ServingRequest) -> ServingRequest:
    """The request with GPUs that are had one by one, at the price of a GPU of its machine."""
    return replace(request, offer=None, objective="gpus")


def _merged(group: Sequence[Service], offer: Offer) -> Asked:
    """One question of several services: all their requests as they arrive, the tightest of their limits."""
    asked = group[0].asked
    jobs = [service.asked.requests[0][0].job for service in group]
    load = _mixed(jobs)
    inputs, outputs = load.input_tokens, load.output_tokens
    job = replace(
        jobs[0],
        input_tokens=round(float(inputs.mean())),
        output_tokens=round(float(outputs.mean())),
        input_tokens_p99=round(float(np.percentile(inputs, 99))),
        output_tokens_p99=round(float(np.percentile(outputs, 99))),
        request_rate_per_s=sum(job.request_rate_per_s or 0.0 for job in jobs),
        ttft_s=_tightest(job.ttft_s for job in jobs),
        tpot_s=_tightest(job.tpot_s for job in jobs),
        end_to_end_s=_tightest(job.end_to_end_s for job in jobs),
        percentile=max(job.percentile for job in jobs),
    )
    requests = tuple(
        (replace(request, job=replace(job, weight_precision=request.job.weight_precision)), fabric)
        for request, fabric in asked.requests
        if request.offer == offer
    )
    return replace(asked, requests=requests, trace=load)


def _tightest(limits: Iterable[float | None]) -> float | None:
    """The smallest limit; None where none has one."""
    return min((limit for limit in limits if limit is not None), default=None)


def _mixed(jobs: Sequence[ServingJob]) -> Load:
    """The requests of all jobs over one stretch of time, in order of arrival."""
    whole = sum(job.request_rate_per_s or 0.0 for job in jobs)
    loads = [
        open_load(
            rate_per_s=job.request_rate_per_s or 0.0,
            count=max(round(MIXED_REQUESTS * (job.request_rate_per_s or 0.0) / whole), 1),
            inputs=Lengths(mean=job.input_tokens, p99=job.input_tokens_p99),
            outputs=Lengths(mean=job.output_tokens, p99=job.output_tokens_p99),
            cached_share=job.cached_share,
            burstiness=job.burstiness,
            seed=seed,
        )
        for seed, job in enumerate(jobs)
    ]
    order = np.argsort(np.concatenate([load.arrival_s for load in loads]), kind="stable")

    def joined(name: str) -> NDArray[Any]:
        return np.asarray(np.concatenate([getattr(load, name) for load in loads])[order])

    return Load(
        input_tokens=joined("input_tokens"),
        output_tokens=joined("output_tokens"),
        cached_tokens=joined("cached_tokens"),
        arrival_s=joined("arrival_s"),
    )
