"""Of fleets of a closed loop as fast as can be told, the one whose cache takes the longest requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from planner.serving import closed_loop
from planner.serving.board import RESOLUTION

WHOLE = 1000
RUNS = [
    # requests a second, longest request and unmeasured axes of the fastest, of another, and which is taken
    ((1.0, 50, ()), (1 - RESOLUTION / 2, WHOLE, ()), "other"),
    ((1.0, 50, ()), (1 - 2 * RESOLUTION, WHOLE, ()), "fastest"),  # it is slower than that
    ((1.0, WHOLE, ()), (1 - RESOLUTION / 2, WHOLE, ()), "fastest"),  # nothing is gained
    ((1.0, 50, ()), (1 - RESOLUTION / 2, 60, ("stages",)), "fastest"),  # nobody measured that
    ((1.0, 50, ("stages",)), (1 - RESOLUTION / 2, 60, ("stages",)), "other"),
]


@pytest.mark.parametrize(("fastest", "other", "taken"), RUNS)
def test_requests_as_long_as_the_model_takes_are_not_lost_within_the_error(
    fastest: tuple[float, int, tuple[str, ...]],
    other: tuple[float, int, tuple[str, ...]],
    taken: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DeepSeek-V4-Pro on eight B200: experts split over tp serve 1.5 % more, and no prompt beyond 27,240."""
    runs: dict[str, Any] = {
        name: SimpleNamespace(request_rate_per_s=rate, decode=longest, axes=axes)
        for name, (rate, longest, axes) in (("fastest", fastest), ("other", other))
    }
    monkeypatch.setattr(closed_loop, "held_by", lambda _, longest: SimpleNamespace(longest_tokens=longest))
    monkeypatch.setattr(closed_loop, "unmeasured_in", lambda run: run.axes)
    request: Any = SimpleNamespace(model=SimpleNamespace(max_sequence_length=WHOLE))
    board: Any = SimpleNamespace(runs=runs)
    assert closed_loop._of_longer_requests(request, board, runs["fastest"]) is runs[taken]
