"""A four-stage pipelined transformer: its bubble predicted by replaying the schedule, and measured.

    python -m examples.pipeline_transformer [--schedule 1f1b]

Durations come from one step; the schedule is replayed with them and compared with the next step. Where four
ranks would have to share fewer cores, every computation is stretched by a pause that uses none, so that
they do not compete.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections import defaultdict

from costmodel.layout import Schedule
from costmodel.pipeline.schedules import RECORDS
from examples.llm_ranks import SMALL, RankRun, layout, train_rank
from examples.support import device_type, report, start
from executor.parallel.programs import Action, orders
from executor.validation.reference import ReferenceJob

STAGES = 4
MICROBATCHES = 8
PAUSE_S = 0.05


def mean_durations(runs: list[RankRun]) -> dict[tuple[str, int], float]:
    """Seconds of each kind of computation of each stage, mean over microbatches of the calibration step."""
    found = defaultdict(list)
    for run in runs:
        for span in run.spans[0]:
            found[span.action.kind, span.action.stage].append(span.end_s - span.start_s)
    return {key: statistics.fmean(values) for key, values in found.items()}


def replay(schedule: Schedule, virtual_stages: int, seconds: dict[tuple[str, int], float]) -> float:
    """Makespan of the schedule when every computation takes its duration and starts as soon as it can."""
    order = orders(schedule, STAGES, virtual_stages, MICROBATCHES)
    stages = STAGES * virtual_stages
    ends: dict[Action, float] = {}
    place, free = [0] * STAGES, [0.0] * STAGES
    while any(place[rank] < len(order[rank]) for rank in range(STAGES)):
        for rank in range(STAGES):
            while place[rank] < len(order[rank]):
                action = order[rank][place[rank]]
                inputs = inputs_of(action, stages)
                if not all(one in ends for one in inputs):
                    break
                ready = max((ends[one] for one in inputs), default=0.0)
                free[rank] = max(free[rank], ready) + seconds[action.kind, action.stage]
                ends[action] = free[rank]
                place[rank] += 1
    return max(free)


def inputs_of(action: Action, stages: int) -> list[Action]:
    """Computations that must have ended before this one."""
    kind, stage, microbatch = action
    if kind == "F":
        return [Action("F", stage - 1, microbatch)] if stage else []
    after = [Action("B", stage + 1, microbatch)] if stage + 1 < stages else []
    return [Action("F", stage, microbatch), *after]


def bubble_share(busy_s: float, makespan_s: float) -> float:
    """Share of the ranks' time in which they do not compute."""
    return 1 - busy_s / (STAGES * makespan_s)


def main(arguments: list[str] | None = None) -> None:
    """Train three steps and print predicted against measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="1f1b", choices=["gpipe", "1f1b", "interleaved"])
    schedule = parser.parse_args(arguments).schedule
    virtual = RECORDS[schedule].chunks or 2
    case = ReferenceJob(
        spec=SMALL,
        layout=layout(pp=STAGES, schedule=schedule, virtual_stages=virtual),
        sequence_length=128,
        num_microbatches=MICROBATCHES,
        steps=3,
    )
    crowded = device_type(STAGES) == "cpu" and (os.cpu_count() or 1) < STAGES
    runs = start(train_rank, STAGES, case, PAUSE_S if crowded else 0.0)
    seconds = mean_durations(runs)
    last = [span for run in runs for span in run.spans[1]]
    makespan = max(span.end_s for span in last) - min(span.start_s for span in last)
    busy = sum(span.end_s - span.start_s for span in last)
    predicted = replay(schedule, virtual, seconds)
    expected_busy = sum(seconds[span.action.kind, span.action.stage] for span in last)
    report(
        f"{STAGES}-stage pipeline, {schedule}, {MICROBATCHES} microbatches, {os.cpu_count()} cores",
        [
            ("makespan_s", predicted, makespan),
            ("bubble share", bubble_share(expected_busy, predicted), bubble_share(busy, makespan)),
            ("bubble share, equal stages", (STAGES - 1) / (MICROBATCHES * virtual + STAGES - 1), ""),
        ],
    )


if __name__ == "__main__":
    main()
