"""What is known of a run before its layout is chosen: bounds for a search, and the verdict on one layout.

Failures strike GPUs and nodes, not layouts. So a number of GPUs says what a run on them costs beside its
steps (`Outlook.overhead`), and which step no layout on them may exceed (`Outlook.longest_step_s`). Whether
one layout keeps its deadline (`Outlook.keeps`) is what the campaign of its plan says.

Legend: ``G`` GPUs of a layout, ``Λ`` rate of interruptions, ``u`` useful share of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.campaign.answer import (
    RUNS,
    factors_of_runs,
    finish_days,
    highest_rate_factor,
    is_kept,
    runs_over_bands,
)
from costmodel.campaign.checkpoint import CheckpointState
from costmodel.campaign.closed_form import FEWEST_FAILURES, at_full_strength, expected
from costmodel.campaign.compose import CampaignJob, bare_course
from costmodel.campaign.course import Course
from costmodel.campaign.interval import with_best_spares, young_daly_s
from costmodel.campaign.record import KEPT, FailureModel
from costmodel.estimate import Estimate
from costmodel.evidence.keys import engine_family
from costmodel.kernels.precisions import TRAINING
from costmodel.layout import ParallelLayout
from costmodel.models.sizes import is_unmeasured
from costmodel.ops.layer import model_flop_per_step
from costmodel.training.bands import Doubts, interval, time_deviation
from planner.campaign.finish import job_of_layout, least_saved_bytes, world_of_request
from planner.plan import PlanRequest, steps_of_request
from topology.base.arrays import Vector
from topology.base.errors import InputError
from topology.builders import build
from topology.pools.rates import gpus_in_rank_order, rented_gpus

FEWER = 2.0
"""Standard deviations below their mean at which a bound counts failures: some runs have that luck."""
NOISE = 0.02
"""Chance by which a bound is kinder than `KEPT`: a standard deviation of nine in ten of `RUNS`."""
LEAST_USEFUL = 1e-3
"""Useful share of a run that makes hardly any headway."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Runs of a request on any number of its GPUs.

    Attributes:
        request: what is asked, with tokens.
        world: what fails.
    """

    request: PlanRequest
    world: FailureModel
    _overheads: dict[int, float] = field(default_factory=dict, compare=False, repr=False)
    _shares: dict[int, float] = field(default_factory=dict, compare=False, repr=False)

    def overhead(self, num_gpus: Any) -> Vector:
        """Rented node-hours of a run over those of its steps alone: (1 + spares/nodes) / u, at least 1.

        Of the smallest checkpoint of any layout, so that it is one number for all layouts on as many GPUs. By
        the closed form, and as the median of simulated runs where failures are too few for it: of whole nodes
        that make the steps at the peak of their GPUs.
        """
        used = np.minimum(
            rented_gpus(gpus_in_rank_order(self.request.cluster), num_gpus), self.request.cluster.num_gpus
        )
        return _each(np.maximum(used, 1), self._overheads, self._overhead)

    def longest_step_s(self, num_gpus: Vector, alone_s: float, wanted: npt.NDArray[np.bool_]) -> Vector:
        """Seconds of a step above which no layout on so many GPUs keeps the deadline with a chance of `KEPT`.

        Args:
            num_gpus: GPUs.
            alone_s: longest step with which steps alone keep it.
            wanted: where it is asked for; elsewhere the answer is `alone_s`.
        """
        shares = np.ones(np.broadcast_shapes(num_gpus.shape, wanted.shape))
        asked = np.broadcast_to(num_gpus, shares.shape)
        shares[wanted] = _each(asked[wanted], self._shares, self._share_of_deadline)
        return alone_s * shares

    def finish_days(self, layout: ParallelLayout, full: Estimate) -> tuple[float, ...]:
        """Days within which 0, 1, …, 100 % of the runs of a layout are finished; endless without headway."""
        job, band = job_of_layout(self.request, layout, full, self.world), (full.lower_s, full.upper_s)
        try:
            return finish_days(job, self.world, self.request.cluster, band)
        except InputError:
            return (math.inf, math.inf)

    def keeps(self, layout: ParallelLayout, full: Estimate) -> bool:
        """Whether a run of a layout keeps the deadline with a chance of at least `KEPT`."""
        deadline_s = self.request.job.deadline_s
        if deadline_s is None:
            return True
        job, band = job_of_layout(self.request, layout, full, self.world), (full.lower_s, full.upper_s)
        try:
            return is_kept(job, self.world, self.request.cluster, band, deadline_s)
        except InputError:
            return False

    def _overhead(self, num_gpus: int) -> float:
        bare = self._course(num_gpus)
        work_s = bare.work_s * self._least_gpu_s / num_gpus
        course = replace(with_best_spares(bare), work_s=work_s)
        rented = 1 + course.spares / course.nodes
        if course.per_s * work_s >= FEWEST_FAILURES:
            return rented / max(expected(course).useful, LEAST_USEFUL)
        try:
            runs = runs_over_bands(course, self.world, self._band, RUNS)
        except InputError:
            return rented / LEAST_USEFUL
        return rented * float(np.median(runs.wall_s)) / work_s

    @cached_property
    def _least_gpu_s(self) -> float:
        """GPU-seconds that no step does without: its model FLOP at the peak of the GPU."""
        job = self.request.job
        peak = build(self.request.cluster).gpu.peak(TRAINING[job.precision].peak)
        return model_flop_per_step(self.request.model, job) / peak

    def _share_of_deadline(self, num_gpus: int) -> float:
        """Share of the deadline that steps alone may take, of a step as sure as any.

        Saves cost nothing and lose nothing, nodes are never lacking, and failures are few: no run of
        `RUNS` simulated ones is expected to do better, whatever its layout, interval and spares.
        """
        course = self._course(num_gpus)
        free = replace(
            course,
            levels=tuple(replace(level, stall_s=0.0, durable_s=0.0) for level in course.levels),
            every_s=(1e-3,) * len(course.levels),
        )
        step, spread = self._factors
        rates = np.minimum(spread, max(1.0, highest_rate_factor(course) / 2))
        failures = np.maximum(course.per_s * (self.request.job.deadline_s or 0.0) * rates, 1e-300)
        fewest = rates * np.maximum(0.0, 1 - FEWER / np.sqrt(failures))
        useful = np.array([_useful_at(free, float(factor)) for factor in fewest])
        return min(1.0, 1 / float(np.percentile(step / useful, 100 * (KEPT - NOISE))))

    @cached_property
    def _factors(self) -> tuple[Vector, Vector]:
        """Factors on the step and on rates of failure of simulated runs, of a step as sure as any."""
        return factors_of_runs(self.world, self._band, RUNS)

    @cached_property
    def _band(self) -> tuple[float, float]:
        """The 80 % band of a step of 1, as sure as any of its engine."""
        request, model = self.request, self.request.model
        doubts = Doubts(
            engine=engine_family(request.stack), experts=model.is_moe, recurrent=is_unmeasured(model)
        )
        deviation = None if request.anchor is None else request.anchor.deviation
        return interval(1.0, time_deviation(doubts, deviation))

    def _course(self, num_gpus: int) -> Course:
        """The run of the smallest checkpoint, spread evenly, saved at Young and Daly's interval."""
        least_bytes, steps = least_saved_bytes(self.request), steps_of_request(self.request)
        state = CheckpointState(
            total_bytes=least_bytes,
            per_rank_bytes=least_bytes / num_gpus,
            weights_per_rank_bytes=0.0,
            writers=num_gpus,
        )
        job = CampaignJob(
            work_s=float(steps), step_s=1.0, gpus=num_gpus, replica_gpus=num_gpus, checkpoint=state
        )
        course = bare_course(job, self.world, self.request.cluster)
        every = (
            max(level.durable_s, young_daly_s(level.stall_s, 1 / course.per_s)) for level in course.levels
        )
        return replace(course, every_s=tuple(every))


def outlook_of(request: PlanRequest) -> Outlook | None:
    """The outlook of a request whose job says how many tokens; None without, as for a step alone."""
    if request.job.total_tokens is None:
        return None
    return Outlook(request=request, world=world_of_request(request))


def _each(num_gpus: Any, known: dict[int, float], value: Callable[[int], float]) -> Vector:
    """A value for every number of GPUs, worked out once for each number that occurs."""
    asked = np.asarray(num_gpus)
    numbers, of = np.unique(asked, return_inverse=True)
    for number in numbers:
        if int(number) not in known:
            known[int(number)] = value(int(number))
    return np.array([known[int(number)] for number in numbers])[of].reshape(asked.shape)


def _useful_at(course: Course, factor: float) -> float:
    """Useful share of a run at full strength whose failures come so many times as often; at most 1."""
    if not factor:
        return 1.0
    hazards = tuple(replace(hazard, per_s=factor * hazard.per_s) for hazard in course.hazards)
    return min(1.0, max(LEAST_USEFUL, at_full_strength(replace(course, hazards=hazards)).useful))
