"""Files of failures: reading one, and the campaign of a plan in the world that it describes."""

from __future__ import annotations

import functools
import json
from random import Random
from typing import Any

from tests.property.fuzz.mutate import mutated_text, mutated_tree, toml_of
from tests.property.fuzz.surface import Box

_SITE: dict[str, Any] = {
    "name": "ours", "gpu": "h100-sxm", "gpus": 512, "days": 30, "planned": 2,
    "causes": [
        {"name": "GPU", "events": 12, "device": "gpu", "loses": "node"},
        {"name": "hang", "events": 3, "noticed": "hang"},
    ],
}  # fmt: skip
_FILES: tuple[dict[str, Any], ...] = (
    {"site": "llama-3", "restart": "requeue", "peer_memory": True},
    {"site": _SITE, "times": {"swap": {"seconds": 90, "low_s": 60, "high_s": 200}}, "min_gpus": 4},
    {
        "site": {**_SITE, "measured": [{"gpus": 64, "hours": 300.0}]},
        "storage": {"name": "disk", "write_bytes_per_s": 4e9, "read_bytes_per_s": 6e9},
        "stragglers": {"prevalence": 0.01, "slowdown": 1.2, "spell": {"seconds": 86400}},
        "asynchronous": False,
    },
    {
        "site": {
            **_SITE,
            "nodes_per_rack": 4,
            "nodes_per_switch": 32,
            "causes": [
                {"name": "rack", "events": 6, "device": "rack", "loses": "rack"},
                {"name": "switch", "events": 3, "device": "switch", "loses": "rack"},
                {"name": "storage", "events": 2, "device": "storage"},
                {"name": "power", "events": 1, "loses": "memory"},
            ],
        },
        "spot": {"per_hour": 0.01, "warning_s": 120, "replaced": {"seconds": 1800}},
        "tiers": [
            {"kind": "peer", "survives": "rack", "usd": 1e5},
            {"kind": "nvme", "write_bytes_per_s": 5e9, "read_bytes_per_s": 9e9, "bytes": 1e13},
            {"kind": "file-system", "write_bytes_per_s": 1e11, "read_bytes_per_s": 1e11},
        ],
        "times": {"rack_repair": {"seconds": 7200}, "outage": {"seconds": 600}},
        "changed_share": 0.5,
        "spares_for": "date",
        "loader": {"bytes_per_token": 600, "bytes_per_s": 1e12},
    },
)


def make_failures(random: Random, story: list[str]) -> str:
    text = toml_of(mutated_tree(random.choice(_FILES), random, story))
    return mutated_text(text, random, story) if random.random() < 0.2 else text


@functools.cache
def a_plan() -> Any:
    """A plan with an end."""
    import meshplan

    return meshplan.plan("8b", gpus=8, tokens="100B", top=1)


_LOGS = (
    "".join(f'{{"step": {n}, "step_time_s": 1.5, "at_s": {1.7e9 + 2 * n}}}\n' for n in (1, 2, 3, 2, 3, 4)),
    "".join(
        f" [2026-01-02 03:0{n}:05] iteration {n}/ 100 | elapsed time per iteration (ms): 5400.5 | loss: 2\n"
        for n in (1, 2, 3, 1)
    ),
    "".join(
        f"[titan] 2026-01-02 03:04:0{n},678 - root - INFO - step: {n}  loss: 2.0  tps: 7,123\n"
        for n in (1, 2)
    ),
)


def make_log(random: Random, story: list[str]) -> str:
    return mutated_text(random.choice(_LOGS), random, story)


def watch_log(text: str, box: Box) -> object:
    """How the run of a log stands against a plan with an end."""
    from app.commands.watch.read import watched_runs
    from topology.base.decode import unstructure

    found = watched_runs(a_finished_plan(), [box.file("train.log", text)])
    if found.useful_share is not None and not 0 <= found.useful_share <= 1:
        raise AssertionError(f"a useful share of {found.useful_share}")
    return unstructure(found)


_EVENTS = (
    "JobID|State|Start|End\n" + "".join(
        f"8|{state}|2026-01-0{n}T00:00:00|2026-01-0{n}T10:00:00\n8.batch|{state}||Unknown\n"
        for n, state in ((1, "NODE_FAIL"), (2, "CANCELLED by 7"), (3, "COMPLETED"))
    ),
    json.dumps({"items": [
        {"reason": "NodeNotReady", "lastTimestamp": f"2026-01-0{n}T00:00:00Z",
         "involvedObject": {"kind": "Node", "name": "gpu-7"}}
        for n in (1, 2)
    ]}),
)  # fmt: skip


def make_events(random: Random, story: list[str]) -> str:
    return mutated_text(random.choice(_EVENTS), random, story)


def read_events(text: str, box: Box) -> object:
    """What a scheduler says; time without nodes is never negative."""
    from planner.formats.scheduler import by_cause, scheduled
    from topology.base.files import read_text

    found = scheduled(read_text(box.file("events.txt", text)), "events.txt")
    if found.waited_s is not None and not 0 <= found.waited_s < 1e15:
        raise AssertionError(f"{found.waited_s} seconds without nodes")
    return by_cause(found.interruptions)


@functools.cache
def a_finished_plan() -> Any:
    """The same with its campaign."""
    from planner.campaign.finish import with_campaign

    return with_campaign(a_plan())


def answer_failures(text: str, box: Box) -> object:
    """The finished run, and that of a plan that was written and read with it."""
    from costmodel.campaign.failures import read_failures
    from planner.campaign.finish import with_campaign
    from planner.plan import from_json, to_json
    from planner.search.verified import verified
    from topology.base.decode import unstructure

    found = with_campaign(a_plan(), read_failures(box.file("failures.toml", text), "h100-sxm"))
    again = from_json(to_json(found))
    if verified(again, "plan.json") != found:
        raise AssertionError("the campaign does not survive being written and read")
    shares = found.campaign.lost_share
    if not abs(found.campaign.mean_useful_share + shares.total - 1) < 1e-6:
        raise AssertionError("the shares of the time are not one")
    return {
        "useful_share": unstructure(found.campaign.useful_share),
        "days": unstructure(found.campaign.days),
    }
