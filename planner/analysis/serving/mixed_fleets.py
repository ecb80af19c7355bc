"""Prompts on GPUs of one kind, outputs on those of another: the cheapest such fleet for a rate.

GPUs of two kinds share no machine, so what a fleet costs is what its pools cost: the cheapest pair is the
cheapest prefill pool of a kind and the cheapest decode pool of another, of one precision. Pools start at the
cost that their bounds promise, and only where that is less than the best fleet known are they simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from costmodel.serving.bands import unmeasured_axes
from planner.serving.board import Board, learn_share
from planner.serving.capacity import after_warm_up, replicas_for
from planner.serving.fleet import FleetRun, run_pools
from planner.serving.fleet_choice import MOST_FLEET_GPUS, Selection, paid_for
from planner.serving.plan import FleetSummary, ServingRequest
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY
from topology.base.units import HOUR, MEGA

MOST_PAIRS = 4  # pairs that are simulated together, where the cheapest break a limit that their pools keep
INFINITE = float("inf")


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """The cheapest workers of one phase on one kind of GPU."""

    request: ServingRequest
    board: Board
    phase: str
    members: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """The options of its phase."""
        self.members = [i for i, option in enumerate(self.board.options) if option.phase == self.phase]

    @property
    def rate_per_s(self) -> float:
        """The rate that its workers share."""
        return self.request.job.request_rate_per_s or 0.0

    def usd(self, i: int, count: float) -> float:
        """Dollars an hour of so many workers of option i, and the spare ones."""
        gpus = self.board.options[i].num_gpus
        if count * gpus > MOST_FLEET_GPUS or self.request.usd_per_gpu_hour is None:
            return INFINITE
        machines, total = paid_for([(gpus, int(count) + self.request.spare)], self.request.machine_gpus)
        offer = self.request.offer
        return machines * offer.usd_per_hour if offer else total * self.request.usd_per_gpu_hour

    def promised(self) -> tuple[float, int]:
        """The least that any of its options may cost, and that option (-1: it has none)."""
        known = self.known()
        costs = [(self.usd(i, self._least(i)), i != known[1], i) for i in self.members]
        usd, _, i = min(costs, default=(INFINITE, True, -1))
        return usd, i

    def known(self) -> tuple[float, int]:
        """The least that any was seen to cost, and that option (-1: none was seen to serve)."""
        costs = [(self.usd(i, self.board.served[i]), i) for i in self.members if i in self.board.served]
        return min(costs, default=(INFINITE, -1))

    def settle(self) -> bool:
        """Simulate its cheapest option once more; whether what it costs is known already."""
        (usd, i), (known, _) = self.promised(), self.known()
        if i < 0 or known <= usd:
            return True
        most = None if known == INFINITE else self._most_useful(i, known)
        learn_share(self.board, i, self.rate_per_s, most=most)
        return False

    def _least(self, i: int) -> float:
        """Workers of option i that no fewer were ruled out of."""
        return replicas_for(self.rate_per_s, self.board.capacities_per_s[i])

    def _most_useful(self, i: int, known_usd: float) -> int:
        """Most workers of option i that cost less than what is known."""
        useful, useless = 0, MOST_FLEET_GPUS + 1
        while useless - useful > 1:
            middle = (useful + useless) // 2
            useful, useless = (middle, useless) if self.usd(i, middle) < known_usd else (useful, middle)
        return useful


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """A simulated fleet of two kinds, with the requests of its prefill and of its decode kind."""

    prompts: ServingRequest
    outputs: ServingRequest
    run: FleetRun
    proven: bool


def cheapest_mixed(boards: Sequence[tuple[ServingRequest, Board]], below_usd: float) -> Mixed | None:
    """The cheapest fleet of two kinds of GPU that costs less than `below_usd` an hour; None without one.

    Of equal precision, for the rate of the requests. It is proven unless capacities were cut, or a cheaper
    pair left out, because two pools together broke a limit that each kept.
    """
    proven = not any(board.lowered for _, board in boards)
    prompts = [WorkerPool(request=request, board=board, phase=PROMPT_ONLY) for request, board in boards]
    outputs = [WorkerPool(request=request, board=board, phase=OUTPUT_ONLY) for request, board in boards]
    pairs = [
        (prompts[a], outputs[b])
        for a, b in permutations(range(len(boards)), 2)
        if boards[a][0].weights == boards[b][0].weights and boards[a][0].gpu != boards[b][0].gpu
    ]
    for _ in range(MOST_PAIRS):
        pair = _cheapest(pairs, below_usd)
        if pair is None:
            return None
        run = _together(*pair)
        if run.kept:
            return Mixed(prompts=pair[0].request, outputs=pair[1].request, run=run, proven=proven)
        pairs.remove(pair)
        proven = False
    return None


def _cheapest(
    pairs: Sequence[tuple[WorkerPool, WorkerPool]], below_usd: float
) -> tuple[WorkerPool, WorkerPool] | None:
    """The pair that costs least, simulated as far as that asks for."""
    while pairs:
        cost, first, second = min(
            ((a.promised()[0] + b.promised()[0], a, b) for a, b in pairs), key=lambda row: row[0]
        )
        if cost >= below_usd:
            return None
        if first.settle() and second.settle():
            return first, second
    return None


def _together(first: WorkerPool, second: WorkerPool) -> FleetRun:
    """Both pools under the rate."""
    (_, i), (_, j) = first.known(), second.known()
    prompts, outputs = first.board.options[i], second.board.options[j]
    workers = first.board.served[i], second.board.served[j]
    spare = first.request.spare
    gpus = (workers[0] + spare) * prompts.num_gpus + (workers[1] + spare) * outputs.num_gpus
    selection = Selection(counts={}, rate_per_s=first.rate_per_s, num_gpus=gpus, spare=spare)
    return run_pools(selection, (prompts, workers[0]), (outputs, workers[1]), first.rate_per_s)


def mixed_summary(mixed: Mixed) -> FleetSummary:
    """One line on a fleet of two kinds; no deployment is written for it, so it is not proposed."""
    prompts, outputs, run = mixed.prompts, mixed.outputs, mixed.run
    if run.prefill is None:
        raise ValueError("a mixed fleet has two pools")
    first = _dollars(prompts, run.prefill.num_gpus, run.prefill_workers)
    second = _dollars(outputs, run.decode.num_gpus, run.decode_workers)
    job, steady = prompts.job, after_warm_up(run.simulation)
    queries = run.request_rate_per_s * HOUR
    percentile = job.percentile
    tokens = (job.input_tokens + job.output_tokens) / MEGA
    layouts = run.prefill.deployment.layout, run.decode.deployment.layout
    unmeasured = dict.fromkeys(name for layout in layouts for name in unmeasured_axes(layout))
    return FleetSummary(
        gpu=f"{prompts.gpu} + {outputs.gpu}",
        weights=prompts.weights[0],
        label=f"prefill {run.prefill_workers + prompts.spare} × {layouts[0].label}, "
        f"decode {run.decode_workers + outputs.spare} × {layouts[1].label}",
        num_gpus=run.num_gpus,
        usd_per_hour=first + second,
        usd_per_million_output_tokens=second / queries / job.output_tokens * MEGA,
        mode="mixed",
        request_rate_per_s=run.request_rate_per_s,
        usd_per_million_tokens=(first + second) / queries / tokens,
        ttft_s=float(np.percentile(run.simulation.ttft_s[steady], percentile)),
        tpot_s=float(np.nanpercentile(run.simulation.tpot_s[steady], percentile))
        if job.output_tokens > 1
        else None,
        not_measured=(*unmeasured, "two kinds of GPU"),
        certainty="proven" if mixed.proven else "best-found",
        proposed=False,
    )


def _dollars(request: ServingRequest, each_gpus: int, workers: int) -> float:
    """Dollars an hour of a pool and its spare workers."""
    machines, gpus = paid_for([(each_gpus, workers + request.spare)], request.machine_gpus)
    offer, price = request.offer, request.usd_per_gpu_hour or 0.0
    return machines * offer.usd_per_hour if offer is not None else gpus * price
