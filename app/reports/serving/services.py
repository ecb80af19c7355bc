"""How one fleet of several services is told: each with its replicas, and the machines that they share."""

from __future__ import annotations

import json

from app.quantities import format_usd
from app.reports.answer import Answer, Facts, Table
from app.reports.serving.plan import record
from planner.analysis.serving.services import ServedTogether, SharedFleet
from planner.serving.plan import serving_to_json
from topology.base.units import format_seconds, three_digits

_HEADS = (
    "service", "model", "kind", "replicas", "GPUs", "requests/s", "first token", "each token", "proof",
)  # fmt: skip


def services_answer(fleet: SharedFleet) -> Answer:
    """Everything `plan serve --services` says."""
    return Answer(
        headline=_headline(fleet),
        sections=(_table(fleet), _bill(fleet)),
        document=lambda: _document(fleet),
        records=tuple(
            {"services": " + ".join(served_together.names), **record(served_together.plan)}
            for served_together in fleet.fleets
        ),
    )


def _headline(fleet: SharedFleet) -> str:
    """The fleet in one line."""
    count = sum(len(served_together.names) for served_together in fleet.fleets)
    where = f"{fleet.machines} × {fleet.offer.machine}" if fleet.offer else f"{fleet.num_gpus} GPUs"
    shared = ", shared" if fleet.offer else ", each with its own"
    return f"{count} services on {where}{shared}: {_dollars(fleet.usd_per_hour)}"


def _dollars(usd_per_hour: float | None) -> str:
    """A bill of an hour."""
    return "no price known" if usd_per_hour is None else f"{format_usd(usd_per_hour)} an hour"


def _table(fleet: SharedFleet) -> Table:
    """A line for each fleet."""
    return Table(
        title="Services",
        columns=_HEADS,
        rows=tuple(_row(served_together) for served_together in fleet.fleets),
        align="llllrrrrl",
        note="of services that share replicas every request keeps the tightest of their limits",
        wraps=(0, 3),
    )


def _row(served_together: ServedTogether) -> tuple[str, ...]:
    """One fleet."""
    plan, job = served_together.plan, served_together.plan.request.job
    return (
        " + ".join(served_together.names),
        plan.request.model.name,
        f"{plan.request.gpu} {plan.weights}",
        plan.label,
        str(plan.num_gpus),
        three_digits(plan.estimate.request_rate_per_s),
        _latency(served_together, "ttft", plan.estimate.ttft.p99_s),
        _latency(served_together, "tpot", plan.estimate.tpot.p99_s) if job.output_tokens > 1 else "–",
        plan.certainty,
    )


def _latency(served_together: ServedTogether, name: str, p99_s: float) -> str:
    """A latency beside its limit, at the percentile that was asked for."""
    check = served_together.plan.estimate.limits.get(name)
    if check is None:
        return f"{format_seconds(p99_s)} p99"
    at = f"p{served_together.plan.request.job.percentile:g}"
    return f"{format_seconds(check.predicted_s)} of {format_seconds(check.limit_s)} {at}"


def _bill(fleet: SharedFleet) -> Facts:
    """Machines, idle GPUs and dollars, and what the services cost apart."""
    pairs = []
    if fleet.offer is not None:
        offer = fleet.offer
        price = f"{format_usd(offer.usd_per_hour)} an hour, {offer.as_of}"
        each = f"{offer.machine} ({offer.provider}) at {price}"
        idle = f"{fleet.idle_gpus} of {fleet.machines * offer.gpus} GPUs idle"
        pairs.append(("shared", f"{fleet.machines} × {each}; {idle}"))
    else:
        pairs += [
            ("rented", f"{' + '.join(served_together.names)}: {_machines_alone(served_together)}")
            for served_together in fleet.fleets
        ]
    pairs.append(("cost", _dollars(fleet.usd_per_hour)))
    if fleet.offer is not None and fleet.apart_usd_per_hour is not None:
        apart = _dollars(fleet.apart_usd_per_hour)
        pairs.append(("apart", f"{apart}, every service with machines of its own"))
    return Facts(title="Machines", pairs=tuple(pairs))


def _machines_alone(served_together: ServedTogether) -> str:
    """The machines, or GPUs, of one fleet."""
    rental, dollars = served_together.plan.rental, _dollars(served_together.plan.estimate.usd_per_hour)
    if rental is None:
        return f"{served_together.plan.num_gpus} GPUs, {dollars}"
    return f"{rental.machines} × {rental.offer.machine} ({rental.offer.provider}), {dollars}"


def _document(fleet: SharedFleet) -> str:
    """The same as one JSON document: every plan whole, as `plan serve --json` writes it."""
    offer = fleet.offer
    document = {
        "machine": None if offer is None else offer.machine,
        "provider": None if offer is None else offer.provider,
        "machines": fleet.machines,
        "num_gpus": fleet.num_gpus,
        "idle_gpus": fleet.idle_gpus,
        "usd_per_hour": fleet.usd_per_hour,
        "apart_usd_per_hour": fleet.apart_usd_per_hour,
        "services": [
            {"names": list(served_together.names), "plan": json.loads(serving_to_json(served_together.plan))}
            for served_together in fleet.fleets
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False)
