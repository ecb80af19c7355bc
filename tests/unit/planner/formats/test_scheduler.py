"""What Slurm's accounting and the events of Kubernetes say of interruptions."""

import json

import pytest

from planner.formats.scheduler import Interruption, by_cause, scheduled
from topology.base.errors import InputError

SACCT = """JobID|State|Start|End
812|NODE_FAIL|2026-01-01T00:00:00|2026-01-01T10:00:00
812.batch|FAILED|2026-01-01T00:00:00|2026-01-01T10:00:00
812|PREEMPTED|2026-01-01T10:30:00|2026-01-01T12:00:00
812|CANCELLED by 1000|2026-01-01T12:05:00|2026-01-02T00:00:00
812|RUNNING|2026-01-02T01:00:00|Unknown
812|PENDING|Unknown|Unknown
"""


def event(reason: str, at: str, kind: str = "Pod", name: str = "job-0") -> dict[str, object]:
    """One event as `kubectl get events -o json` prints it."""
    return {"reason": reason, "lastTimestamp": at, "involvedObject": {"kind": kind, "name": name}}


def test_stints_of_slurm_give_interruptions_and_the_time_between() -> None:
    """Steps of the job and what waits are none; half an hour, five minutes and an hour without nodes."""
    found = scheduled(SACCT, "sacct.txt")
    assert by_cause(found.interruptions) == {"a node failed": 1, "cancelled": 1, "preempted": 1}
    assert [one.cause for one in found.failures] == ["a node failed", "preempted"]
    assert found.waited_s == 95 * 60


def test_events_of_many_pods_are_one_interruption() -> None:
    """Within two minutes; the node that one of them names is its node. Normal events are none."""
    items = [
        event("TaintManagerEviction", "2026-01-01T00:00:30Z"),
        event("NodeNotReady", "2026-01-01T00:00:00Z", "Node", "gpu-7"),
        event("Evicted", "2026-01-01T00:01:00Z"),
        event("Started", "2026-01-01T00:05:00Z"),
        event("NodeNotReady", "2026-01-03T00:00:00Z", "Node", "gpu-7"),
    ]
    found = scheduled(json.dumps({"items": items}), "events.json")
    assert [one.node for one in found.interruptions] == ["gpu-7", "gpu-7"]
    assert isinstance(found.interruptions[0], Interruption)
    assert found.waited_s is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a,b\n1,2\n", "does not say what interrupted the job"),
        ("", "does not say what interrupted the job"),
        ("JobID|State|Start|End\n1|PENDING|Unknown|Unknown\n", "does not say when the job ran"),
        (SACCT + "813|RUNNING|2026-01-02T01:00:00|Unknown\n", "is of several jobs"),
        ('{"kind": "List"}', "is no list of events"),
        ("[1, 2]", "is no list of events"),
    ],
    ids=["other table", "empty", "never started", "two jobs", "no items", "numbers"],
)
def test_other_files_are_refused(text: str, what: str) -> None:
    """With how to write one."""
    with pytest.raises(InputError, match=what) as refused:
        scheduled(text, "file")
    assert "sacct" in refused.value.fix or "kubectl" in refused.value.fix
