"""A diagnosis: recorded steps, their budget, the layout, the prediction beside them, and what is off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.diagnose.beside import SideEvidence, beside_traces, kind_beside
from planner.diagnose.budget import StepBudget, Totals
from planner.diagnose.causes import causes_of
from planner.diagnose.evidence import fixes
from planner.diagnose.finding import StepFinding
from planner.diagnose.job_files import prediction_of, server_prediction
from planner.diagnose.memory import memory_budget
from planner.diagnose.model_size import ModelSize, model_size
from planner.diagnose.prediction import EXPOSED, PartResidual, Prediction, findings_beside, residuals_of
from planner.diagnose.rank_timings import timing_findings
from planner.diagnose.record import RecordedJob, recorded_job, stretches
from planner.diagnose.repairs import with_gains
from planner.diagnose.server_log import server_findings, server_words
from planner.diagnose.serving import ServedSteps, served_steps
from planner.formats.server_lines import server_log_of
from planner.questions.flags import Flags
from planner.traces.events import Trace
from planner.traces.nccl_logs import transports
from planner.traces.rank_timers import rank_timers
from planner.traces.read import format_of, read_traces, traces_in
from topology.base.errors import InputError
from topology.base.files import read_ends, read_text
from topology.base.units import MIB

SCHEMA_VERSION = 1
LOG_SUFFIXES = (".log", ".out", ".txt")
MOST_OF_LOG = 32 * MIB
"""Bytes of a server's log that are read, of its two ends."""
MOST_OF_WALLS = 4096
"""Bytes in which the key of walls stands."""
JOB_SUFFIXES = (".sh", ".py", ".toml", ".yaml", ".yml", *LOG_SUFFIXES)
NOTHING_BESIDE = SideEvidence()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One step of one rank."""

    rank: int
    number: int
    source: str
    totals: Totals
    budget: StepBudget


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diagnosis:
    """Everything that `plan diagnose` says."""

    job: RecordedJob
    totals: Totals
    """Of the whole trace, or of the step that was named; means over ranks."""
    parts: Mapping[str, float]
    """Exclusive parts of the same stretch; they sum to its total."""
    steps: tuple[RecordedStep, ...]
    findings: tuple[StepFinding, ...]
    prediction: Prediction | None = None
    residuals: tuple[PartResidual, ...] = ()
    notes: tuple[str, ...] = ()
    served: ServedSteps | None = None
    """Of a server: its steps by what they do."""
    model: ModelSize | None = None
    """By the shapes of its products, where nothing else says it."""
    beside: SideEvidence = NOTHING_BESIDE
    """What other files explain: flight records, memory, samples of GPUs, timers of a log."""

    @property
    def lost_share(self) -> float:
        """Share of the step of its most expensive finding."""
        return max((finding.share for finding in self.findings), default=0.0)

    @property
    def step_totals(self) -> Totals:
        """Totals of a step, as its parts: means over steps and ranks."""
        return _mean_totals([each.totals for each in self.steps])

    def document(self) -> dict[str, Any]:
        """Plain data for a program: seconds everywhere."""
        predicted = self.prediction
        estimate = predicted.estimate if predicted else None
        layout = self.job.layout
        return {
            "schema_version": SCHEMA_VERSION,
            "gpu": any(trace.gpu for trace in self.job.traces),
            "ranks": [trace.rank for trace in self.job.traces],
            "world_size": layout.world_size,
            "step_s": self.job.step_s,
            **asdict(self.totals),
            "parts": dict(self.parts),
            "windows": [
                {
                    "rank": each.rank,
                    "step": each.number,
                    "source": each.source,
                    **asdict(each.totals),
                    "parts": dict(each.budget.parts),
                }
                for each in self.steps
            ],
            "layout": {
                "world_size": layout.world_size,
                "degrees": dict(layout.degrees),
                "strides": dict(layout.strides),
                "evidence": dict(layout.evidence),
            },
            "predicted": None
            if predicted is None or estimate is None
            else {
                "source": predicted.source,
                "step_s": estimate.step_time_s,
                "lower_s": estimate.lower_s,
                "upper_s": estimate.upper_s,
                "parts": predicted.parts,
            },
            "residuals": [{**asdict(each), "residual_s": each.residual_s} for each in self.residuals],
            "findings": [asdict(each) for each in self.findings],
            "model": None if self.model is None else asdict(self.model),
            "served": None if self.served is None else self.served.document(),
            "notes": list(self.notes),
            "beside": self.beside.document(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFiles:
    """Files of a question, by what they are."""

    traces: tuple[Path, ...]
    beside: tuple[Path, ...]
    """Flight records, memory, tables of operations, samples of GPUs."""
    job: tuple[Path, ...]
    """Scripts, plans and logs."""


def recorded_files(paths: Sequence[str | Path]) -> RecordedFiles:
    """Sort files; a folder stands for the traces and the records in it.

    Raises:
        InputError: One is no regular file, or is not there.
    """
    traces, beside, job = list[Path](), list[Path](), list[Path]()
    for path in map(Path, paths):
        if path.is_dir():
            beside += [each for each in sorted(path.iterdir()) if each.is_file() and kind_beside(each)]
            traces += [path] if traces_in(path) else []
        elif path.suffix not in JOB_SUFFIXES and kind_beside(path):
            beside.append(path)
        elif _holds_walls(path):
            continue
        else:
            (traces if _is_trace(path) else job).append(path)
    return RecordedFiles(traces=tuple(traces), beside=tuple(beside), job=tuple(job))


def explained(
    files: RecordedFiles, *, job: RecordedJob | None = None, prediction: Prediction | None = None
) -> SideEvidence:
    """What records beside traces and timers of logs explain, the largest share first."""
    groups = [group for trace in job.traces for group in trace.groups] if job is not None else []
    side = beside_traces(files.beside, step_s=job.step_s if job is not None else 0.0, groups=groups)
    logs = [path for path in files.job if path.suffix in LOG_SUFFIXES]
    timed = [finding for path in logs for finding in timing_findings(rank_timers(read_text(path)))]
    socketed = [finding for path in logs for finding in socket_findings(read_text(path), job)]
    served = [log for path in logs if (log := server_log_of(read_ends(path, MOST_OF_LOG)[0])) is not None]
    of_servers = [finding for log in served for finding in server_findings(log)]
    findings = sorted((*side.findings, *timed, *socketed, *of_servers), key=lambda finding: -finding.share)
    return replace(
        side,
        findings=tuple(findings),
        memory_budgets=tuple(memory_budget(memory, prediction) for memory in side.memory),
        servers=tuple(server_words(log) for log in served),
    )


def diagnosed(paths: Sequence[str | Path], flags: Flags, step: int | None = None) -> Diagnosis:
    """Diagnose files: traces of one or many ranks, with the script, plan or log of the job among them.

    Args:
        paths: In any order; a folder stands for the traces in it.
        flags: What is said of the job beside its files.
        step: The one step that is looked at, by its number.

    Raises:
        InputError: No trace is among them, or one cannot be read.
    """
    files = recorded_files(paths)
    if not files.traces:
        raise _without_traces(paths, files)
    traces = read_traces(files.traces)
    _require_alike(traces)
    job = recorded_job(traces, step)
    first = job.timelines[min(job.timelines)]
    served, prediction = served_steps(first), None
    if served is not None:
        predicted, missing = server_prediction(files.job, flags)
        served = served_steps(first, predicted) if predicted is not None else served
    else:
        prediction, missing = _predicted(files.job, flags)
    side = explained(files, job=job, prediction=prediction)
    seen = [*(findings_beside(job, prediction) if prediction is not None else ()), *causes_of(job)]
    causes = tuple(sorted(merged(side.findings, with_gains(job, seen)), key=_first_layout))
    contradicts = any(finding.cause == "layout contradiction" for finding in causes)
    if prediction is not None and (contradicts or _is_far(job, prediction)):
        missing = (*missing, f"{prediction.source} seems to be of another job than the traces")
    steps = tuple(
        RecordedStep(
            rank=rank,
            number=window.number,
            source=window.source,
            totals=job.timelines[rank].totals(window.start_s, window.end_s),
            budget=budget,
        )
        for rank, budgets in job.budgets.items()
        for window, budget in zip(stretches(job.timelines[rank]), budgets, strict=True)
    )
    whole = [line.budget(line.start_s, line.end_s) for line in job.timelines.values()]
    totals = [line.totals() for line in job.timelines.values()]
    if step is not None:
        whole, totals = [each.budget for each in steps], [each.totals for each in steps]
    return Diagnosis(
        job=job,
        totals=_mean_totals(totals),
        parts=mean_parts(whole),
        steps=steps,
        findings=causes,
        prediction=prediction,
        residuals=residuals_of(job, prediction) if prediction and not contradicts else (),
        served=served,
        model=model_size(job.traces[0]) if prediction is None else None,
        notes=(*dict.fromkeys(note for trace in job.traces for note in trace.notes), *missing),
        beside=side,
    )


def _predicted(paths: Sequence[Path], flags: Flags) -> tuple[Prediction | None, tuple[str, ...]]:
    """The prediction of the job's files. A log that explains without steps needs to predict nothing."""
    try:
        return prediction_of(paths, flags)
    except InputError as error:
        if not all(path.suffix in LOG_SUFFIXES and _explains(read_text(path)) for path in paths):
            raise
        return None, (f"not predicted: {error.what}",)


