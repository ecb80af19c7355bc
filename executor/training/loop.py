"""The training loop of one rank: from a plan and settings to finished steps, whatever happens on the way.

Everything that decides the numbers is a function of the step: data order, learning rate, initial values. A
run that was interrupted therefore continues as if it had not been, on the same layout or another.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from executor.comm.host_copies import scalar
from executor.data.ahead import Ahead, places_before, reading
from executor.parallel.device import device_memory_bytes, device_name, peak_memory_bytes
from executor.parallel.pipeline import run_step
from executor.torch_internals.annotations import annotated
from executor.training import batches
from executor.training.checkpoint import best_interval_steps
from executor.training.evaluation import held_out_loss
from executor.training.gradients import clip, finish_gradients, total_norm
from executor.training.metrics import StepMetrics
from executor.training.optimizer import learning_rate
from executor.training.settings import (
    STATUS_FILE,
    RunSettings,
    RunStatus,
    write_json,
)
from executor.training.trainer import Trainer
from topology.base.atomic import write_atomically
from topology.base.errors import InputError

FIRST_CHECKPOINT_STEPS = 20  # until the cost of a checkpoint is measured
MOST_CHECKPOINT_STEPS = 1000
ROUND_S = 10.0  # of waiting for text, after which ranks ask each other: well within the bound of a hang
FIRST_LINE_AFTER_S = 20.0
PROFILED_WALLS = 100
"""Steps whose seconds stand beside a profiled one, itself the last."""


class NotFiniteError(InputError):
    """The loss or its gradient stopped being a number."""


def train(trainer: Trainer, moved: Callable[[], None] = lambda: None) -> RunStatus:
    """Run the remaining steps; returns how the run ended. `moved` is told when all ranks are at a step."""
    manifest = trainer.resumed
    start = 0 if manifest is None else manifest.step
    _tell_start(trainer, start)
    every = trainer.settings.checkpoint_every or FIRST_CHECKPOINT_STEPS
    next_checkpoint = start + every
    step, trainer.behind = start, isinstance(trainer.source, Ahead)
    walls_s = deque[float](maxlen=PROFILED_WALLS)
    with _stop_on_sigterm(trainer), reading(trainer.source), _collected_by_step() as collect:
        while step < trainer.settings.steps:
            moved()
            collect(step)
            if trainer.behind and not _text_is_there(trainer, step, moved):
                break
            with _profiled(trainer, step, walls_s), trainer.patience("step"):
                metrics, stop = _train_step(trainer, step)
                walls_s.append(metrics.step_time_s)
            step += 1
            if trainer.reporter is not None:
                trainer.reporter.step(metrics)
            if stop or not _evaluated(trainer, step):
                break
            _warn(trainer, trainer.checkpointer.poll())
            if step >= next_checkpoint and step < trainer.settings.steps:
                began_s = time.perf_counter()
                _warn(trainer, _save(trainer, step))
                if trainer.reporter is not None:
                    trainer.reporter.saved(step, time.perf_counter() - began_s)
                next_checkpoint = step + _interval(trainer, metrics.step_time_s)
        _final_checkpoint(trainer, step)
    if trainer.reporter is not None:
        trainer.reporter.close()
    finished = step == trainer.settings.steps
    device = trainer.pipeline.device
    return RunStatus(
        state="finished" if finished else "stopped",
        step=step,
        device=device_name(device),
        device_memory_bytes=device_memory_bytes(device),
    )


def _tell_start(trainer: Trainer, start: int) -> None:
    """Say where a run goes on, and what of its checkpoints is not as it should be."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts != "0":
        trainer.say(f"a rank died: all are started again (time {restarts})")
    for step in trainer.damaged:
        trainer.say(f"checkpoint of step {step} is damaged, using an older one")
    if trainer.resumed is not None:
        trainer.say(f"resuming after step {start}, {trainer.resumed.samples} samples seen")
        if trainer.checkpointer.restored:
            trainer.say(trainer.checkpointer.restored)
    for name in trainer.unplaced:
        trainer.say(f"the checkpoint has no place in {name}: it is tokenized from its beginning to find it")


