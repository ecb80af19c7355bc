"""Peak memory of a rank of the full-size plan, traced with fake tensors, beside the cost model's estimate.

Cost grows with layers × microbatches, so deep stages are traced at two smaller depths and many microbatches
at as many as the schedule keeps in flight. Both are exact: the peak of a stage is linear in its layers of one
kind once what FSDP gathers ahead is there, and a pipeline in its steady state repeats itself.

Legend: ``P`` pipeline ranks, ``V`` virtual stages of a rank, ``M`` microbatches.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import torch

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.stage import MemoryBreakdown, memory_by_stage
from costmodel.models.spec import ModelSpec, with_layers
from costmodel.pipeline.derived import settles_after
from costmodel.stack import stack
from executor.parallel.programs import stages_of_rank
from executor.torch_internals.compiler import preload
from executor.torch_internals.fakes import local_tensor
from executor.torch_internals.sharded import gathered_weights, sharded_parameters, stored_gradients
from executor.validation.expected_counts import STACK, layers_of_runs
from executor.validation.fake_rank import FakeRank, RankTask, fake_rank
from executor.validation.peak_tracker import PeakTracker
from executor.validation.progress import results


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Peak of one pipeline rank: as traced, and as estimated for the executor's own stack, bytes.

    What is alive at the peak, by purpose; a peak early in a step finds fewer gradients than are kept later.
    """

    stage: int
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    kept_gradients_bytes: float
    peak_bytes: float
    estimate: MemoryBreakdown
    extrapolated: bool

    @property
    def error(self) -> float:
        """(estimate − traced) / traced, of what the allocator hands out."""
        return self.estimate.allocated_bytes / self.peak_bytes - 1


