"""`plan diagnose`: exit codes, keys, the text's length, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import meshplan
from app.cli import run
from tests.unit.planner.traces.micro import host, kernel, write

KEYS = [
    "total_s",
    "busy_s",
    "idle_s",
    "compute_s",
    "communication_s",
    "exposed_communication_s",
    "memcpy_s",
    "exposed_memcpy_s",
    "parts",
    "predicted",
    "residuals",
    "layout",
    "findings",
]
"""What issue readers and scripts rely on."""


@pytest.fixture
def slow_loader(tmp_path: Path) -> Path:
    """Two steps of which the loader takes 40 %."""
    return write(
        tmp_path / "rank0.json.gz",
        *(host(f"ProfilerStep#{step}", 200.0 * step, 200.0 * step + 200.0) for step in (1, 2)),
        *(host("dataloader", 200.0 * step, 200.0 * step + 80.0) for step in (1, 2)),
        *(kernel("gemm", 200.0 * step + 95.0, 200.0 * step + 199.0, step) for step in (1, 2)),
    )


def test_the_keys_of_the_document(slow_loader: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(slow_loader), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [key for key in KEYS if key not in document] == []
    assert sum(document["parts"].values()) == pytest.approx(document["total_s"], rel=1e-3)
    for window in document["windows"]:
        assert sum(window["parts"].values()) == pytest.approx(window["total_s"], rel=1e-3)
    assert document["findings"][0].keys() >= {"cause", "rank", "seconds", "share", "fix"}
    assert document["findings"][0]["cause"] == "loader"


def test_one_step_alone(slow_loader: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(slow_loader), "--step", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total_s"] == pytest.approx(200e-6)
    assert [window["step"] for window in document["windows"]] == [2]
    assert run(["diagnose", str(slow_loader), "--step", "9"]) == 2
    assert "its steps: 1, 2" in capsys.readouterr().err


def test_a_cause_beyond_the_limit_fails(slow_loader: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(slow_loader), "--fail-above", "15%"]) == 4
    text = capsys.readouterr().out
    assert text.splitlines()[0].endswith("40 % of it goes to loader")
    assert len(text.splitlines()) <= 40
    assert run(["diagnose", str(slow_loader), "--fail-above", "50%"]) == 0


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"{}", b'{"traceEvents": []}', b"\x1f\x8b\x00", b"SQLite format 3\x00"]
)
def test_what_is_no_trace_is_refused_in_three_lines(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert run(["diagnose", str(path)]) == 2
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()[-3:]] == [
        "error",
        "cause",
        "help",
    ]


def test_totals_and_step_have_one_denominator(slow_loader: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps of 104 µs of kernels each: the line says those of a step, as its share does."""
    assert run(["diagnose", str(slow_loader)]) == 0
    assert "52 % busy; a step computes 104 µs, communicates 0 s" in capsys.readouterr().out


def test_the_library_says_the_same(slow_loader: Path) -> None:
    diagnosis = meshplan.diagnose(slow_loader)
    assert diagnosis.findings[0].cause == "loader"
    assert diagnosis.document()["findings"][0]["share"] == pytest.approx(0.4)


def test_a_job_that_hangs_fails_without_a_limit(shared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It makes no step at all: exit code 4, while a healthy run is answered."""
    recorded = shared_dir / "traces" / "cpu"
    if not recorded.is_dir():
        pytest.skip("recorded traces (../shared/data/traces) are not beside this checkout")
    assert run(["diagnose", str(recorded / "hang4_stuck")]) == 4
    assert "hang (rank 1)" in capsys.readouterr().out
    assert run(["diagnose", str(recorded / "gloo4_none")]) == 0
