"""Check a plan's claims on this machine, one verdict each, with a rank on a GPU if there is one.

Counting and tracing run in processes of their own, so that a fake process group never meets a real one.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import torch

from costmodel.layout import AXIS_FIELDS, PLAIN_SCHEDULE, num_microbatches
from costmodel.models.spec import with_layers
from costmodel.updates.compression import Compression, parse_compression
from executor.bench.local_ranks import RankError
from executor.model.layer_limits import check_layers
from executor.model.products.formats import EightBits, eight_bits_of
from executor.training.optimizer import OptimizerSettings
from executor.validation.expected_counts import STACK, Term, compare_counts
from executor.validation.fake_rank import RankTask
from executor.validation.layer_times import layer_time
from executor.validation.memory_trace import (
    StageMemory,
    chosen_stages,
    estimated_memory,
    traced_memory,
    traces_of,
)
from executor.validation.memory_verdict import worst_memory
from executor.validation.one_rank import measure_rank
from executor.validation.progress import Progress, results
from executor.validation.reference import (
    Difference,
    Outcome,
    ReferenceJob,
    outcome_difference,
    run_layout,
    run_reference,
)
from executor.validation.report import Check, Numerics, RankMeasurement, StageTerm, ValidationReport, Verdict
from executor.validation.shrink import small_case
from planner.engines.meshplan import MESHPLAN
from planner.plan import FREE, Plan
from topology.base.errors import InputError
from topology.base.units import format_bytes, format_seconds
from topology.hardware.device_names import gpu_of_device
from topology.pools.kinds import kinds_of

NUMERIC_TOLERANCE = 1e-5
EIGHT_BITS_LOSS, EIGHT_BITS_GRADIENTS = 1e-2, 0.1
"""The same in eight bits: a value that another order of sums pushes across a boundary moves by a sixteenth,
and what comes after it rounds otherwise. Gradients then differ as much as eight bits do from sixteen."""
COUNTED_LAYERS = 2  # per stage: one of each kind
COUNTED_MICROBATCHES = 2
PROCESSES = 2
NUMERICS_TIMEOUT_S = 300.0
TRACE_STEP_S = 0.4  # a layer of a microbatch, traced on a core that others use too

Say = Callable[[str], None]
Alive = Callable[[float], None]

COUNTING, TRACING, TRAINING, MEASURING = (
    "counting FLOPs, messages and bytes",
    "tracing the memory of full-size ranks",
    "training the shrunk plan beside one process",
    "running ranks on this GPU",
)
ORDER = ("rules", "counts", "memory", "memory of the twin", "headroom", "numerics", "launch", "layer time",
         "step time")  # fmt: skip


def validate(plan: Plan, planned: Sequence[Check], say: Say) -> ValidationReport:
    """Run every check; `planned` are the planner's verdicts, `say` hears every few seconds how far it is."""
    if any(check.name == "rules" and check.verdict == "does not hold" for check in planned):
        return ValidationReport(checks=tuple(planned))
    check_layers(plan.request.model)
    progress = Progress(say, expected_parts_s(plan))
    progress.begin(COUNTING)
    counts, terms = check_counts(plan, progress.alive)
    progress.begin(TRACING)
    traced, memory = check_traced_memory(plan, progress.alive)
    progress.begin(TRAINING)
    trained, numerics = check_numerics(plan, progress.alive)
    if torch.cuda.is_available():
        progress.begin(MEASURING)
    on_gpu, measured = check_gpu(plan, progress.alive)
    timed = (layer_time(plan, task_of(plan), on_planned_gpu(plan, measured)), step_time_check(plan, measured))
    checks = (*planned, counts, *traced, trained, *timed)
    return ValidationReport(
        checks=(*sorted(checks, key=lambda check: ORDER.index(check.name)), on_gpu),
        scope=scope_of(plan),
        terms=terms,
        memory=memory,
        numerics=numerics,
        measured=measured,
    )