def chosen_stages(pp: int) -> tuple[int, ...]:
    """First, middle and last pipeline rank.

    >>> chosen_stages(1), chosen_stages(2), chosen_stages(8)
    ((0,), (0, 1), (0, 4, 7))
    """
    return tuple(sorted({0, pp // 2, pp - 1}))


def traced_memory(
    task: RankTask,
    global_batch_size: int,
    stages: Sequence[int],
    *,
    processes: int = 2,
    alive: Callable[[float], None] = lambda _: None,
) -> tuple[StageMemory, ...]:
    """Trace stages in so many processes, the estimate beside each; `alive` hears the share done.

    One process is this one; more are forked from it, and their shares are told while they work.
    """
    estimates = estimated_memory(task, global_batch_size)
    of_stage = [traces_of(replace(task, stage=stage)) for stage in stages]
    peaks = iter(_peaks([each for tasks in of_stage for each in tasks], processes, alive))
    traced = [
        extrapolate(replace(task, stage=stage), [next(peaks) for _ in tasks])
        for stage, tasks in zip(stages, of_stage, strict=True)
    ]
    return tuple(
        StageMemory(
            stage=stage,
            **{f"{traced}_bytes": float(values.get(traced, 0.0)) for traced in _TRACED},
            peak_bytes=sum(values.get(purpose, 0.0) for purpose in _PURPOSES),
            estimate=estimates[stage],
            extrapolated=is_extrapolated(replace(task, stage=stage)),
        )
        for stage, values in zip(stages, traced, strict=True)
    )


def _peaks(
    tasks: Sequence[RankTask], processes: int, alive: Callable[[float], None]
) -> list[Mapping[str, float]]:
    """The peak of each task."""
    if processes == 1:
        return [peak(task) for task in tasks]
    preload()
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return results([pool.submit(peak, task) for task in tasks], alive)


_PURPOSES = ("weights", "gradients", "optimizer", "activations")
_TRACED = (*_PURPOSES, "kept_gradients")


def estimated_memory(task: RankTask, global_batch_size: int) -> tuple[MemoryBreakdown, ...]:
    """What the cost model says of every pipeline rank under the executor's own stack."""
    layout, spec = task.layout, task.spec
    job = TrainingJob(
        sequence_length=task.sequence_length,
        global_batch_size=global_batch_size,
        adapter=task.adapter,
        precision=task.eight_bits or "bf16",
        gradient_compression=task.compression,
    )
    rows = [layers_of_rank(spec, layout, task.layers_of_stage, rank) for rank in range(layout.pp)]
    recomputed = [
        recomputed_of_runs(row, count) for row, count in zip(rows, task.recompute_of_stage, strict=True)
    ]
    return memory_by_stage(Workload(model=spec, job=job, stack=stack(STACK)), layout, rows, recomputed)


def layers_of_rank(
    spec: ModelSpec, layout: ParallelLayout, layers_of_stage: Sequence[int], rank: int
) -> tuple[int, ...]:
    """Layers of each run on a pipeline rank, summed over its virtual stages."""
    mine = stages_of_rank(layout.schedule, layout.pp, layout.virtual_stages, rank)
    rows = [layers_of_runs(spec, layers_of_stage, stage) for stage in mine]
    return tuple(sum(column) for column in zip(*rows, strict=True))


def recomputed_of_runs(layers: Sequence[int], count: int) -> tuple[int, ...]:
    """Fully recomputed layers of each run when `count` are taken in model order.

    >>> recomputed_of_runs((3, 7), 5)
    (3, 2)
    """
    recomputed = []
    for available in layers:
        recomputed.append(min(count, available))
        count -= recomputed[-1]
    return tuple(recomputed)


def traces_of(task: RankTask) -> tuple[RankTask, ...]:
    """What to trace for a stage: itself, or the same stage at two depths when it is deep."""
    task = few_microbatches(task)
    if not is_extrapolated(task):
        return (task,)
    return _shallow(task, _few(task)), _shallow(task, _few(task) + 1)


def extrapolate(task: RankTask, peaks: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """Bytes by purpose of a stage from those of its `traces_of`."""
    if len(peaks) == 1:
        return peaks[0]
    low, high = peaks
    more = _layers(task) - _leading(task) - _few(task)
    return {traced: low[traced] + more * (high[traced] - low[traced]) for traced in _TRACED}


def _layers(task: RankTask) -> int:
    """Layers of the task's pipeline rank."""
    return sum(layers_of_rank(task.spec, task.layout, task.layers_of_stage, task.stage))


def few_microbatches(task: RankTask) -> RankTask:
    """As many microbatches as bring the stage to its steady state.

    Without a pipeline the first makes the gradients and the last reduces them: one between has all of them.
    """
    layout, M = task.layout, task.num_microbatches
    if layout.pp == 1:
        return replace(task, num_microbatches=min(M, 3 if layout.zero_stage < 3 else 2))
    enough = settles_after(layout.schedule, layout.pp, layout.virtual_stages, M, task.stage)
    return replace(task, num_microbatches=enough)


def is_extrapolated(task: RankTask) -> bool:
    """Whether a stage is too deep to trace whole; mixed stages (some recomputed) always are traced."""
    mixed = task.recompute_of_stage[task.stage] not in (0, _layers(task))
    deep = _layers(task) - _leading(task) > 2 * _few(task) + 1
    return deep and task.layout.virtual_stages == 1 and not mixed


def _few(task: RankTask) -> int:
    """Layers, beside leading dense ones, from which on each more adds the same: ZeRO-3 gathers one ahead."""
    return 3 if task.layout.zero_stage == 3 else 2


def _leading(task: RankTask) -> int:
    """Dense layers before those with experts on the task's pipeline rank."""
    if not (task.spec.is_moe and task.spec.num_dense_layers):
        return 0
    return layers_of_rank(task.spec, task.layout, task.layers_of_stage, task.stage)[0]


def _shallow(task: RankTask, depth: int) -> RankTask:
    """The same stage with fewer layers; the other stages have one each, leading dense layers stay."""
    leading = _leading(task)
    split = tuple(leading + depth if stage == task.stage else 1 for stage in range(task.layout.pp))
    recomputed = tuple(min(n, r) for n, r in zip(split, task.recompute_of_stage, strict=True))
    dense = task.stage + leading if leading else min(task.stage, task.spec.num_dense_layers)
    spec = with_layers(task.spec, sum(split), dense)
    return replace(task, spec=spec, layers_of_stage=split, recompute_of_stage=recomputed)


def peak(task: RankTask) -> Mapping[str, float]:
    """Bytes by purpose at the peak of the second step of a fake rank, and most bytes of kept gradients."""
    torch.set_num_threads(1)
    kept = 0
    with fake_rank(task) as rank:
        tracker = PeakTracker()
        with tracker:
            for stage in rank.pipeline.stages:
                for stored in stage.parameters:
                    tracker.mark((stored.detach(),), "optimizer" if stored.requires_grad else "weights")

            def mark() -> None:
                """Tell gathered weights and stored gradients from activations."""
                nonlocal kept
                kept = max(kept, _mark_state(rank, tracker))

            rank.pipeline.after_compute = mark
            rank.short_step()  # allocates what later steps find: optimizer state, FSDP's buffers
            tracker.mark(_optimizer_state(rank), "optimizer")
            tracker.forget_peak()
            rank.forward_backward()
            rank.update()
        result = {purpose: float(tracker.peak_by_purpose.get(purpose, 0)) for purpose in _PURPOSES}
        return {**result, "kept_gradients": float(kept)}


def _mark_state(rank: FakeRank, tracker: PeakTracker) -> int:
    """Tell gathered weights and stored gradients from activations; bytes of the gradients."""
    kept = 0
    for stage in rank.pipeline.stages:
        for record in sharded_parameters(stage.module):
            tracker.mark(gathered_weights(record), "weights")
            stored = stored_gradients(record)
            tracker.mark(stored, "gradients")
            kept += sum(local_tensor(gradient).nbytes for gradient in stored)
    return kept


def _optimizer_state(rank: FakeRank) -> list[torch.Tensor]:
    """What is kept of every parameter."""
    adam = [value for state in rank.optimizer.adamw.state.values() for value in state.values()]
    kept = [value for slot in rank.optimizer.slots for value in rank.optimizer.moments(slot).values()]
    replica = rank.pipeline.replica
    missed = [] if replica is None else [each.error for each in replica.compressor.kept.values()]
    return [value for value in (*adam, *kept, *missed) if isinstance(value, torch.Tensor)]
