"""A capacity between a rate that is served and one that is not: what was seen to be served is never denied."""

from types import SimpleNamespace
from typing import Any

import pytest

from planner.serving import capacity

MOST = 88.08
LUCKLESS = 71.0, 71.58
"""Requests a second between which few requests break a limit that they keep at less, and at a little more."""


class Chunks(SimpleNamespace):
    """A replica under one of its schedulers."""


def _asked(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> list[tuple[int, float]]:
    """Replicas of these chunk sizes, which serve 74 a second; the smaller fails beyond the luckless ones."""
    asked = list[tuple[int, float]]()

    def serves(option: Any, rate_per_s: float) -> bool:
        asked.append((option.rules, rate_per_s))
        low, high = LUCKLESS
        if low < rate_per_s < high or (option.rules == sizes[0] and len(sizes) > 1):
            return rate_per_s < low
        return rate_per_s < 74.0

    monkeypatch.setattr(capacity, "serves", serves)
    monkeypatch.setattr(capacity, "with_chunks", lambda _: tuple(Chunks(rules=size) for size in sizes))
    return asked


def test_another_chunk_size_has_the_rate_at_which_it_was_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves 1.02 times what the first does; a bisection that asks below that by chance says otherwise."""
    asked = _asked(monkeypatch, 2048, 8192)
    best, served, ceiling = capacity.best_bracket(Chunks(), most_per_s=MOST)  # type: ignore[arg-type]  # a stand-in
    seen = max(rate for size, rate in asked if size == 8192 and rate < 74.0)
    assert best.rules == 8192  # type: ignore[comparison-overlap]  # a stand-in
    assert served >= seen
    assert ceiling > served


@pytest.mark.parametrize("needed", [60.0, 71.59, 73.9])
def test_what_was_needed_and_served_is_not_asked_again(
    needed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing at or below it, and the capacity is that or more."""
    asked = _asked(monkeypatch, 2048)
    able: Any = Chunks(rules=2048)
    _, served, ceiling = capacity.best_bracket(able, most_per_s=MOST, able=able, served_per_s=needed)
    assert all(rate > needed for _, rate in asked)
    assert needed <= served < ceiling
    alone = capacity.bracket_per_s(able, most_per_s=MOST)
    assert ceiling <= alone[1] or needed > LUCKLESS[1]