def expected_parts_s(plan: Plan) -> dict[str, float]:
    """About how long each part takes on a core, seconds: for telling how much is left."""
    task = task_of(plan)
    stages = chosen_stages(plan.layout.pp)
    traces = [each for stage in stages for each in traces_of(replace(task, stage=stage))]
    steps = sum(sum(each.layers_of_stage) // plan.layout.pp * each.num_microbatches for each in traces)
    gpu_s = 20.0 * len(stages) if torch.cuda.is_available() else 0.0
    traced_s = 3.0 * len(traces) + TRACE_STEP_S * steps
    return {COUNTING: 10.0, TRACING: traced_s / PROCESSES, TRAINING: 6.0, MEASURING: gpu_s}


def is_for_executor(plan: Plan) -> bool:
    """Whether a plan is for, and priced as, the executor that is asked here."""
    return plan.request.stack == STACK and plan.request.engine in (MESHPLAN.engine, FREE)


def scope_of(plan: Plan) -> str:
    """What the executor's twin of another engine's plan shows, and what it does not; empty for its own."""
    if is_for_executor(plan):
        return ""
    engine, stack, count = plan.request.engine, plan.request.stack, plan.request.job.mtp_layers
    who = f"no engine in particular ({stack})" if engine == FREE else f"{engine} ({stack})"
    return (
        f"the plan is for {who}; what ran here is its twin, the same layout in Meshplan's executor. "
        "Proven of the twin: FLOPs, messages and bytes, memory, and that the layout computes what one "
        "process does. Not proven: the engine's own memory, kernels, overlap, numerics and step time"
        + (f"; the {count} modules that predict further tokens, which the twin has not" if count else "")
    )


def task_of(plan: Plan) -> RankTask:
    """The first pipeline rank of a plan; what its model computes beyond its sizes is not asked here."""
    request, layout = plan.request, plan.layout
    return RankTask(
        spec=replace(request.model, unmodelled=()),
        layout=layout,
        sequence_length=request.job.sequence_length,
        num_microbatches=num_microbatches(layout, request.job),
        layers_of_stage=plan.layers_of_stage,
        recompute_of_stage=plan.recompute_of_stage,
        stage=0,
        optimizer=request.job.optimizer,
        adapter=request.job.adapter,
        eight_bits=eight_bits_of(request.job.precision) if is_for_executor(plan) else _of_twin(plan),
        compression=request.job.gradient_compression,
    )


def _of_twin(plan: Plan) -> EightBits | None:
    """Eight bits in which another engine's twin multiplies: by rows, which have no sides that they need."""
    return "fp8" if plan.request.job.precision == "fp8" else None


def counting_tasks(task: RankTask) -> tuple[RankTask, ...]:
    """First and last stage at full width with few layers and microbatches: counts per layer are exact."""
    layout = replace(task.layout, virtual_stages=1, schedule=PLAIN_SCHEDULE)
    split = (COUNTED_LAYERS,) * layout.pp
    spec = with_layers(task.spec, sum(split), min(task.spec.num_dense_layers, 1))
    small = replace(
        task,
        spec=spec,
        layout=layout,
        layers_of_stage=split,
        recompute_of_stage=(0,) * layout.pp,
        num_microbatches=COUNTED_MICROBATCHES,
    )
    return tuple(replace(small, stage=stage) for stage in sorted({0, layout.pp - 1}))


def check_counts(plan: Plan, alive: Alive = lambda _: None) -> tuple[Check, tuple[StageTerm, ...]]:
    """Compare every count of the first and last stage with the cost model's."""
    start, tasks = time.monotonic(), counting_tasks(task_of(plan))
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("fork")) as pool:
        compared = results([pool.submit(_compare_alone, task) for task in tasks], alive)
    terms = tuple(
        StageTerm(stage=task.stage, term=term)
        for task, of_stage in zip(tasks, compared, strict=True)
        for term in of_stage
    )
    unequal = [entry for entry in terms if not entry.term.equal]
    detail = f"{len(terms)} numbers of {len(tasks)} stages equal the cost model's"
    if unequal:
        first = unequal[0]
        detail = (
            f"{len(unequal)} of {len(terms)} numbers differ; stage {first.stage}, {first.term.name}: "
            f"cost model {first.term.expected}, executor {first.term.measured}"
        )
    return _check("counts", not unequal, detail, start, len(unequal), "numbers that differ"), terms


def _compare_alone(task: RankTask) -> tuple[Term, ...]:
    """Count in a forked process."""
    torch.set_num_threads(1)
    return compare_counts(task)


def check_traced_memory(
    plan: Plan, alive: Alive = lambda _: None
) -> tuple[tuple[Check, ...], tuple[StageMemory, ...]]:
    """Trace first, middle and last stage and compare each peak with the plan's estimate, or the twin's."""
    start = time.monotonic()
    stages = chosen_stages(plan.layout.pp)
    batch = plan.request.job.global_batch_size
    stage_memories = traced_memory(task_of(plan), batch, stages, processes=PROCESSES, alive=alive)
    return judged_memory(plan, stage_memories, start)


