"""Breakdowns that TraceLens publishes, and counts of other recorders, from the traces they are of."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from planner.diagnose.budget import Totals, launched_once_more, timeline
from planner.traces.events import GPU_CATEGORIES
from planner.traces.read import read_traces

KEYS = {
    "computation_time": "compute_s",
    "busy_time": "busy_s",
    "idle_time": "idle_s",
    "total_time": "total_s",
    "total_comm_time": "communication_s",
    "exposed_comm_time": "exposed_communication_s",
    "total_memcpy_time": "memcpy_s",
    "exposed_memcpy_time": "exposed_memcpy_s",
}
"""Columns of TraceLens' gpu_timeline.csv, and what we call them."""

LAST_DIGIT_S = 0.5e-6
"""Half of the last digit of sums of annotations in the table."""


@cache
def totals_of(path: Path) -> tuple[Totals, Totals]:
    """Without recompute, and recompute alone: TraceLens tabulates them apart."""
    (trace,) = read_traces([path])
    repeated, on_gpu = launched_once_more(trace.events), trace.events.of(*GPU_CATEGORIES)
    rest, alone = (
        timeline(replace(trace, events=trace.events.chosen(kept))).totals()
        for kept in (~repeated, ~on_gpu | repeated)
    )
    return rest, alone


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "traces" / "expected.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_every_row_that_tracelens_asserts(shared_dir: Path) -> None:
    """To 0.1 % of the trace's total."""
    compared = 0
    for row in rows(shared_dir):
        quantity, _, apart = row["quantity"].partition(" ")
        if quantity in KEYS:
            totals = totals_of(shared_dir / "traces" / row["file"])[bool(apart)]
            of = totals_of(shared_dir / "traces" / row["file"])[0].total_s
            measured = getattr(totals, KEYS[quantity])
            assert measured == pytest.approx(float(row["value"]) * 1e-3, abs=1e-3 * of), row
            compared += 1
    assert compared > 70


def test_a_nsys_export(shared_dir: Path) -> None:
    """What SQL sums of its tables."""
    (trace,) = read_traces([shared_dir / "traces" / "nsys" / "saxpy_mpi_cuda_perlmutter0.sqlite"])
    events, totals = trace.events, timeline(trace).totals()
    assert int(events.of("kernel").sum()) == 5
    assert totals.compute_s == pytest.approx(88.57348e-3, rel=1e-6)
    assert totals.memcpy_s == pytest.approx((186.001123 + 98.698477) * 1e-3, rel=1e-6)
    copied = [row for row in events.rows(events.of("memcpy")) if row.name == "Memcpy HtoD"]
    assert (len(copied), sum(row.args["bytes"] for row in copied)) == (10, 2_621_440_000)
    assert trace.device == "NVIDIA A100-SXM4-40GB"


def test_a_rocprof_file(shared_dir: Path) -> None:
    (trace,) = read_traces([shared_dir / "traces" / "rocprof" / "908_results.json.gz"])
    kernels = trace.events.of("kernel")
    assert int(kernels.sum()) == 43915
    assert trace.events.duration_s[kernels].sum() == pytest.approx(4.441741378, rel=1e-6)
    assert timeline(trace).totals().total_s == pytest.approx(15.122023493997753, rel=1e-6)


def test_annotations_of_our_runs(shared_dir: Path) -> None:
    """Count and sum of each, as summed from the events."""
    compared = 0
    for row in rows(shared_dir):
        if row["quantity"].startswith("annotation "):
            name = row["quantity"].removeprefix("annotation ").partition(": count")[0]
            (trace,) = read_traces([shared_dir / "traces" / row["file"]])
            named = [each for each in trace.events.rows(trace.events.of("annotation")) if each.name == name]
            count, milliseconds = row["value"].split(" / ")
            assert len(named) == int(count), row
            assert sum(each.duration_s for each in named) == pytest.approx(
                float(milliseconds) * 1e-3, rel=1e-3, abs=LAST_DIGIT_S
            )
            compared += 1
    assert compared > 60


def test_every_trace_sums_to_its_steps(shared_dir: Path) -> None:
    """Parts exclude each other, in every window of every trace, to 0.1 %."""
    counted = 0
    for path in sorted((shared_dir / "traces").glob("*/*.json.gz")) + sorted(
        (shared_dir / "traces" / "cpu").glob("gloo4_*/rank*.json.gz")
    ):
        if path.parent.name in ("straggler", "memory_cpu") or "memory_timeline" in path.name:
            continue
        for trace in read_traces([path]):
            line = timeline(trace)
            stretches = [(each.start_s, each.end_s) for each in trace.windows] or [(line.start_s, line.end_s)]
            for start, end in stretches:
                parts = line.budget(start, end).parts
                assert min(parts.values()) >= 0.0
                assert sum(parts.values()) == pytest.approx(end - start, rel=1e-3, abs=1e-12)
                counted += 1
    assert counted > 60
