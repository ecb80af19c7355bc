"""What a scheduler says interrupted a job: Slurm's accounting, or the events of Kubernetes.

Slurm: ``sacct -j JOB --duplicates --allocations --parsable2 --format=JobID,State,Start,End``.
Kubernetes: ``kubectl get events -o json`` of the job's namespace.
"""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from topology.base.errors import InputError, shown

MOST_EVENTS = 100_000
TOGETHER_S = 120.0
"""Events of one interruption: every pod of a job says that it is gone."""
_STATES = {
    "NODE_FAIL": "a node failed",
    "BOOT_FAIL": "a node failed",
    "FAILED": "the job failed",
    "OUT_OF_MEMORY": "host memory ran out",
    "PREEMPTED": "preempted",
    "REQUEUED": "requeued",
    "TIMEOUT": "its time was over",
    "DEADLINE": "its time was over",
    "CANCELLED": "cancelled",
}
_REASONS = {
    "NodeNotReady": "a node failed",
    "DeletingNode": "a node failed",
    "TaintManagerEviction": "a node failed",
    "Evicted": "evicted",
    "Preempted": "preempted",
    "BackOff": "the job failed",
    "OOMKilling": "host memory ran out",
}
MEANT = ("its time was over", "cancelled")
"""Ends that somebody asked for: no failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """One time that the job stopped: seconds since 1970, why, and the node that is named for it."""

    at_s: float
    cause: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduled:
    """What the scheduler saw, oldest first; seconds without nodes between two starts, None where not said."""

    interruptions: tuple[Interruption, ...]
    waited_s: float | None

    @property
    def failures(self) -> tuple[Interruption, ...]:
        """Those that nobody asked for."""
        return tuple(interruption for interruption in self.interruptions if interruption.cause not in MEANT)


def scheduled(text: str, name: str) -> Scheduled:
    """Read either form.

    Raises:
        InputError: it is neither, or nothing of it says when.
    """
    return _of_kubernetes(text, name) if text.lstrip()[:1] in ("{", "[") else _of_slurm(text, name)


def _of_slurm(text: str, name: str) -> Scheduled:
    """Stints of a job, requeued ones too; steps of it (JobID 12.batch) are left out."""
    head, *lines = [line.split("|") for line in text.splitlines()[:MOST_EVENTS]] or [[]]
    rows = [dict(zip(head, line, strict=False)) for line in lines if len(line) >= len(head)]
    if not rows or not {"State", "Start", "End"} <= set(rows[0]):
        raise InputError(
            what=f"{shown(name)} does not say what interrupted the job",
            cause="it has no columns State, Start and End divided by |, and is not JSON",
            fix="write it with sacct -j JOB -D -X -P --format=JobID,State,Start,End, "
            "or kubectl get events -o json",
        )
    jobs = {row.get("JobID", "").split(".")[0] for row in rows}
    if len(jobs) > 1:
        raise InputError(
            what=f"{shown(name)} is of several jobs",
            cause=f"JobID is {', '.join(sorted(jobs)[:3])}",
            fix="name one with sacct -j JOB",
        )
    whole = [row for row in rows if "." not in row.get("JobID", "")]
    times = [(start, _at(row["End"])) for row in whole if (start := _at(row["Start"])) is not None]
    times.sort(key=operator.itemgetter(0))
    if not times:
        raise InputError(
            what=f"{shown(name)} does not say when the job ran",
            cause="no row has a time as its Start",
            fix="ask sacct for a job that has started",
        )
    pairs = itertools.pairwise(times)
    return Scheduled(
        interruptions=tuple(
            Interruption(at_s=at_s, cause=cause) for at_s, cause in sorted(_interruptions(whole))
        ),
        waited_s=sum(max(0.0, start - end) for (_, end), (start, _) in pairs if end is not None),
    )


def _interruptions(rows: Sequence[Mapping[str, str]]) -> Iterator[tuple[float, str]]:
    """When and why stints ended that did; "CANCELLED by 1000" is cancelled."""
    for row in rows:
        at_s, cause = _at(row["End"]), _STATES.get(row["State"].partition(" ")[0])
        if at_s is not None and cause is not None:
            yield at_s, cause


def _of_kubernetes(text: str, name: str) -> Scheduled:
    """Events with a reason that ends a job; those within two minutes of each other are one."""
    try:
        items: Any = json.loads(text)
        items = items["items"] if isinstance(items, dict) else items
        interruptions = [event for item in items[:MOST_EVENTS] if (event := _event(item)) is not None]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            what=f"{shown(name)} is no list of events",
            cause="it is JSON without items that have reasons",
            fix="write it with kubectl get events -o json",
        ) from None
    interruptions.sort(key=lambda interruption: interruption.at_s)
    apart: list[Interruption] = []
    last_s = float("-inf")
    for interruption in interruptions:
        if interruption.at_s - last_s > TOGETHER_S:
            apart.append(interruption)
        elif interruption.node and not apart[-1].node:
            apart[-1] = Interruption(at_s=apart[-1].at_s, cause=interruption.cause, node=interruption.node)
        last_s = interruption.at_s
    return Scheduled(interruptions=tuple(apart), waited_s=None)


def _event(item: Mapping[str, Any]) -> Interruption | None:
    """One event, None where it interrupts nothing."""
    cause = _REASONS.get(str(item["reason"]))
    at_s = _at(str(item.get("lastTimestamp") or item.get("eventTime") or ""))
    if cause is None or at_s is None:
        return None
    of = item.get("involvedObject") or item.get("regarding")
    if not isinstance(of, dict) or of.get("kind") != "Node":
        return Interruption(at_s=at_s, cause=cause)
    return Interruption(at_s=at_s, cause=cause, node=str(of["name"])[:253])


def _at(text: str) -> float | None:
    """Seconds since 1970 of a time as schedulers print it; None where it is Unknown or None.

    >>> _at("2026-01-02T03:04:05"), _at("2026-01-02T03:04:05Z"), _at("Unknown")
    (1767323045.0, 1767323045.0, None)
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def by_cause(interruptions: Sequence[Interruption]) -> dict[str, int]:
    """How many of each, most first."""
    causes = [interruption.cause for interruption in interruptions]
    return {cause: causes.count(cause) for cause in sorted(set(causes), key=lambda c: (-causes.count(c), c))}
