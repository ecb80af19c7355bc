"""An audit: what files say, what is wrong with it, what it should take, and what would be better."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from costmodel.accuracy.anchor import FURTHEST, MeasuredStep, stack_level
from costmodel.estimate import Estimate
from costmodel.evidence.keys import engine_family
from costmodel.evidence.table import unmeasured
from costmodel.kernels.level import StackLevel
from costmodel.kernels.saved import calibration_for
from costmodel.kernels.tables import Calibration, load_calibration
from costmodel.layout import LayoutTable, num_microbatches
from costmodel.memory.fit import fit_of
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.even_split import even_split
from costmodel.stack import SoftwareStack
from costmodel.switches.profile import value_in, with_switches
from costmodel.switches.switch import switches
from costmodel.training.bands import Doubts, tie_ratio
from costmodel.training.estimate import estimate
from costmodel.training.score import part_shares
from planner.audit.applied import legal_changes
from planner.audit.changes import Change, Running, changes_of, most_bytes, running_of
from planner.audit.contract_reading import add_chunks
from planner.audit.environment import SLOWING
from planner.audit.file_switches import EXPERT_SWITCH, has_words, switch_facts
from planner.audit.findings import IMPOSSIBLE_PACE, OTHER_WORK, findings_of
from planner.audit.given import given_by
from planner.audit.job import Job, audited_job
from planner.audit.legal import Finding, stops
from planner.audit.peak import PeakResidual, RanRegardless, peak_residual_of
from planner.audit.presumed import with_presumed, with_published, without_presumable
from planner.audit.priced_facts import with_priced_facts
from planner.audit.read import Reading, read_texts
from planner.audit.reinforcement import without_whole_steps
from planner.audit.residual import Residual, residual_of, work_of_step
from planner.audit.unsettled import with_leanest
from planner.audit.verdict import Basis, Verdict, memory_verdict
from planner.engines.fields import is_numeric, stack_facts, stack_with
from planner.formats.step_lines import Pace, Work
from planner.plan import Plan, PlanRequest
from planner.pricing import split_of
from planner.questions.flags import Flags
from planner.search.infeasible import share_text
from planner.search.search import search
from topology.base.errors import InputError
from topology.base.units import format_bytes
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
        proof: What the certificate of the best plan is, and of which layouts; empty without one.
        changes: What would be better.
        doubts: What was taken for granted.
        measured_step_s: Step that a log measured, printed or from its rates.
        measured_from: The printed rate that it follows from, in words; empty where the step is printed.
        residual: That step beside its prediction.
        peak: A printed peak, or a run, that the prediction cannot mean.
        memory: Whether the job fits, and what that rests on.
        memory_level: Printed over predicted peak, by which chances of OOM of proposals are judged.
    """

    reading: Reading
    job: Job
    findings: tuple[Finding, ...] = ()
    predicted: Estimate | None = None
    best: Plan | None = None
    proof: str = ""
    changes: tuple[Change, ...] = ()
    doubts: tuple[str, ...] = ()
    measured_step_s: float | None = None
    measured_from: str = ""
    residual: Residual | None = None
    peak: PeakResidual | RanRegardless | None = None
    memory: Verdict | None = None
    memory_level: float = 1.0

    @property
    def basis(self) -> Basis | None:
        """Whether the step that is judged was measured or is predicted; None where neither is known."""
        if self.measured_step_s is not None:
            return "measured"
        return None if self.predicted is None else "predicted"

    @property
    def hang(self) -> str:
        """The collective that ranks waited for in vain, as a log shows it, in words; empty where none."""
        log = self.reading.measured
        if log is None or not log.hung:
            return ""
        when = "after its steps" if log.has_steps else "before its first step"
        return (
            f"it hung {when}: {log.hung}; look at what the other ranks did last, and at links between nodes"
        )

    @property
    def evidence(self) -> tuple[str, ...]:
        """What logs prove of the job, in words."""
        log = self.reading.measured
        if log is None:
            return ()
        lines = [self.hang] if self.hang else []
        if log.out_of_memory:
            lines.append(f"line {log.out_of_memory} of the log: a GPU ran out of memory")
        elif log.has_steps:
            lines.append("the log shows steps, so the job fits its GPUs")
        if log.peak_memory_bytes:
            lines.append(f"the log prints a peak of {format_bytes(log.peak_memory_bytes)}")
        return tuple(lines)

    @property
    def peak_memory_bytes(self) -> float | None:
        """The peak as a log prints it, else as predicted."""
        log = self.reading.measured
        if log is not None and log.peak_memory_bytes:
            return log.peak_memory_bytes
        return None if self.predicted is None else self.predicted.peak_memory_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the job fits its GPUs; None if it is not known, not settled, or too tight to say."""
        return None if self.memory is None else self.memory.fits

    @property
    def cannot_run_as_taken(self) -> bool:
        """Whether nobody stated what decides memory, and what is taken for it does not fit."""
        memory = self.memory
        if memory is None or memory.basis == "measured" or self.job.part:
            return False
        return memory.word == "not settled" and fit_of(memory.chance) == "does not fit"

    @property
    def is_measured_possible(self) -> bool:
        """Whether what was measured can be of this job: no GPU does more than it can, nothing is refuted."""
        impossible = any(finding.rule in (IMPOSSIBLE_PACE, OTHER_WORK) for finding in self.findings)
        refuted = self.peak is not None or (self.residual is not None and self.residual.refutes)
        return not impossible and not refuted

    @property
    def doubted(self) -> tuple[str, ...]:
        """What of the assumed, or of the log, cannot be of this job: said before all else."""
        pace = self.residual.words if self.residual is not None and self.residual.refutes else ()
        return (*pace, *(() if self.peak is None else (self.peak.words,)))

    @property
    def step_time_s(self) -> float | None:
        """The step as measured, else as predicted."""
        return self.measured_step_s or (self.predicted.step_time_s if self.predicted else None)

    @property
    def slower_by(self) -> float | None:
        """Share by which the job, as measured or else as predicted, is slower than the best.

        None where a measurement is not of the job that the best plan is for, or is of a first step alone, or
        where a job that is only predicted cannot run as it is taken.
        """
        runs = self.measured_step_s is not None or (self.fits is not False and not self.cannot_run_as_taken)
        if self.best is None or self.step_time_s is None or not runs:
            return None
        if self.measured_step_s is not None and not self.is_measured_possible:
            return None
        if self.residual is not None and self.residual.says_nothing:
            return None
        return self.step_time_s / self.best.estimate.step_time_s - 1

    @property
    def outruns_what_fits(self) -> bool:
        """Whether the job, as predicted, is faster than a best that fits, and does not surely fit itself.

        It says nothing against the best: what is taken for speed is memory that may not be there.
        """
        if self.best is None or self.slower_by is None or self.basis == "measured" or self.fits is not None:
            return False
        return self.slower_by < 0 and fit_of(self.best.estimate.out_of_memory_chance) == "fits"

    @property
    def tied(self) -> bool:
        """Whether the model cannot tell the job from the best.

        A measured step lies within the band of the best; a predicted one of the same engine and cluster
        shares the best's level, so that only the difference of two layouts is in doubt.
        """
        if self.best is None or self.slower_by is None or self.outruns_what_fits:
            return False
        best = self.best.estimate
        if self.measured_step_s is not None:
            return best.lower_s <= self.measured_step_s <= best.upper_s
        return 1 / tie_ratio() <= 1 + self.slower_by <= tie_ratio()

    @property
    def is_best(self) -> bool:
        """Whether the files have the best plan itself, predicted as it is."""
        best = self.best
        is_same = best is not None and best.layout == self.job.layout and self.basis == "predicted"
        return is_same and self.slower_by is not None and abs(self.slower_by) < SAME_STEP

    @property
    def distance_note(self) -> str:
        """What the distance from the best means, where it is not time that the job loses; else empty."""
        if self.outruns_what_fits and self.memory is not None:
            return f"faster than any layout that surely fits, and {self.memory.word} itself"
        if self.is_best:
            return "the layout of the files is the best"
        if self.tied:
            return "a tie, the error band cannot tell them apart"
        return "faster than its band" if (self.slower_by or 0.0) < 0 else ""


def audited(reading: Reading, flags: Flags, cal: Calibration, asked: Flags | None = None) -> Audit:
    """Judge what files say.

    Args:
        reading: From `planner.audit.read.read_files`.
        flags: What holds beside them.
        cal: Kernel and collective tables.
        asked: What of the flags the user said of this job; all of them by default.
    """
    add_chunks(reading)
    asked = flags if asked is None else asked
    reading = without_whole_steps(with_published(reading))
    reading, flags = with_presumed(reading, flags, lambda files, job: estimate_of(files, job, cal))
    reading = given_by(reading, flags)
    doubts = list(reading.doubts)
    try:
        job = audited_job(reading, flags)
        job = replace(job, missing=without_presumable(reading, job.missing))
        cluster = build(job.request.cluster) if job.request else None
        findings = findings_of(reading, job, cluster)
    except InputError as impossible:
        if asked != Flags():
            raise
        job, cluster = Job(missing=(f"a possible job: {impossible.what}, {impossible.cause}",)), None
        findings = findings_of(reading, job, None)
    doubts += [*filter(None, (job.part,)), *job.assumed]
    now = None if stops(findings) else running_of(reading, job, cal)
    log, pace = reading.measured, measured_pace(reading, job)
    runs = log is not None and log.has_steps and not log.out_of_memory
    try:
        best = None if job.part else _best(reading, job.request, now, cal, runs=runs)
    except InputError as impossible:  # of the best plan alone: the job may run
        best = None
        doubts.append(f"no better plan is known: {impossible.what}: {impossible.cause}")
    slowed_by = tuple(finding.message.partition(":")[0] for finding in findings if finding.rule in SLOWING)
    residual = residual_of(reading, now, flags, asked, pace, cal, slowed_by)
    peak = peak_residual_of(reading, job, now, flags, asked, cal)
    if peak is not None and residual is not None and residual.is_explained:
        residual = None  # a band of another job explains nothing
    refuted = peak is not None or (residual is not None and residual.refutes)
    refuted |= any(finding.rule == OTHER_WORK for finding in findings)
    proposed = changes_of(reading, now, best, runs=runs) if now and not refuted and not job.part else ()
    legal = () if now is None else legal_changes(reading, now, proposed, flags, cal)
    changes = tuple(sorted(legal, key=lambda change: (not change.whole, -change.seconds_gained)))
    memory = memory_verdict(
        log,
        job,
        now.estimate if now else None,
        _leanest(now, job),
        cluster.gpu.memory_bytes if cluster else math.inf,
    )
    return Audit(
        reading=with_priced_facts(reading, job), job=job, findings=findings,
        predicted=now.estimate if now else None, best=best, changes=changes,
        proof=_proof(best, now) if best else "",
        doubts=tuple(dict.fromkeys(doubts)), residual=residual, peak=peak, memory=memory,
        memory_level=now.memory_level if now else 1.0,
        measured_step_s=pace.step_s if pace else None, measured_from=pace.from_rate if pace else "",
    )  # fmt: skip


def estimate_of(reading: Reading, job: Job, cal: Calibration) -> Estimate | None:
    """What a job takes as its files have it; None where its layout is not known."""
    now = running_of(reading, job, cal)
    return None if now is None else now.estimate


def audited_texts(texts: Mapping[str, str], rest: Flags, given: Mapping[str, str] | None = None) -> Audit:
    """Judge texts that were sent: nothing that they name is opened.

    Args:
        texts: By name.
        rest: What holds where the texts say nothing: model, GPUs, sequence length.
        given: Variables of the environment that scripts read.
    """
    reading = with_published(read_texts(texts, given))
    flags = Flags(gpu=None if len(reading.gpus) == 1 else rest.gpu)
    missing = audited_job(reading, flags).missing
    for flag, name in (("--model", "model"), ("--gpus", "gpus"), ("--sequence-length", "sequence_length")):
        value = getattr(rest, name)
        if flag in missing and value is not None:
            model_flag: dict[str, str] = {name: value}
            flags = replace(flags, **model_flag)  # type: ignore[arg-type]  # all three are texts
            reading.doubts.append(f"{name.replace('_', ' ')} {value}, of the question here: no file says it")
    return audited(reading, flags, calibration_of(reading, flags), asked=Flags())


def calibration_of(reading: Reading, flags: Flags) -> Calibration:
    """Tables of the cluster that files and flags mean."""
    try:
        request = audited_job(with_published(reading), flags).request
    except InputError:
        request = None
    return calibration_for(request.cluster) if request is not None else load_calibration()


def stack_level_of_log(audit: Audit, name: str) -> StackLevel:
    """What a log says of its engine's speed here: measured over predicted.

    Raises:
        InputError: Nothing was measured or priced, or both are so far apart that they are not of one job.
    """
    measured, predicted, request = audit.measured_step_s, audit.predicted, audit.job.request
    if measured is None or predicted is None or request is None:
        unknown = f"missing: {', '.join(audit.job.missing) or 'a legal job'}"
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
    level = stack_level(request.stack, [MeasuredStep(ratio, doubts, _part_shares(audit))])
    return replace(level, name=name)


def _part_shares(audit: Audit) -> tuple[float, ...]:
    """How far the step of a job follows each part of it, as its files have it."""
    now = running_of(audit.reading, audit.job, load_calibration())
    if now is None:
        return ()
    case = replace(now.problem.case, stack=now.stack)
    return tuple(part_shares(case, LayoutTable.from_rows([now.layout]))[:, 0].tolist())


def measured_step_s(reading: Reading, job: Job) -> float | None:
    """A step that a log prints, or that its rates mean for the job."""
    pace = measured_pace(reading, job)
    return None if pace is None else pace.step_s


def measured_pace(reading: Reading, job: Job) -> Pace | None:
    """A step that a log prints, or that its rates mean for the job, whoever said what a step is.

    Args:
        reading: What the files say.
        job: With what flags add; where something of it is missing, the facts of the files count.
    """
    if reading.measured is None:
        return None
    if job.request is not None:
        work = work_of_step(job.request)
        if job.layout is not None:
            work = replace(work, microbatches=num_microbatches(job.layout, job.request.job))
        return reading.measured.pace(work)
    facts = reading.facts
    batch, length = facts.count("job.global_batch_size"), facts.count("job.sequence_length")
    tokens = float(batch * length) if batch and length else None
    return reading.measured.pace(
        Work(gpus=facts.count("cluster.num_gpus"), tokens=tokens, samples=batch and float(batch))
    )


MOST_SEARCHES = 5
"""Of a best plan whose formats take more memory than those that are searched with."""
ROUNDING = 1e-6
"""Share by which two sums of one memory may differ."""
LEAST_VOCABULARY = 256
"""Tokens of the smallest vocabulary that there is, that of bytes."""
_VOCABULARY = "model.vocab_size"
SAME_STEP = 5e-4
"""Share below which two steps are written alike, in percent with one decimal."""


def _leanest(now: Running | None, job: Job) -> Estimate | None:
    """The job with every unsettled setting at its leanest; None where nothing bounds that."""
    if now is None or not job.unsettled:
        return now.estimate if now else None
    layout = with_leanest(now.layout, (field for field in job.unsettled if field.field != _VOCABULARY))
    if layout is None:
        return None
    problem = now.problem
    model = problem.model
    if any(field.field == _VOCABULARY for field in job.unsettled):
        model = replace(model, vocab_size=min(model.vocab_size, LEAST_VOCABULARY * layout.tp))
    split = now.split
    if layout != now.layout:
        runs = [run.count for run in layer_runs(model)]
        split = even_split(runs, layout, layer_order(model), problem.job.mtp_layers)
    return estimate(replace(problem.case, model=model, stack=now.stack), layout, split)


def _best(
    reading: Reading, request: PlanRequest | None, now: Running | None, cal: Calibration, *, runs: bool
) -> Plan | None:
    """The best plan of the same engine on the cluster, with every switch of the files that is no slower.

    What files state, and what an engine does without a word, a plan would be told otherwise: no word is
    advised that gains nothing, and no switch of the files is left out that gains time.
    """
    plan = _best_in_memory(request, now, cal, runs=runs)
    if plan is None or now is None or request is None:
        return plan
    theirs = dict(_switches_of_files(reading, request, now, _stack_as_trained(plan, now)))
    for switched in (_no_slower(theirs, plan, now), theirs):
        if not switched or (switched is theirs and not _is_outrun(plan, now, runs=runs)):
            continue
        asked = replace(request, switches={**request.switches, **switched})
        other = _best_in_memory(asked, now, cal, runs=runs)
        if other is not None and other.estimate.step_time_s <= plan.estimate.step_time_s:
            plan = other
    return plan


def _switches_of_files(
    reading: Reading, request: PlanRequest, now: Running, profile: SoftwareStack
) -> Iterator[tuple[str, str]]:
    """Switches that words or defaults of the files decide otherwise than a profile, by their value there."""
    names = {fact.name.partition(".")[2] for fact in switch_facts(reading, request)}
    if request.model.is_moe:
        names.add(EXPERT_SWITCH)
    for name in sorted(names - request.switches.keys()):
        theirs, planned = (value_in(stack, switches()[name]) for stack in (now.stack, profile))
        if theirs not in ("", planned) and has_words(request, name, theirs):
            yield name, theirs


def _no_slower(switched: Mapping[str, str], plan: Plan, now: Running) -> dict[str, str]:
    """Those of some switches with which the layout of a plan is no slower than with its profile."""
    split = split_of(plan.request.model, plan.layout, plan.layers_of_stage, plan.recompute_of_stage)
    profile, case = _stack_as_trained(plan, now), plan.problem.of(cal=now.problem.case.cal).case

    def step_s(name: str, value: str) -> float:
        stack = with_switches(profile, {name: value})
        return estimate(replace(case, stack=stack), plan.layout, split).step_time_s

    return {
        name: value for name, value in switched.items() if step_s(name, value) <= plan.estimate.step_time_s
    }


def _is_outrun(plan: Plan, now: Running, *, runs: bool) -> bool:
    """Whether a job that fits takes less than a plan."""
    fits = runs or fit_of(now.estimate.out_of_memory_chance) == "fits"
    return fits and now.estimate.step_time_s < plan.estimate.step_time_s


def _best_in_memory(
    request: PlanRequest | None, now: Running | None, cal: Calibration, *, runs: bool
) -> Plan | None:
    """The best plan in as much memory as `most_bytes` allows.

    Its request states that room where it is not a plan's own, so that its certificate is of it.
    """
    if request is None:
        return None
    if now is None:
        plan = search(request, cal)
        return plan if isinstance(plan, Plan) else None
    problem = now.problem
    most, capacity = most_bytes(problem, now, runs=runs), problem.cluster.gpu.memory_bytes
    room, asked = most, request
    for _ in range(MOST_SEARCHES):
        if room != problem.memory_budget_bytes:
            asked = replace(request, memory_headroom=1 - room / capacity)
        plan = search(asked, cal, or_tight=False)
        if not isinstance(plan, Plan) or plan.kind_of_stage:
            return plan if isinstance(plan, Plan) else None
        best = _with_numerics(plan, now)
        peak = best.estimate.peak_memory_bytes
        if peak <= most * (1 + ROUNDING):
            return replace(best, estimate=replace(best.estimate, out_of_memory_chance=now.chance_of(peak)))
        # The formats of the files take more than those of the profile: what was found is left out.
        room = plan.estimate.peak_memory_bytes * most / peak
    return None


def _proof(best: Plan, now: Running | None) -> str:
    """The certificate of a best plan with its room and formats, where those are not what a plan's are."""
    proof, free = best.optimality.status, best.request.memory_headroom
    room = "" if free is None else f" among layouts that leave {share_text(free)} % of memory free"
    if now is None or _stack_as_trained(best, now) == best.problem.stack:
        return f"{proof}{room}"
    split = split_of(best.request.model, best.layout, best.layers_of_stage, best.recompute_of_stage)
    searched = estimate(best.problem.of(cal=now.problem.case.cal).case, best.layout, split)
    takes = f", where it takes {format_bytes(searched.peak_memory_bytes)}" if room else ""
    return f"{proof}{room} in the formats of {best.request.stack}{takes}; priced in the file's"


def _stack_as_trained(best: Plan, now: Running) -> SoftwareStack:
    """The profile of a best plan with what the files train: dropout, and formats of gradients and states."""
    theirs = {name: value for name, value in stack_facts(now.stack).items() if is_numeric(name)}
    return stack_with(best.problem.stack, theirs)


def _with_numerics(best: Plan, now: Running) -> Plan:
    """The best plan priced with what the files train."""
    problem, stack = best.problem.of(cal=now.problem.case.cal), _stack_as_trained(best, now)
    if stack == problem.stack:
        return best
    split = split_of(best.request.model, best.layout, best.layers_of_stage, best.recompute_of_stage)
    priced = estimate(replace(problem.case, stack=stack), best.layout, split)
    return replace(best, estimate=priced)
