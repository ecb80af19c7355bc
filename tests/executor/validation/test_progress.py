"""A validation says how far it is, at the latest every five seconds, and about how long the rest takes."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from executor.validation.progress import EVERY_S, POLL_S, Progress, results


def test_no_silence_is_longer_than_five_seconds() -> None:
    """Each part begins with a line, and lines follow while it is polled."""
    now_s, told_s = 0.0, []
    progress = Progress(lambda _: told_s.append(now_s), {"a": 10.0, "b": 30.0}, lambda: now_s)
    for part in ("a", "b"):
        progress.begin(part)
        for _ in range(40):
            now_s += POLL_S
            progress.alive()
    assert told_s[0] == 0.0
    assert (
        max(later - earlier for earlier, later in itertools.pairwise([*told_s, now_s]))
        <= EVERY_S + POLL_S
        <= 5.0
    )


def test_the_rest_is_what_the_work_so_far_says() -> None:
    """Half as fast as expected is twice as long."""
    now_s, said = 0.0, []
    progress = Progress(said.append, {"a": 10.0, "b": 30.0}, lambda: now_s)
    progress.begin("a")
    now_s = 20.0
    progress.begin("b")
    now_s = 50.0
    progress.alive(0.5)
    assert said == [
        "a: 0 s so far, about 40 s left",
        "b: 20 s so far, about 60 s left",
        "b: 50 s so far, about 4 s left",  # 30 s of the 30 that b takes: nine tenths, until more is known
    ]


def test_what_is_known_to_be_done_counts_more_than_time() -> None:
    """Three quarters done in a tenth of the time."""
    now_s, said = 0.0, []
    progress = Progress(said.append, {"a": 40.0}, lambda: now_s)
    progress.begin("a")
    now_s = 6.0
    progress.alive(0.75)
    assert said[-1] == "a: 6 s so far, about 2 s left"


def test_results_come_in_order_with_a_sign_of_life() -> None:
    """Whoever waits is told what share is there."""
    shares: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        slow, fast = pool.submit(time.sleep, 3 * POLL_S), pool.submit(int, 7)
        assert results([slow, fast], shares.append) == [None, 7]
    assert set(shares) == {0.5}


def test_the_first_failure_is_raised() -> None:
    """What else was asked for is not waited for."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="invalid literal"):
        results([pool.submit(int, "x"), pool.submit(int, 1)])
