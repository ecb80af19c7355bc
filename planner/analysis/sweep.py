"""The best plan at every point of a grid: GPUs, lengths, batches, models, stacks, precisions, optimizers."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_origin, get_type_hints

from costmodel.campaign.record import Campaign
from costmodel.layout import ParallelLayout, layout_record
from costmodel.parallel.axes import PARTS
from planner.campaign.finish import campaign_or_none
from planner.plan import Plan, PlanRequest
from planner.questions.batches import FLAG, RANGE, is_in_tokens, read_batch
from planner.questions.flags import Flags
from planner.questions.training import MOST_GPUS
from planner.search.infeasible import Infeasible, cause_of
from topology.base.counts import parse_counts
from topology.base.errors import InputError, shown
from topology.catalog import gpu_name
from topology.hardware.datasheets import default_gpu

MOST_POINTS = 1000
LISTED = frozenset(
    f"layout.{name}"
    for name, kind in get_type_hints(ParallelLayout).items()
    if kind is int or get_origin(kind) is Literal
) | {"job.optimizer"}
"""Settings that take one word or number each, of which a sweep takes several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a sweep: what was asked, and the plan or the reason there is none.

    `scaling_efficiency` is tokens/s/GPU over that of the fewest GPUs with a plan for the same question: all
    but the number of GPUs. 0 where there is no plan.
    """

    request: PlanRequest
    plan: Plan | None
    reason: str = ""
    scaling_efficiency: float = 0.0
    imposed_mfu: float | None = None

    @property
    def imposed_step_s(self) -> float | None:
        """Seconds of a step at the imposed MFU: its model FLOP over that share of the peak of all GPUs."""
        if self.plan is None or self.imposed_mfu is None:
            return None
        return self.plan.estimate.step_time_s * self.plan.estimate.mfu / self.imposed_mfu

    @property
    def run(self) -> Campaign | None:
        """The run to its last token, at the imposed MFU or as planned; None without an end or a plan."""
        if self.plan is None:
            return None
        step_s, planned = self.imposed_step_s, self.plan.estimate
        if step_s is None:
            return campaign_or_none(self.plan)
        slower = step_s / planned.step_time_s
        imposed = replace(
            planned, step_time_s=step_s, lower_s=planned.lower_s * slower, upper_s=planned.upper_s * slower
        )
        return campaign_or_none(replace(self.plan, estimate=imposed, campaign=None))

    @property
    def communication_share(self) -> float:
        """Share of the step in which a GPU waits for others: communication that nothing hides."""
        if self.plan is None:
            return 0.0
        estimate = self.plan.estimate
        waits = sum(getattr(estimate.time, f"{part}_s") for part in PARTS)
        return float(waits / estimate.step_time_s)

    def _finished(self) -> dict[str, Any]:
        """Median days and dollars of a run with an end, and the MFU they are at where it is imposed."""
        run = self.run
        if run is None:
            return {}
        finished: dict[str, Any] = {} if self.imposed_mfu is None else {"imposed_mfu": self.imposed_mfu}
        finished |= {"days": run.days.p50, "days_p10": run.days.p10, "days_p90": run.days.p90}
        finished |= {"usd": None if run.usd is None else run.usd.p50}
        return (
            finished if run.deadline_chance is None else {**finished, "deadline_chance": run.deadline_chance}
        )

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
            "optimizer": request.job.optimizer,
            **{
                f"pinned_{name}": value
                for name, value in request.pins.items()
                if isinstance(value, int | str)
            },
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
            "out_of_memory_chance": estimate.out_of_memory_chance,
            "usd_per_billion_tokens": estimate.usd_per_billion_tokens,
            "search_time_s": self.plan.search_time_s,
            **self._finished(),
            **layout_record(self.plan.layout),
        }


def imposed(points: Iterable[Point], shares: Mapping[str, float]) -> Iterator[Point]:
    """The same points at the MFU that is imposed on their GPU; one under no name is that of all.

    Raises:
        InputError: a GPU has a share and no point.
    """
    known = tuple(points)
    names = {gpu_of(point.request) for point in known}
    for name in shares:
        if name and name not in names:
            raise InputError(
                what=f"no point of the sweep has {shown(name)}",
                cause=f"there are {', '.join(sorted(names))}",
                fix="name its GPUs in --mfu, or one share for all",
            )
    for point in known:
        share = shares.get(gpu_of(point.request), shares.get(""))
        yield point if share is None else replace(point, imposed_mfu=share)


def mfu_by_gpu(text: str) -> Mapping[str, float]:
    """MFU by GPU as people write it.

    >>> mfu_by_gpu("45%"), mfu_by_gpu("a100-sxm-80gb=45%,a10=0.38")
    ({'': 0.45}, {'a100-sxm-80gb': 0.45, 'a10': 0.38})

    Raises:
        InputError: a share is none.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, share = part.rpartition("=")
        try:
            value = float(share.strip().removesuffix("%")) / (100 if share.strip().endswith("%") else 1)
        except ValueError:
            value = math.nan
        gpu = gpu_name(name.strip()) if equals else ""
        if not 0 < value <= 1 or gpu in shares:
            raise InputError(
                what=f"--mfu {shown(text)} is no MFU",
                cause=f"{shown(part)} is no share above 0 and at most 100 %, or a GPU is named twice",
                fix="write --mfu 45%, or --mfu a100-sxm-80gb=45%,a10=38%",
            )
        shares[gpu] = value
    return shares


