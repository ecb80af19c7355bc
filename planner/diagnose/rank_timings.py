"""Which ranks compute slower than the others by the timers of a log, since when, by hardware or by work.

All ranks of a synchronous job take the same step: what tells them apart is the time of their own computation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.diagnose.finding import StepFinding
from planner.diagnose.stragglers import STRAGGLING
from planner.traces.rank_timers import RankTimers

COMPUTING: Final = ("forward-compute", "backward-compute", "optimizer-inner-step")
"""Timers of Megatron-LM in which a rank waits for no other."""
LOADING: Final = "batch-generator"
STEP: Final = ("forward-backward", "optimizer")
"""What a step is made of, of the longest rank."""
ALIKE: Final = 0.05
"""Slowdowns of forward and backward that differ by less are the same: the GPU's, not the work's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank whose computation takes longer than that of the middle rank."""

    rank: int
    slowdown: float
    """Its computation over that of the middle rank, the middle of what was printed since it is slow."""
    lost_s: float
    since: int
    """Place of the first printed time from which on it is slow, from 0."""
    by_hardware: bool
    """Whether all that it computes is slower by the same factor."""


def slow_ranks(timers: Mapping[str, Mapping[int, Sequence[float]]]) -> tuple[SlowRank, ...]:
    """Ranks that are slow at the end of what was printed, the slowest first.

    Args:
        timers: Of each timer the seconds of each rank, as often for each rank.
    """
    known = {name: _table(timers[name]) for name in COMPUTING if len(timers.get(name, ())) > 2}
    if not known:
        return ()
    ranks = sorted(set.intersection(*(set(timers[name]) for name in known)))
    count = min(table.shape[1] for table in known.values())
    total = np.sum([table[:, -count:] for table in known.values()], axis=0)
    slow = []
    for place, rank in enumerate(ranks):
        ratio = total[place] / np.maximum(np.median(total, axis=0), 1e-12)
        since = _since(ratio >= STRAGGLING)
        if since is None:
            continue
        factors = [float(np.median(_ratio(table[:, -count:], place)[since:])) for table in known.values()]
        slow.append(
            SlowRank(
                rank=rank,
                slowdown=float(np.median(ratio[since:])),
                lost_s=float(np.median((total[place] - np.median(total, axis=0))[since:])),
                since=since,
                by_hardware=len(factors) > 1 and max(factors) - min(factors) <= ALIKE * max(factors),
            )
        )
    return tuple(sorted(slow, key=lambda each: -each.lost_s))


def _table(times: Mapping[int, Sequence[float]]) -> NDArray[np.float64]:
    """Seconds by rank and moment; of ranks that were printed more often the last ones."""
    count = min(map(len, times.values()))
    return np.array([list(times[rank])[len(times[rank]) - count :] for rank in sorted(times)], np.float64)


def _ratio(table: NDArray[np.float64], place: int) -> NDArray[np.float64]:
    """A rank's times over those of the middle rank."""
    return np.asarray(table[place] / np.maximum(np.median(table, axis=0), 1e-12))


def _since(slow: NDArray[np.bool_]) -> int | None:
    """The place from which on most moments are slow, up to the last one; None where there is none."""
    if not len(slow) or not slow[-3:].any():
        return None
    after = np.cumsum(slow[::-1])[::-1] / np.arange(len(slow), 0, -1)
    places = np.flatnonzero(slow & (after >= 0.9))
    return int(places[0]) if len(places) else None


def timing_findings(timers: RankTimers) -> Iterator[StepFinding]:
    """What timers by rank explain: a slow rank, stages that are uneven, or a loader."""
    by_rank = timers.by_rank
    slow = slow_ranks(by_rank)
    ranks = sorted({rank for of in by_rank.values() for rank in of})
    whole = [_table(by_rank[name]) for name in STEP if by_rank.get(name)]
    step_s = sum(float(np.median(table.max(axis=0))) for table in whole)

    def share(lost_s: float) -> float:
        return min(lost_s / step_s, 1.0) if step_s > 0 else 0.0

    block = sorted(each.rank for each in slow)
    if len(block) > 1 and len(ranks) % len(block) == 0 and block[-1] - block[0] == len(block) - 1:
        lost = max(each.lost_s for each in slow)
        yield StepFinding(
            cause="uneven stages",
            seconds=lost,
            share=share(lost),
            evidence=f"ranks {block[0]} to {block[-1]} compute {slow[0].slowdown:.2f} times as long",
            fix="give the stage of these ranks fewer layers",
        )
    else:
        for each in slow:
            kind = "all of it alike: its GPU or node" if each.by_hardware else "not all alike: its work"
            longer = f"computes {each.slowdown:.2f} times as long as the middle rank"
            yield StepFinding(
                cause="slow rank",
                rank=each.rank,
                seconds=each.lost_s,
                share=share(each.lost_s),
                evidence=f"{longer} since line {each.since + 1} of its timers, {kind}",
                fix=f"compare nvidia-smi -q -d CLOCK,PERFORMANCE of rank {each.rank} with another rank",
            )
    loading = by_rank.get(LOADING)
    if loading and step_s > 0:
        worst = max(loading, key=lambda rank: float(np.median(loading[rank])))
        lost = float(np.median(loading[worst]))
        if lost * STRAGGLING / (STRAGGLING - 1) >= step_s:
            yield StepFinding(
                cause="loader",
                rank=worst,
                seconds=lost,
                share=share(lost),
                evidence=f"{LOADING} takes {lost:.3g} s of a step of {step_s:.3g} s",
                fix="raise --num-workers",
            )