def judged_memory(
    plan: Plan, traced: Sequence[StageMemory], start: float
) -> tuple[tuple[Check, ...], tuple[StageMemory, ...]]:
    """The verdict on the plan's own estimate; of another engine's only the twin's can be traced."""
    by_executor = is_for_executor(plan)
    of_plan = plan.estimate.memory_by_stage
    stage_memories = tuple(
        replace(stage, estimate=of_plan[stage.stage]) if by_executor else stage for stage in traced
    )
    at, verdict, small = worst_memory(
        [(each.estimate.allocated_bytes, each.peak_bytes) for each in stage_memories]
    )
    worst = stage_memories[at]
    detail = (
        f"{'estimated by the plan' if by_executor else 'estimated for the twin'} "
        f"{format_bytes(worst.estimate.allocated_bytes)}, traced {format_bytes(worst.peak_bytes)}, "
        f"{worst.error:+.1%}: the largest difference of pipeline ranks "
        f"{', '.join(str(stage.stage) for stage in stage_memories)}, at {worst.stage}{small}"
    )
    name = "memory" if by_executor else "memory of the twin"
    traced_check = _check(name, verdict, detail, start, worst.error, "relative difference")
    if by_executor:
        return (traced_check,), stage_memories
    peak = plan.estimate.peak_memory_bytes
    unseen = Check(
        name="memory",
        verdict="not checked here",
        detail=f"the plan's own {format_bytes(peak)} is of {plan.request.stack}, which is not run here",
        value=peak,
        unit="B",
    )
    return (unseen, traced_check), stage_memories


def check_numerics(plan: Plan, alive: Alive = lambda _: None) -> tuple[Check, Numerics | None]:
    """Train the shrunk plan and one process side by side, in fp32; once more as it rounds, where it does."""
    start, case = time.monotonic(), small_case(plan)
    whole, eight_bits = replace(case, compression=None), task_of(plan).eight_bits
    try:
        first, exact = _difference(whole, alive)
        narrow = [_eight_bits(replace(whole, eight_bits=eight_bits), alive)] if eight_bits else []
        narrow += [] if case.compression is None else [_compressed(case, exact, alive)]
    except (RankError, InputError) as error:
        reason = next(line for line in str(error).splitlines() if line)
        return _check("numerics", False, f"the shrunk plan does not run: {reason}", start), None  # noqa: FBT003
    layout = case.layout
    degrees = " ".join(
        f"{axis}={getattr(layout, axis)}"
        for axis in (*AXIS_FIELDS, "virtual_stages")
        if getattr(layout, axis) > 1
    )
    numerics = Numerics(
        layout=f"{degrees or 'one rank'} {layout.schedule} ZeRO-{layout.zero_stage}",
        ranks=layout.num_gpus,
        steps=case.steps,
        loss=first.loss,
        gradient=first.gradient,
        worst=first.worst,
    )
    largest = max(first.loss, first.gradient)
    text = f"loss within {first.loss:.1e}, gradients within {first.gradient:.1e}"
    detail = (
        f"{numerics.layout} over {numerics.steps} steps: {'; '.join((text, *(each for each, _ in narrow)))}"
    )
    detail = f"{detail} (worst {numerics.worst})"
    good = largest <= NUMERIC_TOLERANCE and all(holds for _, holds in narrow)
    return _check("numerics", good, detail, start, largest, "relative difference"), numerics


def _eight_bits(case: ReferenceJob, alive: Alive) -> tuple[str, bool]:
    """How far the layout is from one process where both multiply in eight bits, and whether that is near."""
    difference, _ = _difference(case, alive)
    eight_bits = (
        f"in eight bits loss within {difference.loss:.1e}, gradients within {difference.gradient:.1e}"
    )
    return eight_bits, difference.loss <= EIGHT_BITS_LOSS and difference.gradient <= EIGHT_BITS_GRADIENTS


def _compressed(case: ReferenceJob, whole: Outcome, alive: Alive) -> tuple[str, bool]:
    """The same of compressed gradients; `whole` is what one process computes without."""
    difference, narrow = _difference(case, alive)
    bound = compressed_tolerance(
        parse_compression(case.compression or ""), outcome_difference(whole, narrow).together
    )
    compressed = (
        f"gradients as {case.compression} loss within {difference.loss:.1e}, gradients within "
        f"{difference.together:.1e} of {bound:.1e}"
    )
    return compressed, difference.loss <= NUMERIC_TOLERANCE and difference.together <= bound


def compressed_tolerance(how: Compression, lost: float) -> float:
    """How far gradients may be that replicas compress: factors as whole ones, rounded values further.

        √(δ·u),  u = √12·lost

    Another order of sums moves a value by δ. It then crosses a boundary of values that lie u apart once in
    u/δ, and rounds to one that is u away: that is the root of the mean square. Rounding itself loses u/√12 of
    a value, which is measured here.

    Args:
        how: The compression.
        lost: Relative difference that it makes to all gradients as one vector, in one process.

    >>> round(compressed_tolerance(parse_compression("bf16"), 2.0**-7 / 12**0.5), 5)
    0.00028
    """
    return NUMERIC_TOLERANCE if how.factors else (NUMERIC_TOLERANCE * 12**0.5 * lost) ** 0.5


