"""Runs of four ranks with known faults: the right rank, the right cause, the right seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.analysis.diagnose import DiagnoseQuestion, diagnosis_of
from app.errors import FAILED_AUDIT
from app.reports.answer import render
from app.reports.diagnose import diagnose_answer
from planner.diagnose.beside import SideEvidence
from planner.diagnose.diagnosis import diagnosed
from planner.questions.flags import Flags

INJECTED = {"gloo4_slow_rank": ("slow rank", 2, 0.5), "gloo4_loader": ("loader", None, 0.4)}
"""Cause, rank and seconds a step, as the script that made the runs injected them."""


@pytest.mark.parametrize("name", INJECTED)
def test_an_injected_fault_is_the_first_cause(shared_dir: Path, name: str) -> None:
    """Within 15 % of what was injected."""
    cause, rank, seconds = INJECTED[name]
    first, *others = diagnosed([shared_dir / "traces" / "cpu" / name], Flags()).findings
    assert (first.cause, first.rank) == (cause, rank)
    assert first.seconds == pytest.approx(seconds, rel=0.15)
    assert others == []


@pytest.mark.parametrize(("name", "rank"), [("hang4_skip", 2), ("hang4_stuck", 1)])
def test_a_folder_of_flight_records_names_who_is_missing(shared_dir: Path, name: str, rank: int) -> None:
    """Without a trace: the verdict is who hangs, and the exit code follows the limit."""
    hung = shared_dir / "traces" / "cpu" / name
    side, code = diagnosis_of(DiagnoseQuestion(files=(hung,), fail_above="50%"), Flags())
    assert isinstance(side, SideEvidence)
    assert [(each.cause, each.rank) for each in side.findings] == [("hang", rank)]
    assert code == FAILED_AUDIT
    assert diagnose_answer(side, code).headline.startswith(f"hang (rank {rank})")
    assert side.document()["hang"]["rank"] == rank


def test_a_table_of_operations_is_explained_by_itself(shared_dir: Path) -> None:
    """Stragglers of a pipeline job, as the published analysis has them."""
    pytest.importorskip("pyarrow")
    [table] = (shared_dir / "traces" / "straggler").glob("trace-ST.parquet")
    side, _ = diagnosis_of(DiagnoseQuestion(files=(table,)), Flags())
    assert side.findings[0].cause == "last stage with head"
    assert "stragglers" in render(diagnose_answer(side, 0), "table")


@pytest.mark.parametrize("name", ["gloo4_none", "gloo4_dp2tp2"])
def test_healthy_runs_are_not_accused(shared_dir: Path, name: str) -> None:
    """Walls of ranks that share two cores vary by 10 to 25 %."""
    assert diagnosed([shared_dir / "traces" / "cpu" / name], Flags()).findings == ()


@pytest.mark.parametrize(
    ("name", "degrees"),
    [("gloo4_none", {"dp": 4}), ("gloo4_dp2tp2", {"tp": 2, "dp": 2})],
)
def test_the_layout_comes_from_the_groups(shared_dir: Path, name: str, degrees: dict[str, int]) -> None:
    """Groups are numbered differently on each rank, and collectives name none."""
    layout = diagnosed([shared_dir / "traces" / "cpu" / name], Flags()).job.layout
    assert dict(layout.degrees) == degrees
    if "tp" in degrees:
        assert layout.axis_of == {(0, 1): "tp", (2, 3): "tp", (0, 2): "dp", (1, 3): "dp"}


def test_a_program_of_copies_is_bound_by_them(shared_dir: Path) -> None:
    """The authors' finding: copies take 3.2 times the kernels."""
    path = shared_dir / "traces" / "nsys" / "saxpy_mpi_cuda_perlmutter0.sqlite"
    diagnosis = diagnosed([path], Flags())
    assert diagnosis.findings[0].cause == "copies in the step"
    assert diagnosis.totals.memcpy_s / diagnosis.totals.compute_s == pytest.approx(3.2, abs=0.05)


def test_small_models_on_large_gpus_are_host_bound(shared_dir: Path) -> None:
    """BERT small: 92 % idle by TraceLens."""
    for gpu in ("h100", "mi300"):
        first = diagnosed(
            [shared_dir / "traces" / "tracelens" / f"{gpu}_bert_small.json.gz"], Flags()
        ).findings[0]
        assert first.cause == "host-bound"
        assert first.share > 0.7
