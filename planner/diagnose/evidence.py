"""How much evidence a cause needs, and the finding that is made of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from planner.diagnose.finding import StepFinding
from planner.diagnose.record import RecordedJob
from topology.base.decode import read_toml

LEAST_SHARE = 0.05
"""Of a step: less is not worth a change."""
LEAST_SHARE_OF_HOST = 0.2
"""Where there is no GPU: walls of ranks that share cores vary by 10 to 25 %."""
SLOWER_LEAST = 1.1
"""The same kernels on one rank over those of the others; repeats of a kernel vary by a few percent."""


@functools.cache
def fixes() -> Mapping[str, str]:
    """What cures each cause."""
    return {
        row["name"]: row["fix"] for row in read_toml(Path(__file__).parent / "data" / "causes.toml")["causes"]
    }


def least_s(job: RecordedJob) -> float:
    """Seconds a step that a cause costs at least."""
    gpu = any(trace.gpu for trace in job.traces)
    return job.step_s * (LEAST_SHARE if gpu else LEAST_SHARE_OF_HOST)


def finding_of(
    job: RecordedJob, cause: str, cost_s: float, evidence: str, rank: int | None = None, **words: object
) -> StepFinding:
    """A finding with its share and its fix."""
    fix = fixes()[cause]
    for name, value in {"rank": rank, **words}.items():
        fix = fix.replace(f"{{{name}}}", str(value))
    return StepFinding(
        cause=cause,
        rank=rank,
        seconds=cost_s,
        share=cost_s / max(job.step_s, 1e-12),
        evidence=evidence,
        fix=fix,
    )