def _text_is_there(trainer: Trainer, step: int, moved: Callable[[], None]) -> bool:
    """Wait until every rank has read the step's text; False once any of them has been asked to stop.

    Ranks ask each other all the time, so that a place that is long looked for is no hang, and a rank that
    hangs still is one.
    """
    began_s, next_line_s = time.monotonic(), FIRST_LINE_AFTER_S
    while True:
        here = _reads_on(trainer, step, ROUND_S)
        waiting = torch.tensor((float(not here), float(trainer.stop_requested)))
        dist.all_reduce(waiting)
        moved()
        ranks, stops = waiting.tolist()
        if stops > 0 or not ranks:
            return not stops
        waited_s = time.monotonic() - began_s
        if waited_s >= next_line_s:
            next_line_s += waited_s
            trainer.say(
                f"{ranks:.0f} of {dist.get_world_size()} ranks still read text, for {waited_s:.0f} s now"
            )


def _reads_on(trainer: Trainer, step: int, seconds: float = 0.0) -> bool:
    """Whether this rank has what it reads of a step's text, after at most so long."""
    source = trainer.source
    wanted = batches.reads(trainer.pipeline, trainer.settings.document_end)
    return not (wanted and isinstance(source, Ahead)) or source.has(step, seconds)


def _train_step(trainer: Trainer, step: int) -> tuple[StepMetrics, bool]:
    """One optimizer step; also whether any rank has been asked to stop."""
    pipeline, job = trainer.pipeline, trainer.plan.request.job
    begin = time.perf_counter()
    samples = range(step * trainer.global_batch_size, (step + 1) * trainer.global_batch_size)
    with annotated("loader"):
        read = batches.read_microbatches(
            pipeline,
            trainer.source,
            samples,
            sequence_length=job.sequence_length,
            document_end=trainer.settings.document_end,
        )
    mean = batches.mean_loss(pipeline, job.tokens_per_step)
    share = run_step(pipeline, read.tokens, read.targets, mean, read.documents)
    with annotated("grad_sync"):
        finish_gradients(pipeline)
        norm = total_norm(pipeline)
    balances = [stage.balance.take() for stage in pipeline.stages if stage.balance is not None]
    values = [share / pipeline.layout.tp, sum(balances), float(trainer.stop_requested)]
    if isinstance(trainer.source, Ahead):  # on every rank or on none
        values.append(float(not _reads_on(trainer, step + 1)))
    shared = torch.stack([scalar(value, share) for value in values])
    dist.all_reduce(shared)
    # the one time in a step that the host waits for its device
    loss, router, stops, *behind, gradient_norm = torch.cat((shared, norm.view(1))).tolist()
    trainer.behind = sum(behind) > 0
    rate = learning_rate(trainer.schedule, step)
    if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
        raise NotFiniteError(
            what=f"training stopped at step {step + 1}: the loss is not finite",
            cause=f"loss {loss}, gradient norm {gradient_norm}, learning rate {rate:g}",
            fix=f"lower --learning-rate or check the data; {_kept_words(trainer)}",
        )
    with annotated("optimizer"):
        clip(pipeline, norm, trainer.schedule.clip_norm)
        trainer.optimizer.step(rate)
    seconds = time.perf_counter() - begin
    estimate = trainer.plan.estimate
    metrics = StepMetrics(
        step=step + 1,
        loss=loss,
        router_loss=router,
        gradient_norm=gradient_norm,
        learning_rate=rate,
        step_time_s=seconds,
        predicted_step_time_s=estimate.step_time_s,
        tokens_per_s=job.tokens_per_step / seconds,
        mfu=estimate.mfu * estimate.step_time_s / seconds,
        peak_memory_bytes=peak_memory_bytes(pipeline.device),
        samples=samples.stop,
    )
    return metrics, stops > 0


def _evaluated(trainer: Trainer, step: int) -> bool:
    """Evaluate when it is time; False once any rank has been asked to stop meanwhile."""
    if trainer.held_out is None or not trainer.held_out.due(step, trainer.settings.steps):
        return True
    with trainer.patience("evaluation"):
        evaluation = held_out_loss(
            trainer.pipeline,
            trainer.held_out,
            step=step,
            global_batch_size=trainer.global_batch_size,
            sequence_length=trainer.plan.request.job.sequence_length,
            document_end=trainer.settings.document_end,
            stop=lambda: trainer.stop_requested,
        )
    if evaluation is not None and trainer.reporter is not None:
        trainer.reporter.evaluation(evaluation)
    return evaluation is not None