def _explains(text: str) -> bool:
    """Whether a log says of ranks or links what is looked for."""
    timers = rank_timers(text)
    return bool(timers.by_rank or timers.ranges or transports(text))


def socket_findings(text: str, job: RecordedJob | None) -> Iterator[StepFinding]:
    """Ranks of several nodes that NCCL joins by TCP, as its log says, and what they communicate meanwhile."""
    joined = transports(text)
    sockets = joined["NET/Socket"]
    if not sockets:
        return
    budgets = [budget for of in job.budgets.values() for budget in of] if job is not None else []
    exposed = {part for budget in budgets for part in budget.parts if part.startswith(EXPOSED)}
    cost = sum(job.mean_part(part) for part in exposed) if job is not None else 0.0
    evidence = f"NCCL joins ranks of different nodes by TCP: {sockets} channels via NET/Socket"
    yield StepFinding(
        cause="sockets",
        seconds=cost,
        share=cost / job.step_s if job is not None and job.step_s else 0.0,
        evidence=evidence,
        fix=fixes()["sockets"],
    )


OTHER_JOB_FACTOR = 100.0
"""Two orders of magnitude: no cause makes that of a step, another model, GPU or batch does."""


def _is_far(job: RecordedJob, prediction: Prediction) -> bool:
    """Whether a step is of another size than its prediction."""
    ratio = job.step_s / prediction.estimate.step_time_s if prediction.estimate.step_time_s else 0.0
    return not 1 / OTHER_JOB_FACTOR <= ratio <= OTHER_JOB_FACTOR


