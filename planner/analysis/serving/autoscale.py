"""What if the fleet followed the load.

Replicas over a day under a queue-depth policy, its cost and its misses.

A fluid model, one step per control interval: arrivals join a backlog, running replicas drain it at their
capacity (which the simulation of one replica found), and the policy asks for as many replicas as keep the
backlog of each at its target. New replicas arrive after a start-up time; idle ones leave after a cool-down.

Legend: ``q`` requests waiting, ``μ`` requests per second of a replica, ``Δ`` control interval.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

import numpy as np

from topology.base.arrays import Floats
from topology.base.units import HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """How a fleet is scaled.

    Between `fewest` and `most` replicas, towards `target_queue` requests waiting in each.
    """

    target_queue: float = 4.0
    interval_s: float = 60.0
    start_up_s: float = 300.0
    cool_down_s: float = 600.0
    fewest: int = 1
    most: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRun:
    """A day under a policy; arrays are per control interval."""

    time_s: Floats
    arrivals_per_s: Floats
    replicas: Floats
    backlog: Floats
    missed_share: float
    gpu_hours: float
    usd: float | None
    utilisation: float
    requests: int

    @property
    def utilisation_per_usd(self) -> float | None:
        """GPU utilisation bought per dollar of an hour; None without a price."""
        return None if not self.usd else self.utilisation * self.gpu_hours / self.usd


def autoscale(
    arrivals_s: Floats,
    *,
    capacity_per_s: float,
    wait_limit_s: float,
    gpus_per_replica: int,
    policy: ScalingPolicy,
    usd_per_gpu_hour: float | None = None,
) -> ScalingRun:
    """Follow a trace of arrival times with replicas that each serve `capacity_per_s` requests per second.

    A request misses its limit when the backlog it joins takes longer than `wait_limit_s` to drain.
    """
    steps = max(ceil(float(arrivals_s.max(initial=0.0)) / policy.interval_s), 1) + 1
    counts = np.histogram(arrivals_s, bins=steps, range=(0.0, steps * policy.interval_s))[0].astype(float)
    replicas, backlog, missed, served = np.zeros(steps), np.zeros(steps), 0.0, 0.0
    running, waiting, idle_since = policy.fewest, 0.0, 0.0
    starting: deque[float] = deque()
    for step in range(steps):
        now = step * policy.interval_s
        while starting and starting[0] <= now:
            starting.popleft()
            running += 1
        drain = running * capacity_per_s * policy.interval_s
        missed += _late(counts[step], waiting, running * capacity_per_s, wait_limit_s, policy.interval_s)
        done = min(waiting + counts[step], drain)
        waiting += counts[step] - done
        served += done
        replicas[step], backlog[step] = running, waiting
        wanted = _wanted(policy, waiting, counts[step], capacity_per_s)
        if wanted > running + len(starting):
            starting.extend([now + policy.start_up_s] * (wanted - running - len(starting)))
        idle_since = now if wanted >= running else idle_since
        if wanted < running and now - idle_since >= policy.cool_down_s:
            running, idle_since = max(wanted, policy.fewest), now
    gpu_hours = float(replicas.sum()) * gpus_per_replica * policy.interval_s / HOUR
    offered = float(replicas.sum()) * capacity_per_s * policy.interval_s
    return ScalingRun(
        time_s=np.arange(steps, dtype=np.float64) * policy.interval_s,
        arrivals_per_s=counts / policy.interval_s,
        replicas=replicas,
        backlog=backlog,
        missed_share=missed / max(float(counts.sum()), 1.0),
        gpu_hours=gpu_hours,
        usd=None if usd_per_gpu_hour is None else gpu_hours * usd_per_gpu_hour,
        utilisation=served / offered,
        requests=int(counts.sum()),
    )


def _wanted(policy: ScalingPolicy, waiting: float, arrived: float, capacity_per_s: float) -> int:
    """Replicas that carry the present rate and hold no more than the target queue each."""
    for_rate = arrived / policy.interval_s / capacity_per_s
    for_queue = waiting / max(policy.target_queue, 1e-9) if waiting > policy.target_queue else 0.0
    drain_soon = waiting / (capacity_per_s * policy.start_up_s) if policy.start_up_s else for_queue
    return int(min(max(ceil(for_rate + min(for_queue, drain_soon)), policy.fewest), policy.most))


def _late(arrived: float, waiting: float, rate_per_s: float, limit_s: float, interval_s: float) -> float:
    """Arrivals of an interval whose wait exceeds the limit.

    The backlog changes linearly over the interval.
    """
    if arrived <= 0:
        return 0.0
    start = waiting / rate_per_s
    end = max(waiting + arrived - rate_per_s * interval_s, 0.0) / rate_per_s
    if max(start, end) <= limit_s:
        return 0.0
    if min(start, end) >= limit_s:
        return arrived
    return arrived * (max(start, end) - limit_s) / abs(end - start)