def _interval(trainer: Trainer, step_s: float) -> int:
    """Steps until the next checkpoint: as asked, or what Young and Daly suggest for the measured cost."""
    if trainer.settings.checkpoint_every:
        return trainer.settings.checkpoint_every
    cost = trainer.checkpointer.write_s
    steps = FIRST_CHECKPOINT_STEPS
    if cost:
        best = best_interval_steps(step_s, cost, trainer.plan.layout.num_gpus, _gpu_of(trainer))
        steps = min(MOST_CHECKPOINT_STEPS, best)
    agreed = torch.tensor([steps])
    dist.broadcast(agreed, src=0, group=trainer.checkpointer.control)
    return int(agreed)


def _gpu_of(trainer: Trainer) -> str:
    """The kind of GPU that the plan is for, whose failures are published or not."""
    return trainer.plan.request.cluster.nodes[0].gpu


def _final_checkpoint(trainer: Trainer, step: int) -> None:
    """Write the last checkpoint and wait for it; failing now would lose work, so it is an error."""
    _warn(trainer, trainer.checkpointer.finish())
    if trainer.checkpointer.last_step == step:
        return
    _warn(trainer, _save(trainer, step))
    failure = trainer.checkpointer.finish()
    if failure is not None:
        raise InputError(
            what=f"the checkpoint after step {step} could not be written",
            cause=failure,
            fix=f"see that {trainer.checkpointer.root} can be written, with space, and start again; "
            f"{_kept_words(trainer)}",
        )


def _save(trainer: Trainer, step: int) -> str | None:
    """Start writing a checkpoint, and say where texts go on; why the one before failed, if it did."""
    places = places_before(trainer.source, step)
    return trainer.checkpointer.save(step, step * trainer.global_batch_size, places)


def _warn(trainer: Trainer, failure: str | None) -> None:
    """Say that a checkpoint failed; training goes on and tries again at the next interval."""
    if failure is not None:
        kept = _kept_words(trainer)
        trainer.say(
            f"warning: a checkpoint could not be written ({failure}); {kept}, and the next is tried on time"
        )


def _kept_words(trainer: Trainer) -> str:
    """Which checkpoint there is to go on from."""
    last = trainer.checkpointer.last_step
    return f"the one after step {last} is kept" if last >= 0 else "none is on the disk yet"


@contextlib.contextmanager
def _stop_on_sigterm(trainer: Trainer) -> Iterator[None]:
    """Turn SIGTERM and SIGUSR1 (Slurm's warning) into a request that all ranks agree on after the step."""

    def request(_signal: int, _frame: FrameType | None) -> None:
        trainer.stop_requested = True

    before = {name: signal.signal(name, request) for name in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@contextlib.contextmanager
def _collected_by_step() -> Iterator[Callable[[int], None]]:
    """Collect garbage after the same steps on all ranks: one that pauses when it likes holds up the others.

    What is there before the first step stays, and is looked at no more.
    """
    gc.collect()
    gc.freeze()
    was_enabled = gc.isenabled()
    gc.disable()

    def collect(step: int) -> None:
        if step % COLLECTED_EVERY == 0:
            gc.collect(YOUNG)

    try:
        yield collect
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


COLLECTED_EVERY, YOUNG = 50, 1
"""Steps between collections, and the generation up to which objects are looked at."""


@contextlib.contextmanager
def _profiled(trainer: Trainer, step: int, walls_s: Sequence[float]) -> Iterator[None]:
    """Record a torch profiler trace of the step that was named, and beside it what steps took, for each rank.

    The recorder itself takes time: the steps before, which it did not record, say how much.
    """
    if trainer.settings.profile_step != step + 1:
        yield
        return
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    rank, folder = dist.get_rank(), Path(trainer.settings.folder)
    shaped = profile(activities=activities, record_shapes=True)  # shapes say how large a message is
    with shaped as recorded, annotated(f"ProfilerStep#{step + 1}"):
        yield
    recorded.export_chrome_trace(str(folder / f"trace-rank{rank}.json"))
    walls = {"rank": rank, "world": dist.get_world_size(), "step": step + 1, "wall_step_s": [*walls_s]}
    write_atomically(folder / f"wall_rank{rank}.json", json.dumps(walls))


def record_status(settings: RunSettings, status: RunStatus) -> None:
    """Leave word of how the run stands for the launcher."""
    write_json(Path(settings.folder) / STATUS_FILE, status)