def _require_alike(traces: Sequence[Trace]) -> None:
    """Refuse traces of unlike devices as one job."""
    devices = {trace.platform: trace for trace in traces if trace.gpu}
    if len(devices) > 1:
        names = " and ".join(sorted(trace.device or platform for platform, trace in devices.items()))
        raise InputError("traces are of more than one job", f"they are of {names}", "name those of one job")


def _without_traces(paths: Sequence[str | Path], files: RecordedFiles) -> InputError:
    """Why none of the files is a trace."""
    folders = [Path(path) for path in paths if Path(path).is_dir()]
    reasons = [
        f"in {folder.name}/ none of {len(list(folder.iterdir()))} files is named rank*" for folder in folders
    ]
    reasons += [f"{path.name} is a script, a plan, a log or text" for path in files.job]
    fix = "name traces by their files: plan diagnose rank0.json.gz rank1.json.gz train.sh"
    return InputError("no trace is among these files", "; ".join(reasons[:3]) or "none was named", fix)


def _mean_totals(totals: Sequence[Totals]) -> Totals:
    """Means of several stretches."""
    return Totals(
        **{key: float(np.mean([getattr(each, key) for each in totals])) for key in asdict(totals[0])}
    )


def mean_parts(budgets: Sequence[StepBudget]) -> dict[str, float]:
    """Mean seconds of each part, the longest first."""
    names = dict.fromkeys(name for budget in budgets for name in budget.parts)
    means = {name: float(np.mean([budget.parts.get(name, 0.0) for budget in budgets])) for name in names}
    return dict(sorted(means.items(), key=lambda each: -each[1]))


def merged(beside: Sequence[StepFinding], seen: Sequence[StepFinding]) -> list[StepFinding]:
    """Findings of records and of traces; one cause that both show on a rank is one, with both evidences.

    Traces say what it costs, records where it lies: the rank, which traces of one rank leave out.
    """
    result = list(seen)
    for record in beside:
        at = next((place for place, each in enumerate(result) if _is_same(each, record)), None)
        if at is None:
            result.append(record)
            continue
        each = result[at]
        result[at] = replace(
            each,
            rank=record.rank if each.rank is None else each.rank,
            evidence=f"{each.evidence}; {record.evidence}",
        )
    return result


def _is_same(seen: StepFinding, record: StepFinding) -> bool:
    """Whether a trace and a record show one cause at one place."""
    ranks = {seen.rank, record.rank} - {None}
    return seen.cause == record.cause and seen.gpu == record.gpu and len(ranks) <= 1


def _first_layout(finding: StepFinding) -> tuple[bool, float]:
    return finding.cause != "layout contradiction", -finding.seconds


def _holds_walls(path: Path) -> bool:
    """Whether a file has the seconds of steps that were not recorded, which plan run leaves beside traces."""
    return path.suffix == ".json" and '"wall_step_s"' in read_ends(path, MOST_OF_WALLS)[0]


def _is_trace(path: Path) -> bool:
    """Whether a file holds recorded events, and is no plan and no configuration."""
    if path.suffix in JOB_SUFFIXES:
        return False
    return bool(format_of(path))
