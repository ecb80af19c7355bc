"""Totals and exclusive parts of small traces whose answer is counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.diagnose.budget import timeline
from planner.diagnose.diagnosis import diagnosed
from planner.diagnose.evidence import fixes
from planner.diagnose.finding import CAUSES, StepFinding
from planner.diagnose.intervals import clipped, common, inverted, seconds, united, without
from planner.questions.flags import Flags
from planner.traces.kineto import read_kineto
from tests.unit.planner.traces.micro import host, kernel, write

US = 1e-6
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8)


def grid(rows: list[tuple[int, int]]) -> np.ndarray:
    """Which unit cells of 0 to 100 are covered."""
    cells = np.zeros(100, bool)
    for start, length in rows:
        cells[start : start + length] = True
    return cells


def sets(rows: list[tuple[int, int]]) -> np.ndarray:
    starts = np.array([start for start, _ in rows], float)
    return united(starts, starts + np.array([length for _, length in rows], float))


@given(spans, spans)
def test_sets_of_time_are_sets(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    """Union, intersection, difference and complement, against unit cells."""
    a, b = grid(first), grid(second)
    assert seconds(sets([*first, *second])) == (a | b).sum()
    assert seconds(common(sets(first), sets(second))) == (a & b).sum()
    assert seconds(without(sets(first), sets(second))) == (a & ~b).sum()
    assert seconds(inverted(sets(first), 0.0, 100.0)) == (~a).sum()
    assert seconds(clipped(sets(first), 10.0, 50.0)) == a[10:50].sum()


def test_what_overlaps_is_counted_once(tmp_path: Path) -> None:
    """Communication beside compute is hidden; a copy beside either too."""
    path = write(
        tmp_path / "a.json",
        kernel("ampere_bf16_gemm", 0.0, 40.0, 1),
        kernel("ncclDevKernel_AllReduce", 30.0, 70.0, 2, stream=9),
        kernel("Memcpy HtoD", 60.0, 90.0, 3, category="gpu_memcpy", stream=8),
        kernel("elementwise_kernel", 95.0, 100.0, 4, launched_us=92.0),
    )
    totals = timeline(read_kineto(path)).totals()
    expected = {
        "total_s": 100, "busy_s": 95, "idle_s": 5, "compute_s": 45, "communication_s": 40,
        "exposed_communication_s": 30, "memcpy_s": 30, "exposed_memcpy_s": 20,
    }  # fmt: skip
    assert {key: round(getattr(totals, key) / US, 6) for key in expected} == expected


def test_memsets_count_on_cuda_and_not_on_rocm(tmp_path: Path) -> None:
    """As TraceLens tabulates both."""
    events = (kernel("gemm", 0.0, 10.0, 1), kernel("Memset", 20.0, 30.0, 2, category="gpu_memset"))
    cuda = timeline(read_kineto(write(tmp_path / "a.json", *events))).totals()
    rocm = timeline(read_kineto(write(tmp_path / "b.json", *events, hip_runtime_version=1))).totals()
    assert cuda.compute_s == pytest.approx(20 * US)
    assert rocm.compute_s == pytest.approx(10 * US)


def test_kernels_launched_in_a_recomputation_are_one(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.json",
        kernel("gemm", 0.0, 10.0, 1, launched_us=-20.0),
        host("torch/utils/checkpoint.py(1111): unpack_hook", 11.0, 20.0, category="python_function"),
        kernel("gemm", 30.0, 45.0, 2, launched_us=15.0),
    )
    line = timeline(read_kineto(path))
    assert line.totals().recompute_s == pytest.approx(15 * US)
    assert line.budget(0.0, 65 * US).parts["recompute"] == pytest.approx(15 * US)


def test_a_host_that_runs_a_forward_once_more_is_at_it_between_its_operations(tmp_path: Path) -> None:
    """From its first operation to its last; what the published totals call recompute is operations alone."""
    numbered = {"Fwd thread id": 0, "Sequence number": 7}
    path = write(
        tmp_path / "a.json",
        host("ProfilerStep#1", 0.0, 100.0),
        host("autograd::engine::evaluate_function: AddmmBackward0", 10.0, 60.0, category="cpu_op"),
        host("aten::linear", 20.0, 30.0, category="cpu_op", args=numbered),
        host("aten::linear", 34.0, 40.0, category="cpu_op", args=numbered),
        host("aten::mm", 45.0, 55.0, category="cpu_op"),
    )
    line = timeline(read_kineto(path))
    parts = {name: round(value / US, 6) for name, value in line.budget(0.0, 100 * US).parts.items()}
    assert parts == {"recompute": 20.0, "compute": 10.0, "unexplained": 70.0}
    assert line.totals().recompute_s == pytest.approx(16 * US)


def test_idle_time_is_what_the_host_did(tmp_path: Path) -> None:
    """The loader before the launch that follows it; nothing at all is unexplained."""
    path = write(
        tmp_path / "a.json",
        host("ProfilerStep#3", 0.0, 200.0),
        host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0.0, 80.0),
        kernel("gemm", 100.0, 200.0, 1, launched_us=90.0),
    )
    diagnosis = diagnosed([path], Flags())
    parts = {name: round(value / US, 6) for name, value in diagnosis.steps[0].budget.parts.items()}
    assert parts == {"GEMM": 100.0, "loader": 80.0, "launch gaps": 2.0, "unexplained": 18.0}
    assert [finding.cause for finding in diagnosis.findings] == ["loader"]
    assert diagnosis.findings[0].share == pytest.approx(0.4)


def test_every_fix_is_of_a_cause() -> None:
    assert fixes().keys() <= set(CAUSES)
    with pytest.raises(ValueError, match="no cause of the list"):
        StepFinding(cause="bad luck", seconds=1.0, share=0.1, evidence="", fix="")


def test_a_kernel_that_sends_is_no_send_where_no_group_is_recorded(tmp_path: Path) -> None:
    """NCCL runs all-to-alls by SendRecv kernels."""
    group = {"pg_name": "3", "pg_desc": "pp", "pg_size": 2, "ranks": [0, 1]}
    args = {
        "Collective name": "send",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1]",
        "In msg nelems": 8,
    }
    name = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"
    for said, part in (({}, "exposed communication"), (args, "sends")):
        path = write(
            tmp_path / "rank0.json",
            kernel(name, 0.0, 10.0, 1, **said),
            world=2,
            info={"pg_config": [group]} if said else {},
        )
        assert diagnosed([path], Flags()).parts[part] == pytest.approx(10 * US)
