"""Ranks that compute slower than others, from the timers that Megatron-LM prints with --timing-log-option all."""

from __future__ import annotations

import random

import pytest

from planner.diagnose.rank_timings import slow_ranks, timing_findings
from planner.traces.rank_timers import rank_timers
from tests.counts import tries

FORWARD, BACKWARD = "forward-compute", "backward-compute"


def log_of(seconds: dict[str, list[list[float]]], head: str = "") -> str:
    """Timers by moment and rank, as `_get_all_ranks_time_string` writes them."""
    lines = []
    for moment in range(len(next(iter(seconds.values())))):
        lines += [
            f" iteration {moment + 1}/ 100 | elapsed time per iteration (ms): 1000.0 |",
            f"{head}times across ranks (ms):",
        ]
        for name, moments in seconds.items():
            lines.append(f"  {name}:")
            lines += [f"     rank {rank:2d}: {1000 * time:.2f}" for rank, time in enumerate(moments[moment])]
    return "\n".join(lines)


def timed(draw: random.Random, ranks: int, moments: int, factor: object) -> dict[str, list[list[float]]]:
    """A step of a second: a third forward, the rest backward; `factor` of timer, rank and moment."""

    def times(name: str, base: float) -> list[list[float]]:
        return [
            [base * draw.gauss(1, 0.02) * factor(name, rank, moment) for rank in range(ranks)]
            for moment in range(moments)
        ]  # type: ignore[operator]

    seconds = {FORWARD: times(FORWARD, 0.3), BACKWARD: times(BACKWARD, 0.6)}
    whole = [
        [max(map(sum, zip(f, b, strict=True))) + 0.1] * ranks
        for f, b in zip(seconds[FORWARD], seconds[BACKWARD], strict=True)
    ]
    return {"forward-backward": whole, **seconds, "batch-generator": times("batch-generator", 0.01)}


def test_timers_are_read_as_they_are_printed() -> None:
    read = rank_timers(
        log_of({"forward-backward": [[1.0, 2.0], [3.0, 4.0]], FORWARD: [[0.5, 0.25], [0.5, 0.5]]})
    )
    assert read.by_rank == {
        "forward-backward": {0: (1.0, 3.0), 1: (2.0, 4.0)},
        FORWARD: {0: (0.5, 0.5), 1: (0.25, 0.5)},
    }
    line = "    {}: ({:.2f}, {:.2f})".format((FORWARD + " ").ljust(48, "."), 120.0, 250.5)
    assert rank_timers(f"(min, max) time across ranks (ms):\n{line}\n").ranges == {FORWARD: ((0.12, 0.2505),)}


@pytest.mark.parametrize("by_hardware", [True, False])
def test_a_slow_rank_is_named_with_since_when_and_why(by_hardware: bool) -> None:
    for seed in range(tries(20, 300)):
        draw = random.Random(seed)
        ranks, moments = draw.choice((4, 8, 16)), draw.randint(6, 30)
        culprit, since = draw.randrange(ranks), draw.randrange(moments - 4)

        def factor(name: str, rank: int, moment: int, culprit: int = culprit, since: int = since) -> float:
            slow = rank == culprit and moment >= since and (by_hardware or name == BACKWARD)
            return 1.5 if slow else 1.0

        (slow,) = slow_ranks(rank_timers(log_of(timed(draw, ranks, moments, factor))).by_rank)
        assert (slow.rank, slow.since, slow.by_hardware) == (culprit, since, by_hardware)
        assert slow.lost_s == pytest.approx(0.45 if by_hardware else 0.3, rel=0.15)


def test_findings_tell_ranks_stages_and_loaders_apart() -> None:
    faults = {
        "": lambda *_: 1.0,
        "slow rank": lambda *at: 1.4 if at[1] == 3 else 1.0,
        "uneven stages": lambda *at: 1.4 if at[1] in (4, 5) else 1.0,
        "loader": lambda *at: 40.0 if at[0] == "batch-generator" else 1.0,
    }
    for seed in range(tries(10, 100)):
        for cause, factor in faults.items():
            findings = list(timing_findings(rank_timers(log_of(timed(random.Random(seed), 8, 10, factor)))))
            assert [finding.cause for finding in findings] == ([cause] if cause else [])
            if cause in ("slow rank", "uneven stages"):
                assert findings[0].seconds == pytest.approx(0.36, rel=0.15)
                assert findings[0].share == pytest.approx(0.36 / 1.36, rel=0.15)


def test_what_was_slow_once_accuses_nobody() -> None:
    log = timed(random.Random(1), 8, 20, lambda *at: 2.0 if at[1:] == (2, 7) else 1.0)
    assert slow_ranks(rank_timers(log_of(log)).by_rank) == ()
    assert slow_ranks({}) == ()
    assert list(timing_findings(rank_timers("no timers\n  here:\n     rank  0: x"))) == []


def test_mutated_logs_never_break_it() -> None:
    draw = random.Random(2)
    text = log_of(timed(draw, 4, 5, lambda *_: 1.0))
    for _ in range(tries(300, 10_000)):
        cut = text
        for _ in range(draw.randint(1, 5)):
            place = draw.randrange(len(cut))
            cut = (
                cut[:place]
                + draw.choice(("", "\n", "9" * 12, "rank", ":", "-", "0.00"))
                + cut[place + draw.randint(0, 30) :]
            )
        assert all(0 <= finding.share <= 1 for finding in timing_findings(rank_timers(cut)))
