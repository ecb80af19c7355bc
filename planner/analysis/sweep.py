"""The best plan at every point of a grid: GPU counts, GPU kinds, sequence lengths, batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costmodel.layout import layout_record
from costmodel.parallel.axes import PARTS
from planner.plan import Plan, PlanRequest
from planner.questions.flags import Flags
from planner.questions.training import DEFAULT_GPU, MOST_GPUS
from planner.search.infeasible import Infeasible, cause_of
from topology.base.counts import parse_counts
from topology.base.errors import InputError

MOST_POINTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep: what was asked, and the plan or the reason there is none.

    `scaling_efficiency` is tokens/s/GPU over that of the fewest GPUs with a plan for the same question: kind
    of GPU, sequence length, batch. 0 where there is no plan.
    """

    request: PlanRequest
    plan: Plan | None
    reason: str = ""
    scaling_efficiency: float = 0.0

    @property
    def communication_share(self) -> float:
        """Share of the step in which a GPU waits for others: communication that nothing hides."""
        if self.plan is None:
            return 0.0
        estimate = self.plan.estimate
        waits = sum(getattr(estimate.time, f"{part}_s") for part in PARTS)
        return float(waits / estimate.step_time_s)

    def row(self) -> dict[str, Any]:
        """One point as flat data; keys carry units."""
        request = self.request
        asked = {
            "model": request.model.name,
            "gpu": gpu_of(request),
            "num_gpus": request.cluster.num_gpus,
            "sequence_length": request.job.sequence_length,
            "global_batch_size": request.job.global_batch_size,
            "precision": request.job.precision,
            "stack": request.stack,
            "status": "infeasible" if self.plan is None else self.plan.optimality.status,
            "reason": self.reason,
        }
        if self.plan is None:
            return asked
        estimate = self.plan.estimate
        return {
            **asked,
            "step_time_s": estimate.step_time_s,
            "lower_s": estimate.lower_s,
            "upper_s": estimate.upper_s,
            "tokens_per_s": request.job.tokens_per_step / estimate.step_time_s,
            "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
            "mfu": estimate.mfu,
            "scaling_efficiency": self.scaling_efficiency,
            "communication_share": self.communication_share,
            "peak_memory_bytes": estimate.peak_memory_bytes,
            "usd_per_billion_tokens": estimate.usd_per_billion_tokens,
            "search_time_s": self.plan.search_time_s,
            **layout_record(self.plan.layout),
        }


def points_of(flags: Flags) -> tuple[Flags, ...]:
    """Every combination of the values that were listed, as single requests."""
    gpus = _listed(flags.gpus, "--gpus", largest=MOST_GPUS)
    lengths = _listed(flags.sequence_length, "--sequence-length", binary=True)
    batches = _listed(flags.global_batch_size, "--global-batch-size")
    kinds = [name.strip() for name in flags.gpu.split(",")] if flags.gpu else [flags.gpu]
    grid = list(itertools.product(kinds, gpus, lengths, batches))
    if len(grid) > MOST_POINTS:
        raise InputError(
            what=f"a sweep of {len(grid):,} points is too long", cause=f"at most {MOST_POINTS:,} are planned",
            fix="list fewer values",
        )  # fmt: skip
    return tuple(
        replace(flags, gpu=kind, gpus=count, sequence_length=length, global_batch_size=batch)
        for kind, count, length, batch in grid
    )


def _listed(
    text: str | None, flag: str, *, largest: int = 10**18, binary: bool = False
) -> Sequence[str | None]:
    """Values of one flag, as text; one None when it was not given."""
    if text is None:
        return (None,)
    return tuple(str(count) for count in parse_counts(text, flag, largest=largest, binary=binary))


def run_points(
    requests: Iterable[PlanRequest], planner: Callable[[PlanRequest], Plan | Infeasible]
) -> Iterator[Point]:
    """Plan every request, one after the other; one without a plan says why and does not stop the sweep."""
    for request in requests:
        found = planner(request)
        if isinstance(found, Infeasible):
            yield Point(request=request, plan=None, reason=cause_of(found))
        else:
            yield Point(request=request, plan=found)


def with_efficiency(points: Iterable[Point]) -> tuple[Point, ...]:
    """The same points, each beside the fewest GPUs that answer the same question."""
    known = tuple(points)
    first: dict[tuple[str, int, int], tuple[int, float]] = {}
    for point in known:
        if point.plan is not None:
            here = (point.request.cluster.num_gpus, point.plan.estimate.tokens_per_s_per_gpu)
            first[_question(point)] = min(here, first.get(_question(point), here))
    return tuple(
        point
        if point.plan is None
        else replace(
            point,
            scaling_efficiency=point.plan.estimate.tokens_per_s_per_gpu / first[_question(point)][1],
        )
        for point in known
    )


def _question(point: Point) -> tuple[str, int, int]:
    """What points have in common that differ in GPUs alone."""
    job = point.request.job
    return gpu_of(point.request), job.sequence_length, job.global_batch_size


def gpu_of(request: PlanRequest) -> str:
    """Kinds of GPU in the cluster."""
    return "+".join(dict.fromkeys(node.gpu for node in request.cluster.nodes)) or DEFAULT_GPU
