"""Real runs of gloo ranks with one fault each: does `plan diagnose` name it first, with its seconds?

`python benchmarks/diagnose_runs.py [--seeds 1] [--faults none,loader,…]` trains a small model on four ranks
by the loop of `plan run --profile-step`, delays the profiled step by a known time in one place, and diagnoses
the traces. With `--steps` it does so with the steps of two ranks whose faults are real
(`tests/executor/training/faulty_steps.py`), and with those of four hosts whose links are unlike.
Wanted: the right cause first in 95 % of runs, seconds within 15 % of what the run itself recorded of the
delay, no healthy run accused. Steps of a machine that does other work too vary by more than a cause costs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.launch.supervise import with_plan, write_run
from executor.training import batches, loop
from executor.training.settings import RunSettings, RunStatus
from executor.training.trainer import prepare
from planner.diagnose.diagnosis import diagnosed
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.traces.kineto import read_kineto
from tests.executor.conftest import TINY, make_plan
from tests.executor.training.faulty_steps import KINDS
from tests.executor.training.test_faulty_steps import outcome as outcome_of_steps
from tests.executor.training.test_faulty_steps import outcome_of_link

PROFILED = 3
SPEC = replace(TINY, hidden_size=256, intermediate_size=1024, head_dim=64, max_sequence_length=128)
"""A step takes about half a second on two cores."""
DELAY = "injected"
"""Annotation of the delay, whose length the run records itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A delay in one place of the profiled step."""

    name: str
    cause: str
    place: tuple[Any, str] | None = None
    """Module and function whose call is delayed."""
    annotation: str = ""
    """What the place calls itself, as engines do."""
    on_one_rank: bool = False


FAULTS = (
    Fault(name="none", cause=""),
    Fault(name="loader", cause="loader", place=(batches, "read_microbatches")),
    Fault(name="loader of one rank", cause="loader", place=(batches, "read_microbatches"), on_one_rank=True),
    Fault(
        name="checkpoint", cause="checkpoint in the step", place=(loop, "clip"), annotation="save_checkpoint"
    ),
    Fault(name="slow rank", cause="slow rank", place=(loop, "clip"), on_one_rank=True),
    Fault(name="collector", cause="garbage collection", place=(loop, "clip"), annotation="gc.collect"),
)


@contextlib.contextmanager
def delayed(fault: Fault, here: bool, seconds: float) -> Iterator[None]:
    """Let the fault's place take longer while a step is recorded."""
    if fault.place is None or not here:
        yield
        return
    module, name = fault.place
    before: Callable[..., Any] = getattr(module, name)

    def longer(*words: Any, **named: Any) -> Any:
        if torch.autograd._profiler_enabled():  # noqa: SLF001
            with torch.profiler.record_function(fault.annotation or DELAY):
                time.sleep(seconds)
        return before(*words, **named)

    setattr(module, name, longer)
    try:
        yield
    finally:
        setattr(module, name, before)


def _train(
    rank: int, settings: RunSettings, plan: Plan, fault: Fault, culprit: int, seconds: float
) -> RunStatus:
    torch.set_num_threads(1)
    with delayed(fault, not fault.on_one_rank or rank == culprit, seconds):
        return loop.train(prepare(settings, plan, torch.device("cpu")))


def outcome(fault: Fault, seed: int, folder: Path) -> tuple[bool, str]:
    """Whether a run with a fault is diagnosed rightly, and what was said."""
    draw = random.Random(f"{fault.name}/{seed}")
    plan = make_plan(ParallelLayout(dp=4), spec=SPEC, batch=16, sequence=SPEC.max_sequence_length)
    culprit, seconds = draw.randrange(4), draw.uniform(0.6, 1.2)
    base = RunSettings(folder="", plan_file="", steps=PROFILED, device="cpu", precision="fp32")
    settings = with_plan(replace(base, profile_step=PROFILED), folder)
    write_run(settings, plan)
    run_ranks(_train, 4, settings, plan, fault, culprit, seconds)
    paths = [folder / f"trace-rank{rank}.json" for rank in range(4)]
    findings = diagnosed(paths, Flags()).findings
    said = findings[0] if findings else None
    if not fault.cause:
        return said is None, said.cause if said else "healthy"
    events = read_kineto(paths[culprit]).events
    injected_s = sum(e.duration_s for e in events.rows() if e.name == (fault.annotation or DELAY))
    if said is None:
        return False, f"nothing, of {injected_s:.2f} s"
    right = said.cause == fault.cause and said.rank == (culprit if fault.on_one_rank else None)
    close = abs(said.seconds - injected_s) <= 0.15 * injected_s
    return right and close, f"{said.cause} on {said.rank}, {said.seconds:.2f} of {injected_s:.2f} s"


LINKS = {"halved link": "slow link", "equal links": ""}
"""Hosts of two pairs, of which the links of the first are unlike the others'."""


def _faulty_steps(seeds: int) -> int:
    """Run each kind of faulty step, and print what was wrong; 1 where over 5 % are, or a healthy run is."""
    right = runs = accused = healthy = 0
    causes = {kind.name: kind.cause for kind in KINDS} | LINKS
    for seed, (name, cause) in itertools.product(range(seeds), causes.items()):
        draw = random.Random(f"{name}/{seed}")
        with tempfile.TemporaryDirectory() as folder:
            if name in LINKS:
                full = draw.randrange(80, 160)
                wrong = outcome_of_link(full, full // 2 if cause else full, Path(folder))
            else:
                kind = next(kind for kind in KINDS if kind.name == name)
                wrong = outcome_of_steps(kind, draw.randrange(2), draw.uniform(0.4, 0.9), Path(folder))
        if cause:
            right, runs = right + (not wrong), runs + 1
        else:
            accused, healthy = accused + bool(wrong), healthy + 1
        load = os.getloadavg()[0]
        print(f"{seed:3} {name:20} {wrong or 'right'}  (load {load:.0f})", flush=True)
    print(f"{right} of {runs} right, {accused} of {healthy} healthy runs accused")
    return int(right < 0.95 * runs or accused > 0)


def main() -> int:
    """Run the faults; print a line for each and the share that was right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--faults", default=",".join(fault.name for fault in FAULTS))
    parser.add_argument(
        "--steps", action="store_true", help="faulty steps of two ranks, and links of four hosts"
    )
    options = parser.parse_args()
    if options.steps:
        return _faulty_steps(options.seeds)
    right = runs = 0
    for fault in (fault for fault in FAULTS if fault.name in options.faults.split(",")):
        for seed in range(options.seeds):
            with tempfile.TemporaryDirectory() as folder:
                began_s = time.perf_counter()
                good, said = outcome(fault, seed, Path(folder))
            right, runs, took_s = right + good, runs + 1, time.perf_counter() - began_s
            word = "right" if good else "WRONG"
            print(f"{fault.name:20} {word}  {said}  ({took_s:.0f} s)", flush=True)
    print(f"{right} of {runs} right")
    return 0 if right >= 0.95 * runs else 1


if __name__ == "__main__":
    sys.exit(main())
