"""Following a load with replicas: conservation, and what the policy buys."""

import numpy as np
import pytest

from planner.analysis.serving.autoscale import ScalingPolicy, autoscale


def day(rate_per_s: float = 4.0) -> np.ndarray:
    """A day whose load swings by the hour."""
    rng = np.random.default_rng(1)
    arrivals = np.sort(rng.uniform(0, 86_400, int(rate_per_s * 86_400)))
    keep = rng.uniform(size=len(arrivals)) < (1 - np.cos(2 * np.pi * arrivals / 86_400)) / 2
    return np.asarray(arrivals[keep], dtype=np.float64)


def test_a_fleet_for_the_peak_misses_nothing_and_costs_most() -> None:
    """Following the load saves GPU hours; standing at the peak does not miss."""
    arrivals = day()
    common = {"capacity_per_s": 1.0, "wait_limit_s": 2.0, "gpus_per_replica": 4, "usd_per_gpu_hour": 2.0}
    fixed = autoscale(arrivals, policy=ScalingPolicy(fewest=6, most=6), **common)
    following = autoscale(arrivals, policy=ScalingPolicy(most=20), **common)
    assert fixed.missed_share == 0.0
    assert following.gpu_hours < fixed.gpu_hours
    assert following.utilisation > fixed.utilisation
    assert fixed.usd == pytest.approx(fixed.gpu_hours * 2.0)


def test_a_constant_load_below_capacity_needs_no_scaling() -> None:
    """One replica stays one replica, and nothing waits."""
    run = autoscale(
        np.arange(0, 7200, 2.0),
        capacity_per_s=1.0,
        wait_limit_s=1.0,
        gpus_per_replica=1,
        policy=ScalingPolicy(),
    )
    assert run.replicas.tolist() == [1.0] * len(run.replicas)
    assert run.missed_share == 0.0
    assert run.backlog.max() == 0.0


def test_overload_grows_a_backlog_until_new_replicas_start() -> None:
    """A step in the load is missed for as long as replicas take to start."""
    arrivals = np.concatenate([np.arange(0, 600, 2.0), np.arange(600, 3600, 0.25)])
    slow, quick = (
        autoscale(
            arrivals, capacity_per_s=1.0, wait_limit_s=5.0, gpus_per_replica=1,
            policy=ScalingPolicy(start_up_s=start, most=32),
        )
        for start in (600.0, 60.0)
    )  # fmt: skip
    assert slow.missed_share > quick.missed_share
    assert quick.backlog[-1] < quick.backlog.max()
    assert slow.requests == quick.requests == len(arrivals)
