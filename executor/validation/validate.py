"""Check a plan on this machine: exact counts, memory of real ranks, numerics, and a rank on a GPU if any.

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
from executor.bench.local_ranks import RankError
from executor.training.optimizer import OptimizerSettings
from executor.validation.expected_counts import Term, compare_counts
from executor.validation.fake_rank import RankTask
from executor.validation.memory_trace import StageMemory, chosen_stages, estimated_memory, traced_memory
from executor.validation.one_rank import measure_rank
from executor.validation.reference import compare, run_layout, run_reference
from executor.validation.report import Check, Numerics, RankMeasurement, StageTerm, ValidationReport
from executor.validation.shrink import small_case
from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.units import format_bytes, format_seconds

MEMORY_TOLERANCE = 0.05
NUMERIC_TOLERANCE = 1e-5
COUNTED_LAYERS = 2  # per stage: one of each kind
COUNTED_MICROBATCHES = 2
PROCESSES = 2
NUMERICS_TIMEOUT_S = 300.0

Say = Callable[[str], None]


def validate(plan: Plan, rules: Check, say: Say) -> ValidationReport:
    """Run every check; `rules` is the planner's verdict, `say` is told what begins."""
    if rules.status == "failed":
        return ValidationReport(checks=(rules,))
    say("counting FLOPs, messages and bytes")
    counts, terms = check_counts(plan)
    say("tracing the memory of full-size ranks")
    traced, memory = check_traced_memory(plan)
    say("training the shrunk plan beside one process")
    trained, numerics = check_numerics(plan)
    on_gpu, measured = check_gpu(plan)
    return ValidationReport(
        checks=(rules, counts, traced, trained, on_gpu),
        terms=terms,
        memory=memory,
        numerics=numerics,
        measured=measured,
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
    )


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


def check_counts(plan: Plan) -> tuple[Check, tuple[StageTerm, ...]]:
    """Compare every count of the first and last stage with the cost model's."""
    start, tasks = time.monotonic(), counting_tasks(task_of(plan))
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("fork")) as pool:
        results: Sequence[Sequence[Term]] = list(pool.map(_compare_alone, tasks))
    terms = tuple(
        StageTerm(stage=task.stage, term=term)
        for task, of_stage in zip(tasks, results, strict=True)
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
    return _check("exact counts", not unequal, detail, start), terms


def _compare_alone(task: RankTask) -> tuple[Term, ...]:
    """Count in a forked process."""
    torch.set_num_threads(1)
    return compare_counts(task)


def check_traced_memory(plan: Plan) -> tuple[Check, tuple[StageMemory, ...]]:
    """Trace first, middle and last stage and compare each peak with its estimate."""
    start = time.monotonic()
    stages = chosen_stages(plan.layout.pp)
    batch = plan.request.job.global_batch_size
    found = traced_memory(task_of(plan), batch, stages, processes=PROCESSES)
    worst = max(found, key=lambda stage: abs(stage.error))
    detail = (
        f"stages {', '.join(str(stage) for stage in stages)}: largest difference {worst.error:+.1%} "
        f"(stage {worst.stage}, estimated {format_bytes(worst.estimate.allocated_bytes)}, "
        f"traced {format_bytes(worst.peak_bytes)})"
    )
    return _check("memory of ranks", abs(worst.error) <= MEMORY_TOLERANCE, detail, start), found


def check_numerics(plan: Plan) -> tuple[Check, Numerics | None]:
    """Train the shrunk plan and one process side by side, in fp32."""
    start, case = time.monotonic(), small_case(plan)
    settings = OptimizerSettings(learning_rate=1e-2, warmup_steps=1, total_steps=10)
    try:
        outcome = run_layout(case, settings, timeout_s=NUMERICS_TIMEOUT_S)
    except (RankError, InputError) as error:
        reason = next(line for line in str(error).splitlines() if line)
        return _check("numerics", False, f"the shrunk plan does not run: {reason}", start), None  # noqa: FBT003
    difference = compare(run_reference(case, settings), outcome)
    layout = case.layout
    degrees = " ".join(
        f"{axis}={getattr(layout, axis)}"
        for axis in (*AXIS_FIELDS, "virtual_stages")
        if getattr(layout, axis) > 1
    )
    found = Numerics(
        layout=f"{degrees or 'one rank'} {layout.schedule} ZeRO-{layout.zero_stage}",
        ranks=layout.num_gpus,
        steps=case.steps,
        loss=difference.loss,
        gradient=difference.gradient,
        worst=difference.worst,
    )
    good = max(difference.loss, difference.gradient) <= NUMERIC_TOLERANCE
    detail = (
        f"{found.layout} over {found.steps} steps: loss within {found.loss:.1e}, "
        f"gradients within {found.gradient:.1e} (worst {found.worst})"
    )
    return _check("numerics", good, detail, start), found


def check_gpu(plan: Plan) -> tuple[Check, tuple[RankMeasurement, ...]]:
    """Run the fullest traced rank with real kernels, where there is a GPU."""
    start = time.monotonic()
    if not torch.cuda.is_available():
        return Check(name="rank on a GPU", status="skipped", detail="no GPU here"), ()
    task = task_of(plan)
    estimates = estimated_memory(task, plan.request.job.global_batch_size)
    stages = chosen_stages(plan.layout.pp)
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        tasks = [replace(task, stage=stage) for stage in stages]
        measured = tuple(
            replace(found, estimated_bytes=estimates[found.stage].allocated_bytes)
            for found in pool.map(measure_rank, tasks)
        )
    worst = max(measured, key=lambda m: abs(m.estimated_bytes / m.peak_bytes - 1))
    detail = (
        f"stage {worst.stage} on {worst.gpu}: allocated {format_bytes(worst.peak_bytes)}, estimated "
        f"{format_bytes(worst.estimated_bytes)}; forward {format_seconds(worst.forward_s)}, "
        f"backward {format_seconds(worst.backward_s)}"
    )
    good = abs(worst.estimated_bytes / worst.peak_bytes - 1) <= MEMORY_TOLERANCE
    return _check("rank on a GPU", good, detail, start), measured


def _check(name: str, good: bool, detail: str, start: float) -> Check:
    """Finish a check that began at `start`."""
    return Check(
        name=name, status="passed" if good else "failed", detail=detail, seconds=time.monotonic() - start
    )