def points_of(flags: Flags) -> tuple[Flags, ...]:
    """Every combination of the values that were listed, as single requests."""
    gpus = _listed(flags.gpus, "--gpus", largest=MOST_GPUS)
    lengths = _listed(flags.sequence_length, "--sequence-length")
    batches = _batches(flags.global_batch_size)
    named = [_named(text) for text in (flags.model, flags.stack, flags.precision, flags.gpu)]
    grid: list[tuple[Any, ...]] = list(itertools.product(*named, gpus, lengths, batches, _settings(flags)))
    if len(grid) > MOST_POINTS:
        raise InputError(
            what=f"a sweep of {len(grid):,} points is too long", cause=f"at most {MOST_POINTS:,} are planned",
            fix="list fewer values",
        )  # fmt: skip
    return tuple(
        replace(
            flags, model=model, stack=stack, precision=precision, gpu=kind, gpus=count,
            sequence_length=length, global_batch_size=batch, settings=settings,
        )
        for model, stack, precision, kind, count, length, batch, settings in grid
    )  # fmt: skip


def _named(text: str | None) -> Sequence[str | None]:
    """Names of one flag, separated by commas; a file may have commas in its own.

    >>> _named("bf16,fp8"), _named(None)
    (('bf16', 'fp8'), (None,))
    """
    if not text or os.path.exists(text):  # noqa: PTH110 - Path.exists raises on a name that is too long
        return (text,)
    return tuple(name.strip() for name in text.split(","))


def _settings(flags: Flags) -> Sequence[tuple[str, ...]]:
    """Every combination of the values of settings: ``job.optimizer=adamw,muon``, ``layout.tp=1,2``."""
    each = []
    for setting in flags.settings:
        field, equals, values = setting.partition("=")
        name = field if "." in field else f"layout.{field}"
        listed = values.split(",") if equals and name in LISTED else [values]
        each.append([f"{field}{equals}{value.strip()}" for value in listed])
    return tuple(itertools.product(*each))


def _batches(text: str | None) -> Sequence[str | None]:
    """Batches of a sweep, as text: what is counted in tokens is sequences at the length of each point.

    >>> _batches("256,512"), _batches("2Mtok..4Mtok,8Mtok")
    (('256', '512'), ('2097152tok', '4194304tok', '8Mtok'))
    """
    if text is None or not any(is_in_tokens(part) or part.strip()[-1:] in "mM" for part in text.split(",")):
        return _listed(text, FLAG)
    batches: list[str] = []
    for part in text.split(","):
        ends = part.split(RANGE)
        if len(ends) > 1 and all(map(is_in_tokens, ends)):
            counts = (read_batch(end, 1) for end in ends)
            batches += [f"{count}tok" for count in parse_counts(RANGE.join(map(str, counts)), FLAG)]
        else:
            batches.append(part.strip())
    return tuple(batches)


def _listed(text: str | None, flag: str, *, largest: int = 10**18) -> Sequence[str | None]:
    """Values of one flag, as text; one None when it was not given."""
    if text is None:
        return (None,)
    return tuple(str(count) for count in parse_counts(text, flag, largest=largest))


def run_points(
    requests: Iterable[PlanRequest], planner: Callable[[PlanRequest], Plan | Infeasible]
) -> Iterator[Point]:
    """Plan every request, one after the other; one without a plan says why and does not stop the sweep."""
    for request in requests:
        answer = planner(request)
        if isinstance(answer, Infeasible):
            yield Point(request=request, plan=None, reason=cause_of(answer))
        else:
            yield Point(request=request, plan=answer)


def with_efficiency(points: Iterable[Point]) -> tuple[Point, ...]:
    """The same points, each beside the fewest GPUs that answer the same question."""
    known = tuple(points)
    first: dict[tuple[object, ...], tuple[int, float]] = {}
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


def _question(point: Point) -> tuple[object, ...]:
    """What points have in common that differ in GPUs alone."""
    request, job = point.request, point.request.job
    pins = tuple(sorted((name, str(value)) for name, value in request.pins.items()))
    asked = (job.sequence_length, job.global_batch_size, job.precision, job.optimizer, pins)
    return gpu_of(request), request.model.name, request.stack, *asked


def gpu_of(request: PlanRequest) -> str:
    """Kinds of GPU in the cluster."""
    return "+".join(dict.fromkeys(node.gpu for node in request.cluster.nodes)) or default_gpu()
