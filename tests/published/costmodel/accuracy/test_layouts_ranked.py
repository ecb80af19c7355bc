"""The order of the layouts of one job is right, which is what a search needs."""

import csv
from pathlib import Path

import pytest

from costmodel.accuracy.ranking import RankedJob, ranked_jobs
from costmodel.accuracy.training import predict_rows, summarise
from costmodel.accuracy.training_runs import read_rows
from costmodel.kernels.tables import load_calibration

KEPT = Path(__file__).parents[4] / "docs" / "data" / "cross_validation.csv"
LEAST_SPEARMAN, MOST_REGRET = 0.9, 0.03
VENDORS_LOSE = pytest.mark.xfail(
    strict=True,
    reason="3.03 %: vTrain's small steps, where a layer of twice the width takes less, and FSDP of Qwen3-235B",
)


def of_kept(rows: dict[str, dict[str, str]], way: str) -> list[RankedJob]:
    """Jobs as ranked by constants that were fitted without their group."""
    with KEPT.open(encoding="utf-8") as file:
        kept = list(csv.DictReader(file))
    return ranked_jobs(
        (rows[one["id"]], float(one["measured_s"]), float(one[f"held_out_{way}_s"])) for one in kept
    )


def test_layouts_of_a_job_are_ranked(shared_dir: Path) -> None:
    """As shipped: Spearman of 0.9 or more and 3 % lost by the layout predicted best, means over 100 jobs."""
    everything = summarise(predict_rows(read_rows(shared_dir / "training_runs_v2.csv"), load_calibration()))
    assert everything[-1].ranked_jobs > 100
    assert everything[-1].rank_correlation >= LEAST_SPEARMAN
    assert everything[-1].top1_regret <= MOST_REGRET


@pytest.mark.parametrize("way", ["vendors", "layouts"])
def test_constants_that_never_saw_a_layout_rank_it(shared_dir: Path, way: str) -> None:
    """Spearman by the stored cross-validation."""
    rows = {row["id"]: dict(row) for row in read_rows(shared_dir / "training_runs_v2.csv")}
    jobs = of_kept(rows, way)
    assert len(jobs) > 100
    assert sum(job.spearman for job in jobs) / len(jobs) >= LEAST_SPEARMAN


@pytest.mark.parametrize("way", [pytest.param("vendors", marks=VENDORS_LOSE), "layouts"])
def test_constants_that_never_saw_a_layout_lose_little_by_their_choice(shared_dir: Path, way: str) -> None:
    """Regret by the stored cross-validation."""
    rows = {row["id"]: dict(row) for row in read_rows(shared_dir / "training_runs_v2.csv")}
    jobs = of_kept(rows, way)
    assert len(jobs) > 100
    assert sum(job.regret for job in jobs) / len(jobs) <= MOST_REGRET
