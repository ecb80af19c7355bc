"""An audit: what files say, what is wrong with it, what it should take, and what would be better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.accuracy.anchor import FURTHEST, stack_level
from costmodel.estimate import Estimate
from costmodel.evidence.keys import engine_family
from costmodel.evidence.table import unmeasured
from costmodel.kernels.level import StackLevel
from costmodel.kernels.saved import calibration_for
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.memory.fit import fit_of
from costmodel.training.bands import Doubts, tie_ratio
from costmodel.training.estimate import estimate
from planner.audit.changes import Change, Running, changes_of, most_bytes
from planner.audit.findings import findings_of
from planner.audit.given import given_by
from planner.audit.job import Job, job_of
from planner.audit.legal import Finding
from planner.audit.priced_facts import with_priced_facts
from planner.audit.read import Reading, read_texts
from planner.audit.told import add_chunks, split_told, stack_told, switched_off, told_of
from planner.plan import Plan, PlanRequest
from planner.problem import setting_of
from planner.questions.flags import Flags
from planner.search.search import search
from topology.base.errors import InputError
from topology.builders import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """Everything that an audit says.

    Attributes:
        reading: What the files say.
        job: The job as far as it is known.
        findings: What is wrong.
        predicted: What the job should take as it is; None where it is not known or not legal.
        best: The best plan of the same engine and cluster; None where there is none or nothing is known.
        changes: What would be better.
        doubts: What was taken for granted.
        measured_step_s: Step that a log measured, printed or from its rates.
    """

    reading: Reading
    job: Job
    findings: tuple[Finding, ...] = ()
    predicted: Estimate | None = None
    best: Plan | None = None
    changes: tuple[Change, ...] = ()
    doubts: tuple[str, ...] = ()
    measured_step_s: float | None = None

    @property
    def fits(self) -> bool | None:
        """Whether the job fits its GPUs; None if it is not known, or so tight that nothing can be said."""
        if self.predicted is None:
            return None
        word = fit_of(self.predicted.out_of_memory_chance)
        return None if word == "tight" else word == "fits"

    @property
    def step_time_s(self) -> float | None:
        """The step as measured, else as predicted."""
        return self.measured_step_s or (self.predicted.step_time_s if self.predicted else None)

    @property
    def slower_by(self) -> float | None:
        """Share by which the job, as measured or else as predicted, is slower than the best."""
        runs = self.measured_step_s is not None or self.fits is not False
        if self.best is None or self.step_time_s is None or not runs:
            return None
        return self.step_time_s / self.best.estimate.step_time_s - 1

    @property
    def tied(self) -> bool:
        """Whether the model cannot tell the job from the best.

        A measured step lies within the band of the best; a predicted one of the same engine and cluster
        shares the best's level, so that only the difference of two layouts is in doubt.
        """
        if self.best is None or self.slower_by is None:
            return False
        best = self.best.estimate
        if self.measured_step_s is not None:
            return best.lower_s <= self.measured_step_s <= best.upper_s
        return 1 / tie_ratio() <= 1 + self.slower_by <= tie_ratio()


def audited(reading: Reading, flags: Flags, cal: Calibration) -> Audit:
    """Judge what files say.

    Args:
        reading: From `planner.audit.read.read_files`.
        flags: What the user says beside them.
        cal: Kernel and collective tables.
    """
    add_chunks(reading)
    reading = given_by(reading, flags)
    doubts = list(reading.doubts)
    try:
        job = job_of(reading, flags)
        cluster = build(job.request.cluster) if job.request else None
        findings = findings_of(reading, job, cluster)
    except InputError as impossible:
        if flags != Flags():
            raise
        job, cluster = Job(missing=(f"a possible job: {impossible.what}, {impossible.cause}",)), None
        findings = findings_of(reading, job, None)
    doubts += job.assumed
    stops = any(
        finding.kind in ("illegal", "unpriced") and finding.rule != "cuda-connections" for finding in findings
    )
    now = None if stops else _running(reading, job, cal)
    measured = measured_step_s(reading, job)
    best = _best(job.request, now, cal, runs=measured is not None)
    changes = changes_of(reading, now, best, cal, runs=measured is not None) if now else ()
    return Audit(
        reading=with_priced_facts(reading, job), job=job, findings=findings,
        predicted=now.estimate if now else None, best=best, changes=changes,
        doubts=tuple(dict.fromkeys(doubts)), measured_step_s=measured,
    )  # fmt: skip


def audited_texts(texts: Mapping[str, str], rest: Flags, given: Mapping[str, str] | None = None) -> Audit:
    """Judge texts that were sent: nothing that they name is opened.

    Args:
        texts: By name.
        rest: What holds where the texts say nothing: model, GPUs, sequence length.
        given: Variables of the environment that scripts read.
    """
    reading = read_texts(texts, given)
    flags = Flags(gpu=None if len(reading.gpus) == 1 else rest.gpu)
    missing = job_of(reading, flags).missing
    for flag, name in (("--model", "model"), ("--gpus", "gpus"), ("--sequence-length", "sequence_length")):
        value = getattr(rest, name)
        if flag in missing and value is not None:
            told: dict[str, str] = {name: value}
            flags = replace(flags, **told)  # type: ignore[arg-type]  # all three are texts
            reading.doubts.append(f"{name.replace('_', ' ')} {value}, of the question here: no file says it")
    return audited(reading, flags, calibration_of(reading, flags))


def calibration_of(reading: Reading, flags: Flags) -> Calibration:
    """Tables of the cluster that files and flags mean."""
    try:
        request = job_of(reading, flags).request
    except InputError:
        request = None
    return calibration_for(request.cluster) if request is not None else load_calibration()


def level_of(found: Audit, name: str) -> StackLevel:
    """What a log says of its engine's speed here: measured over predicted.

    Raises:
        InputError: Nothing was measured or priced, or both are so far apart that they are not of one job.
    """
    measured, predicted, request = found.measured_step_s, found.predicted, found.job.request
    if measured is None or predicted is None or request is None:
        unknown = f"missing: {', '.join(found.job.missing) or 'a legal job'}"
        lacks = "no step time was measured" if measured is None else unknown
        raise InputError("these files give no anchor", lacks, "name the log and the launch file of one job")
    ratio = math.log(measured / predicted.step_time_s)
    if abs(ratio) >= FURTHEST:
        cause = f"measured {measured:.3g} s, predicted {predicted.step_time_s:.3g} s"
        raise InputError(
            "this log is of another job", cause, "see what was assumed: the GPU, the model, the batch"
        )
    doubts = Doubts(
        experts=request.model.is_moe,
        unmeasured=len(unmeasured(predicted.evidence)),
        engine=engine_family(request.stack),
    )
    level = stack_level(request.stack, [(ratio, doubts)])
    return replace(level, name=name)


def measured_step_s(reading: Reading, job: Job) -> float | None:
    """A step that a log prints, or that its rates mean for the job."""
    measured = reading.measured
    if measured is None or measured.step_time_s is not None:
        return measured.step_time_s if measured else None
    batch = reading.facts.count("job.global_batch_size") or (
        job.request.job.global_batch_size if job.request else None
    )
    length, gpus = reading.facts.count("job.sequence_length"), reading.facts.count("cluster.num_gpus")
    if batch and measured.samples_per_s:
        return batch / measured.samples_per_s
    if batch and length and gpus and measured.tokens_per_s_per_gpu:
        return batch * length / (measured.tokens_per_s_per_gpu * gpus)
    return None


def _running(reading: Reading, job: Job, cal: Calibration) -> Running | None:
    """The job as its files have it, estimated."""
    if job.request is None or job.layout is None:
        return None
    setting, told = setting_of(job.request), told_of(reading, job.request)
    split = split_told(job.request, job.layout, told)
    stack = stack_told(setting.stack, told)
    found = estimate(setting.model, setting.cluster, setting.job, stack, job.layout, cal, split)
    off = switched_off(setting.stack, told)
    return Running(request=job.request, layout=job.layout, split=split, stack=stack, off=off, estimate=found)


def _best(request: PlanRequest | None, now: Running | None, cal: Calibration, *, runs: bool) -> Plan | None:
    """The best plan of the same engine on the same cluster, in as much memory as `most_bytes` allows."""
    if request is None:
        return None
    if now is not None:
        setting = setting_of(request)
        most = most_bytes(setting, now, runs=runs)
        if most > setting.memory_budget_bytes:
            request = replace(request, memory_headroom=1 - most / setting.cluster.gpu.memory_bytes)
    found = search(request, cal)
    return found if isinstance(found, Plan) else None
