"""`plan serve --rehearse`: the saved scripts started without GPUs serve their load as simulated."""

import os
import re
from pathlib import Path

import pytest

from app.actions.rehearse import (
    PERCENTILES,
    WORDS,
    Rehearsal,
    announced,
    hierarchy_of,
    rehearsal_table,
    rehearse,
)
from costmodel.kernels.tables import load_calibration
from planner.analysis.serving.fleets import find_fleet
from planner.analysis.serving.rehearsal import rehearsed
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import Asked, understand_serving
from planner.serving.plan import ServingPlan
from tests.counts import tries
from tests.patience import undisturbed
from tests.unit.planner.deployment.fleets import resized
from topology.base.errors import InputError
from topology.builders import default_cluster

SPAN_S = float(tries(2, 4))
"""Of the load that is sent: each request is compared with its own simulation, so more of them are like cases."""


def asked_for(**words: str) -> tuple[ServingPlan, Asked]:
    """A small fleet."""
    asked = understand_serving(
        ServeFlags(
            model="8b", gpu="h100-sxm", input_tokens="2000", output_tokens="20", ttft="2s", tpot="60ms",
            settings=(), **words,
        )
    )  # fmt: skip
    return find_fleet(asked), asked


def started_here() -> list[str]:
    """Programs of a rehearsal that run now, by their command."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            words = (one / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            parent = (one / "environ").read_bytes()
        except OSError:
            continue
        if "planner.rehearsal.programs" in words and f"REHEARSED_BY={os.getpid()}".encode() in parent:
            found.append(words)
    return found


@pytest.mark.clock
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "servers"),
    [
        ({"engine": "vllm", "gpus": "2", "rate": "20/s", "mode": "aggregated"}, 2),
        ({"engine": "sglang", "gpus": "2", "rate": "8/s", "mode": "disaggregated"}, 2),
    ],
)
def test_a_started_deployment_serves_as_its_simulation_says(
    words: dict[str, str], servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through its router, medians within 5 %, the 99th percentile within 10 %; no process is left."""
    monkeypatch.setenv("REHEARSED_BY", str(os.getpid()))
    plan, asked = asked_for(**words)
    if words["mode"] == "aggregated":
        plan = resized_to(plan, servers)

    def wrong() -> str:
        found = rehearse(plan, hierarchy_of(plan, asked.requests), span_s=SPAN_S)
        assert found.servers == servers
        errors = [
            (abs(found.error(name, PERCENTILES.index(percentile))), most)
            for name in WORDS
            for percentile, most in ((50, 0.05), (99, 0.10))
        ]
        return "" if all(error <= most for error, most in errors) else str(found)

    assert undisturbed(wrong) == ""
    assert started_here() == []


def resized_to(plan: ServingPlan, workers: int) -> ServingPlan:
    """The plan with so many equal workers, and so behind a router."""
    from dataclasses import replace

    return replace(plan, decode=replace(plan.decode, workers=workers))


def test_a_fleet_of_more_servers_than_a_small_machine_plays_is_refused() -> None:
    """Before anything is started."""
    fleet = resized("vllm", None, (20, 2))
    with pytest.raises(InputError, match="too large to be rehearsed"):
        rehearse(fleet, default_cluster("h100-sxm", 8).hierarchy)


@pytest.mark.parametrize("load", [{"rate": "4/s"}, {"concurrency": "4"}])
def test_what_will_be_played_is_announced_with_its_time(load: dict[str, str]) -> None:
    """Of an open load, and of a closed loop, whose requests have no times of arrival."""
    plan, asked = asked_for(engine="vllm", gpus="1", mode="aggregated", **load)
    fleet = rehearsed(load_calibration(), plan, hierarchy_of(plan, asked.requests), span_s=10.0)
    words = announced(fleet, 1, 1.0)
    seconds = re.fullmatch(rf"rehearsing {len(fleet.load)} requests to 1 server: about ([\d.]+) s", words)
    assert seconds is not None
    assert 1 < float(seconds[1]) < 30


def test_what_was_measured_stands_beside_what_was_simulated() -> None:
    """In the plan's time, with the difference; the largest one is named."""
    found = Rehearsal(
        requests=10, servers=2, slowdown=4.0, simulated={"ttft": (0.1, 0.2, 0.4), "tpot": (0.01, 0.02, 0.03)},
        measured={"ttft": (0.1, 0.2, 0.5), "tpot": (0.01, 0.02, 0.03)},
    )  # fmt: skip
    assert found.furthest() == "+25.0% (time to first token, p99)"
    table = rehearsal_table(found)
    assert table.rows[2] == ("time to first token, p99", "400 ms", "500 ms", "+25.0%")
    assert "4 times slower" in table.note
