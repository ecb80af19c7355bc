"""Scripts, logs and plans beside traces: what job they describe, and what it should take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planner.audit.audit import calibration_of, estimate_of
from planner.audit.job import audited_job
from planner.audit.read import read_texts, text_of
from planner.diagnose.prediction import Prediction
from planner.plan import from_json
from planner.questions.flags import Flags
from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_PATH, read_text


def prediction_of(paths: Sequence[Path], flags: Flags) -> tuple[Prediction | None, tuple[str, ...]]:
    """What the files predict, and what is missing where they do not.

    Args:
        paths: One plan of `plan --json`, or the scripts, configurations and logs of one job.
        flags: What is said beside them.
    """
    if not paths:
        return None, ()
    name = shortened(str(paths[0]), LONGEST_PATH)
    if len(paths) == 1 and paths[0].suffix == ".json":
        plan = from_json(read_text(paths[0]), name)
        return Prediction(source=Path(name).name, estimate=plan.estimate, layout=plan.layout), ()
    reading = read_texts({str(path): text_of(str(path))[0] for path in paths}, {})
    if reading.family.serves:
        raise InputError(f"{name} starts a server", "a step of training is predicted here", "leave it out")
    job = audited_job(reading, flags)
    estimate = estimate_of(reading, job, calibration_of(reading, flags))
    if estimate is None or job.layout is None:
        return None, tuple(f"not predicted: {each}" for each in job.missing[:3])
    return Prediction(source=Path(name).name, estimate=estimate, layout=job.layout), ()
