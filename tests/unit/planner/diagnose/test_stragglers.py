"""Slowdowns of pipeline-parallel jobs: published traces to what their authors computed, and played faults."""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.diagnose.stragglers import JobSlowdown, stragglers_of
from planner.traces.pipeline_tables import pipeline_rows, read_pipeline_table
from tests.counts import tries
from topology.base.errors import InputError

CAUSES = {"ST": "last stage with head", "SE": "sequence imbalance"}
"""`traces/expected.csv`: last pipeline stage too long, sequence length imbalance."""


@pytest.fixture(scope="module", params=CAUSES)
def published(request: pytest.FixtureRequest) -> tuple[str, JobSlowdown, dict[str, Any]]:
    """A published trace as played here, and the authors' results of it."""
    pytest.importorskip("pyarrow")
    shared = request.getfixturevalue("shared_dir") / "traces/straggler"
    name = request.param
    authors = json.loads((shared / f"result-{name}.json").read_text())
    for metric in ("ms", "mw"):
        authors |= json.loads((shared / f"{metric}-{name}.json").read_text())
    return name, stragglers_of(read_pipeline_table(shared / f"trace-{name}.parquet")), authors


def test_published_slowdowns_come_out(published: tuple[str, JobSlowdown, dict[str, Any]]) -> None:
    """To 1 in 100,000, where 2 % is asked: the same sums in another order of rounding."""
    _, job, authors = published
    assert job.seconds == pytest.approx(authors["tori"], rel=1e-5)
    assert job.ideal_s == pytest.approx(authors["tideal"], rel=1e-5)
    assert job.slowdown == pytest.approx(authors["blocking_slowdown"], rel=1e-5)
    assert job.stage_share == pytest.approx(authors["Ms"], abs=1e-5)
    assert job.worker_share == pytest.approx(authors["Mw"], abs=1e-5)


def test_published_slowdowns_by_part_come_out(published: tuple[str, JobSlowdown, dict[str, Any]]) -> None:
    """By replica, stage and operation."""
    _, job, authors = published
    for mine, theirs in ((job.by_replica, "dp_rank"), (job.by_stage, "stage"), (job.by_operation, "optype")):
        expected = authors[f"blocking_decompose_by_{theirs}"]
        assert {str(key): value for key, value in mine.items()} == pytest.approx(expected, rel=1e-5)


def test_published_causes_are_named(published: tuple[str, JobSlowdown, dict[str, Any]]) -> None:
    name, job, _ = published
    assert [finding.cause for finding in job.findings()] == [CAUSES[name]]
    assert job.findings()[0].seconds <= job.seconds - job.ideal_s


# ── played ────────────────────────────────────────────────────────────────────────────────────────────────


def one_forward_one_backward(warm: int, microbatches: int) -> list[tuple[str, int]]:
    """Order of a stage that runs `warm` forwards before its first backward."""
    warm = min(warm, microbatches)
    order = [("forward", m) for m in range(warm)]
    for m in range(microbatches):
        order += [("backward", m), *([("forward", m + warm)] if m + warm < microbatches else [])]
    return order