def _difference(case: ReferenceJob, alive: Alive) -> tuple[Difference, Outcome]:
    """How far a layout on forked ranks is from one process, and what that computes."""
    settings = OptimizerSettings(learning_rate=1e-2, warmup_steps=1, total_steps=10)
    outcome = run_layout(case, settings, timeout_s=NUMERICS_TIMEOUT_S, alive=lambda: alive(0.0))
    # Not in a thread: one that has just been joined may still give back MKL's memory, and ranks that are
    # forked then inherit its lock, held. One plan in five hung so where its twin is trained twice.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as beside:
        (reference,) = results([beside.submit(_reference_alone, case, settings)], alive)
    return outcome_difference(reference, outcome), reference


def _reference_alone(case: ReferenceJob, settings: OptimizerSettings) -> Outcome:
    """What one process computes, by one thread: those of the process that it was forked from are not here."""
    torch.set_num_threads(1)
    return run_reference(case, settings)


def check_gpu(plan: Plan, alive: Alive = lambda _: None) -> tuple[Check, tuple[RankMeasurement, ...]]:
    """Run the fullest traced rank with real kernels, where there is a GPU."""
    start = time.monotonic()
    if not torch.cuda.is_available():
        return Check(name="rank on a GPU", verdict="not checked here", detail="no GPU here"), ()
    task = task_of(plan)
    estimates = estimated_memory(task, plan.request.job.global_batch_size)
    stages = chosen_stages(plan.layout.pp)
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        tasks = [replace(task, stage=stage) for stage in stages]
        measured = tuple(
            replace(result, estimated_bytes=estimates[result.stage].allocated_bytes)
            for result in results([pool.submit(measure_rank, task) for task in tasks], alive)
        )
    at, verdict, small = worst_memory([(each.estimated_bytes, each.peak_bytes) for each in measured])
    worst = measured[at]
    detail = (
        f"stage {worst.stage} on {worst.gpu}: allocated {format_bytes(worst.peak_bytes)}, estimated "
        f"{format_bytes(worst.estimated_bytes)}; forward {format_seconds(worst.forward_s)}, "
        f"backward {format_seconds(worst.backward_s)}{small}"
    )
    error = worst.estimated_bytes / worst.peak_bytes - 1
    return _check("rank on a GPU", verdict, detail, start, error, "relative difference"), measured


def step_time_check(plan: Plan, measured: Sequence[RankMeasurement]) -> Check:
    """Whether computation alone, measured on the plan's GPU, takes longer than the plan's slowest step.

    A rank alone shows neither messages, nor overlap, nor bubbles: it can refute a step time, not prove it.
    """
    now, planned = plan.estimate, ", ".join(dict.fromkeys(gpu_names_of_stages(plan)))
    promised = f"predicted {format_seconds(now.step_time_s)}, at most {format_seconds(now.upper_s)}"
    there = on_planned_gpu(plan, measured)
    if not there:
        reason = "no rank ran on such a GPU here" if is_for_executor(plan) else "another engine's step"
        detail = f"{promised} on {planned}; {reason}"
        return Check(
            name="step time", verdict="not checked here", detail=detail, value=now.step_time_s, unit="s"
        )
    chunks = num_microbatches(plan.layout, plan.request.job) * plan.layout.virtual_stages
    least_s = max(chunks * (measured.forward_s + measured.backward_s) for measured in there)
    detail = (
        f"{promised}; measured {format_seconds(least_s)} of computation alone, without messages and bubbles"
    )
    verdict: Verdict = "does not hold" if least_s > now.upper_s else "not checked here"
    return Check(name="step time", verdict=verdict, detail=detail, value=least_s, unit="s")


def gpu_names_of_stages(plan: Plan) -> tuple[str, ...]:
    """Name of the GPU of each stage; where nodes differ and are planned for alike, that of the first."""
    kinds = kinds_of(plan.request.cluster)
    return tuple(kinds[kind].gpu for kind in plan.kind_of_stage or (0,) * plan.layout.pp)


def on_planned_gpu(plan: Plan, measured: Sequence[RankMeasurement]) -> list[RankMeasurement]:
    """Ranks that ran on the GPU of their stage, of a plan of the executor's own."""
    kinds = gpu_names_of_stages(plan)
    return [item for item in measured if is_for_executor(plan) and _is_gpu(item, kinds[item.stage])]


def _is_gpu(measured: RankMeasurement, planned: str) -> bool:
    """Whether a rank ran on the plan's GPU."""
    try:
        return gpu_of_device(measured.gpu, measured.gpu_memory_bytes) == planned
    except InputError:
        return False


def _check(
    name: str, good: bool | Verdict, detail: str, start: float, value: float | None = None, unit: str = ""
) -> Check:
    """Finish a check that began at `start`."""
    return Check(
        name=name,
        verdict=good if isinstance(good, str) else "holds" if good else "does not hold",
        detail=detail,
        value=value,
        unit=unit,
        seconds=time.monotonic() - start,
    )
