"""Layouts of one job are ranked against their measured order."""

import pytest

from costmodel.accuracy.ranking import ranked_jobs

Row = tuple[dict[str, str], float | None, float | None]


def job(measured: list[float], predicted: list[float], **columns: str) -> list[Row]:
    """Layouts of one job that differ in tp."""
    pairs = zip(measured, predicted, strict=True)
    return [({"tp": str(tp), "model": "GPT", **columns}, *times) for tp, times in enumerate(pairs)]


@pytest.mark.parametrize(
    ("predicted", "spearman", "regret"),
    [
        ([2.0, 4.0, 6.0, 8.0], 1.0, 0.0),  # the level does not matter
        ([8.0, 6.0, 4.0, 2.0], -1.0, 3.0),  # the worst is taken: 4 s for 1 s
        ([2.0, 1.0, 3.0, 4.0], 0.8, 1.0),  # 1 − 6·(1 + 1)/(4·15)
        ([1.0, 1.0, 2.0, 3.0], 4.5 / (5 * 4.5) ** 0.5, 0.0),  # equal ones share the mean of their ranks
    ],
)
def test_rank_and_regret(predicted: list[float], spearman: float, regret: float) -> None:
    """Spearman's ρ by its formula, and what following the prediction costs."""
    (found,) = ranked_jobs(job([1.0, 2.0, 3.0, 4.0], predicted))
    assert found.layouts == 4
    assert found.spearman == pytest.approx(spearman)
    assert found.regret == pytest.approx(regret)


def test_two_layouts_are_no_ranking_and_jobs_are_kept_apart() -> None:
    """Depth, too, tells jobs apart: rows of one name may be of many models."""
    shallow, deep = (job([1.0, 2.0], [1.0, 2.0], num_layers=layers) for layers in ("12", "24"))
    assert ranked_jobs(shallow + deep) == []
    assert len(ranked_jobs(job([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) + shallow)) == 1


def test_a_layout_measured_twice_is_one_layout() -> None:
    """Its means are ranked, and rows without a time are not."""
    rows = job([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    again: list[Row] = [(rows[0][0], 4.0, 1.0), (rows[1][0], None, 1.0)]
    assert ranked_jobs(rows[:2] + again) == []
    (found,) = ranked_jobs(rows + again)  # measured 2.5, 2 and 3 s
    assert found.layouts == 3
    assert found.spearman == pytest.approx(0.5)
    assert found.regret == pytest.approx(0.25)