def play(
    draw: random.Random, *, replicas: int, stages: int, microbatches: int, steps: int, forward_s: Any
) -> dict[str, list[Any]]:
    """Operations of a 1F1B pipeline as a profiler would record them; `forward_s` of step, replica, stage, microbatch."""
    columns: dict[str, list[Any]] = defaultdict(list)
    send_s, tail_s = 0.001, 0.01

    def record(
        kind: str, step: int, replica: int, stage: int, number: int, start: float, end: float, mb: int
    ) -> None:
        row = {
            "optype": kind,
            "step": step,
            "dp_rank": replica,
            "stage": stage,
            "rank": replica * stages + stage,
            "seq_id": number,
        }
        row |= {
            "start_ts": start,
            "duration": end - start,
            "mc": 0 if "compute" in kind or "gather" in kind else -1,
        }
        row |= {"gmc": stage if "compute" in kind else -1, "mb_id": mb}
        for name, value in row.items():
            columns[name].append(value)

    for step in range(steps):
        ends, arrivals = {}, defaultdict(dict[tuple[str, int], float])
        for replica in range(replicas):
            plans = [one_forward_one_backward(stages - stage, microbatches) for stage in range(stages)]
            clocks, done = [0.0] * stages, [0] * stages
            over: dict[tuple[str, int, int], float] = {}
            while any(done[s] < len(plans[s]) for s in range(stages)):
                for stage in range(stages):
                    if done[stage] == len(plans[stage]):
                        continue
                    way, m = plans[stage][done[stage]]
                    source = stage - 1 if way == "forward" else stage + 1
                    if 0 <= source < stages:
                        if (way, source, m) not in over:
                            continue
                        # The receive is awaited from the computation of its kind before; both sides end together.
                        before = (
                            over.get((way, stage, m - 1), 0.0)
                            if way == "forward" or m
                            else over[("forward", stage, plans[stage][max(0, done[stage] - 2)][1])]
                        )
                        sent = over[way, source, m]
                        arrived = max(sent, before) + send_s
                        record(f"{way}-recv", step, replica, stage, m, before, arrived, -1)
                        record(f"{way}-send", step, replica, source, m, sent, arrived, -1)
                    else:
                        arrived = 0.0
                    start = max(clocks[stage], arrived)
                    length = forward_s(step, replica, stage, m) * (1 if way == "forward" else 2)
                    record(f"{way}-compute", step, replica, stage, m, start, start + length, m)
                    clocks[stage] = over[way, stage, m] = start + length
                    done[stage] += 1
            ends[replica] = clocks
        for stage in range(stages):
            latest = max(ends[replica][stage] for replica in range(replicas))
            arrivals[stage] = {("scatter", 0): latest + tail_s}
            for replica in range(replicas):
                record(
                    "grads-reduce-scatter", step, replica, stage, 0, ends[replica][stage], latest + tail_s, -1
                )
                record("optimizer", step, replica, stage, 0, latest + tail_s, latest + 2 * tail_s, -1)
    return columns


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a forward with one fault."""

    cause: str
    draw: random.Random
    slow: tuple[int, int]
    stages: int
    lengths: Any

    def __call__(self, step: int, replica: int, stage: int, m: int) -> float:
        """Of one microbatch."""
        seconds = 0.1 * self.draw.gauss(1, 0.02)
        if self.cause == "slow rank" and (replica, stage) == self.slow:
            return seconds * 1.8
        if stage == {"last stage with head": self.stages - 1, "uneven stages": self.slow[1]}.get(self.cause):
            return seconds * 2.0
        return (
            seconds * float(self.lengths[step, replica, m]) if self.cause == "sequence imbalance" else seconds
        )


@pytest.mark.parametrize(
    "cause", ["slow rank", "last stage with head", "sequence imbalance", "uneven stages", ""]
)
def test_a_played_fault_is_named(cause: str) -> None:
    """Of jobs of 2 to 6 stages and 2 to 6 replicas, with 2 % of noise."""
    for seed in range(tries(6, 100)):
        draw = random.Random(f"{cause}/{seed}")
        replicas, stages = draw.randint(2, 6), draw.randint(3, 6)
        microbatches, slow = 2 * stages, (draw.randrange(replicas), draw.randrange(stages - 1))
        times = Times(
            cause,
            draw,
            slow,
            stages,
            np.random.default_rng(seed).choice([0.5, 0.7, 1.0, 1.8, 3.0], size=(5, replicas, microbatches)),
        )
        job = stragglers_of(
            pipeline_rows(
                play(
                    draw,
                    replicas=replicas,
                    stages=stages,
                    microbatches=microbatches,
                    steps=5,
                    forward_s=times,
                ),
                "played",
            )
        )
        assert [finding.cause for finding in job.findings()] == ([cause] if cause else []), (seed, job)
        if cause == "slow rank":
            assert job.findings()[0].rank == slow[0] * stages + slow[1]


def test_playing_a_recorded_job_gives_its_own_step() -> None:
    """Where nothing is delayed, the played step is the recorded one."""
    draw = random.Random(3)
    columns = play(
        draw, replicas=3, stages=4, microbatches=8, steps=4, forward_s=lambda *_: draw.uniform(0.05, 0.2)
    )
    ends: dict[int, float] = defaultdict(float)
    for step, start, seconds in zip(columns["step"], columns["start_ts"], columns["duration"], strict=True):
        ends[step] = max(ends[step], start + seconds)
    assert stragglers_of(pipeline_rows(columns, "played")).seconds == pytest.approx(
        sum(ends.values()) / len(ends), rel=1e-6
    )


def _broken(columns: dict[str, list[Any]], **other: Any) -> dict[str, list[Any]]:
    return {**columns, **{name: [*columns[name][:-1], value] for name, value in other.items()}}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda c: {k: v for k, v in c.items() if k != "step"}, "no column step"),
        (lambda c: {k: [] for k in c}, "0 rows"),
        (lambda c: {k: v[:-1] for k, v in c.items()}, "is not complete"),
        (lambda c: _broken(c, optype="dreaming"), "unknown operations"),
        (lambda c: _broken(c, duration=float("nan")), "no number of seconds"),
        (lambda c: _broken(c, duration=-1.0), "no number of seconds"),
        (lambda c: _broken(c, stage=-7), "count from 0"),
        (lambda c: _broken(c, rank=2**40), "count from 0"),
        (lambda c: _broken(c, step="one"), "holds no numbers"),
        (
            lambda c: {
                k: [x for x, o in zip(v, c["optype"], strict=True) if o != "forward-send"]
                for k, v in c.items()
            },
            "forward-send for",
        ),
        (
            lambda c: {
                k: [x for x, o in zip(v, c["optype"], strict=True) if "compute" not in o]
                for k, v in c.items()
            },
            "has no forward-compute",
        ),
    ],
)
def test_a_wrong_table_is_answered_in_three_lines(change: Any, what: str) -> None:
    columns = play(random.Random(1), replicas=2, stages=2, microbatches=2, steps=2, forward_s=lambda *_: 0.1)
    with pytest.raises(InputError, match=what) as error:
        stragglers_of(pipeline_rows(change(columns), "job.parquet"))
    assert len(str(error.value).splitlines()) == 3


def test_a_file_that_is_no_parquet_is_answered_in_three_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.parquet"
    path.write_text("PAR1")
    if "pyarrow" in sys.modules or pytest.importorskip("pyarrow"):
        with pytest.raises(InputError, match="is no parquet file"):
            read_pipeline_table(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="pip install pyarrow"):
        read_pipeline_table(path)
