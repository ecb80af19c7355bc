"""The step that a script or a plan should take, part by part beside the recorded one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from costmodel.estimate import Estimate, TimeBreakdown
from costmodel.kernels.precisions import TrainingPrecision
from costmodel.layout import ParallelLayout
from costmodel.parallel.axes import RANK_AXES
from planner.diagnose.budget import launched_once_more
from planner.diagnose.causes import unhidden_gradients, wide_beside
from planner.diagnose.classes import kernel_classes
from planner.diagnose.evidence import finding_of, least_s
from planner.diagnose.record import RecordedJob
from planner.diagnose.repairs import Seen, scaled
from topology.base.units import format_seconds

EXPOSED = "exposed communication"
PARTS_OF: Mapping[str, str] = {
    **dict.fromkeys((*kernel_classes(), "compute", "memset"), "compute_s"),
    "recompute": "recompute_s",
    "optimizer": "optimizer_s",
    "sends": "pp_s",
    "bubble": "bubble_s",
    "waiting for the last rank": "dp_s",
    "launch gaps": "host_s",
    "synchronisation": "host_s",
    **{f"{EXPOSED} {axis}": f"{axis}_s" for axis in ("tp", "cp", "ep", "pp", "dp")},
    EXPOSED: "dp_s",
}
"""Parts of a recorded step, and the term of the model each stands beside; others have no term."""

Verdict = Literal["explained", "slower", "faster"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the model says of the job that a file describes."""

    source: str
    estimate: Estimate
    layout: ParallelLayout
    precision: TrainingPrecision | None = None
    """What products are told to multiply in; None where nothing says."""
    gradient_overlap: bool = False
    """Whether the job's profile reduces gradients under the backward pass; False where nothing says."""

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by term."""
        time = self.estimate.time
        return {
            part.name: float(getattr(time, part.name))
            for part in fields(TimeBreakdown)
            if part.name != "hidden_s"
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResidual:
    """One term, recorded and predicted, in seconds a step; its band is as wide as that of the step."""

    part: str
    recorded_s: float
    predicted_s: float
    lower_s: float
    upper_s: float
    verdict: Verdict

    @property
    def residual_s(self) -> float:
        """Recorded minus predicted."""
        return self.recorded_s - self.predicted_s


def residuals_of(job: RecordedJob, prediction: Prediction) -> tuple[PartResidual, ...]:
    """Every term and every part without one, the furthest off first."""
    recorded: dict[str, float] = {}
    for name in {part for of in job.budgets.values() for budget in of for part in budget.parts}:
        term = PARTS_OF.get(name, name)
        recorded[term] = recorded.get(term, 0.0) + job.mean_part(name)
    parts, estimate = prediction.parts, prediction.estimate
    low, high = (bound / estimate.step_time_s for bound in (estimate.lower_s, estimate.upper_s))
    rows = []
    for term in {*recorded, *(name for name, value in parts.items() if value)}:
        value, expected = recorded.get(term, 0.0), parts.get(term, 0.0)
        lower, upper = expected * low, expected * high
        verdict: Verdict = "slower" if value > upper else "faster" if value < lower else "explained"
        if max(value, expected) < 1e-3 * job.step_s:
            continue  # nothing that a step of a second shows
        rows.append(
            PartResidual(
                part=term,
                recorded_s=value,
                predicted_s=expected,
                lower_s=lower,
                upper_s=upper,
                verdict=verdict,
            )
        )
    return tuple(sorted(rows, key=lambda each: -abs(each.residual_s)))


def findings_beside(job: RecordedJob, prediction: Prediction) -> tuple[Seen, ...]:
    """What only a prediction shows: another layout or precision, and recomputation that nobody asked for."""
    result = list[Seen]()
    layout, recorded = prediction.layout, job.layout
    degrees = {axis: recorded.degrees[axis] for axis in RANK_AXES if axis in recorded.degrees}
    if degrees and math.prod(degrees.values()) == recorded.world_size:
        degrees = {axis: degrees.get(axis, 1) for axis in RANK_AXES}  # no ranks are left for another axis
    differ = [
        f"{axis} {degree} in the trace and {getattr(layout, axis)} in {prediction.source}"
        for axis, degree in degrees.items()
        if degree != getattr(layout, axis)
    ]
    if recorded.degrees and layout.num_gpus != recorded.world_size:
        differ.insert(
            0, f"{recorded.world_size} ranks in the trace and {layout.num_gpus} in {prediction.source}"
        )
    if differ:
        result.append((finding_of(job, "layout contradiction", 0.0, "; ".join(differ)), None))
    once_more = job.mean_part("recompute")
    if layout.recompute == "none" and once_more >= least_s(job):
        evidence = (
            f"{format_seconds(once_more)} of forwards run once more, and {prediction.source} asks for none"
        )
        result.append(
            (
                finding_of(job, "unplanned recompute", once_more, evidence),
                scaled(job, launched_once_more, 0.0),
            )
        )
    if prediction.gradient_overlap and layout.dp > 1 and not any(trace.gpu for trace in job.traces):
        result += unhidden_gradients(job)
    if prediction.precision is not None:
        result += wide_beside(job, prediction.precision, prediction.source)
    return tuple(result)
