"""Hosts of four are lost, one cut off by its switch, one killed: the rest goes on, and no step changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from executor.launch.supervise import with_plan, write_run
from executor.training.settings import METRICS_FILE, RUN_FILE, RunSettings
from planner.plan import to_json
from tests.executor.launch.namespaces import INTERFACE, modules_on_hosts, possible
from tests.executor.launch.processes import alive, family
from tests.executor.launch.test_placed_ranks import HOSTS, four_hosts, planned_on
from tests.executor.training.test_training import run_here
from tests.patience import wait_for
from topology.fabric.degraded import degraded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not possible(), reason="this machine gives no networks of one's own"),
]
STEPS, BATCH = 15, 12
RECOVERED_S = 30.0
LOST = ("node2", "node10")  # in the midst of the ranks, then rank 0 with the node that would decide next
ENDPOINT = "node10:29511"  # of the first: ranks meet there until that node is lost, then in a file
CUT = LOST[:1]  # its link goes down: it lives, reaches the files, and no other host
LAUNCHER = """
import sys
from pathlib import Path

from executor.launch.supervise import Supervision, supervise
from executor.training.settings import read_settings
from planner.plan import from_json
from topology.base.files import read_text

def plan_in(name):
    return from_json(read_text(name), name)

supervision = Supervision(
    min_gpus=2,
    replan=lambda count, lost: plan_in(f"without-{'-'.join(sorted(lost))}.json"),
    say=lambda text: print(text, flush=True),
)
status = supervise(read_settings(Path("wanted/run.json")), plan_in("wanted/plan.json"), supervision)
print(status.state, flush=True)
"""
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}
PLACE = {"SLURM_NODEID": "$HOST_NUMBER", "SLURMD_NODENAME": "$HOST_NAME"}


def rows(run: Path) -> list[dict[str, float]]:
    """Every line of the metrics so far."""
    path = run / METRICS_FILE
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def settings(run: Path) -> RunSettings:
    """A short run with frequent checkpoints."""
    base = RunSettings(
        folder="", plan_file="", steps=STEPS, device="cpu", precision="fp32", checkpoint_every=3,
        interface=INTERFACE, rdzv_endpoint=ENDPOINT,
    )  # fmt: skip
    return with_plan(base, run)


def cut_off(host: int, name: str) -> None:
    """Take down the port of a host on the bridge that joins them, from the machine that holds the hosts."""
    machine = int(Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()[1])
    words = ["nsenter", "--preserve-credentials", "-U", "-n", "-t", str(machine), "ip", "link", "set"]
    subprocess.run([*words, f"to{HOSTS.index(name)}", "down"], check=True)


def lose_hosts(folder: Path, took_s: list[float]) -> None:
    """Cut a host off or kill −9 all of it, time the others' next step, so for the next; first time the start."""
    run, began_s = folder / "run", time.monotonic()
    wait_for(lambda: bool(rows(run)))
    took_s.append(time.monotonic() - began_s)
    for name in LOST:
        before = len(rows(run))
        if not wait_for(lambda since=before: len(rows(run)) >= since + 5):  # type: ignore[misc]
            return
        host = int((folder / f"host-{name}").read_text())
        killed_s = time.monotonic()
        if name in CUT:
            cut_off(host, name)
        else:
            members = family(host)
            for member in members:
                os.kill(member, signal.SIGKILL)
            wait_for(lambda those=members: not any(alive(one) for one in those))  # type: ignore[misc]
        time.sleep(0.5)  # a line that was on its way
        seen = len(rows(run))
        if not wait_for(lambda since=seen: len(rows(run)) > since):  # type: ignore[misc]
            return
        took_s.append(time.monotonic() - killed_s)


def test_two_hosts_of_four_are_lost_and_no_step_changes(tmp_path: Path) -> None:
    """The second is the one with rank 0, whose node decided before: another decides."""
    cluster = four_hosts(1)
    wanted = planned_on(cluster, "meshplan", BATCH)
    for count in range(1, len(LOST) + 1):
        rest = degraded(cluster, without=LOST[:count])
        left = to_json(planned_on(rest, "meshplan", BATCH))
        (tmp_path / f"without-{'-'.join(sorted(LOST[:count]))}.json").write_text(left)
    write_run(settings(tmp_path / "wanted"), wanted)
    written = (tmp_path / "wanted" / RUN_FILE).read_text()
    (tmp_path / "wanted" / RUN_FILE).write_text(written.replace("/wanted", "/run"))
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    took_s = list[float]()
    taker = threading.Thread(target=lose_hosts, args=(tmp_path, took_s))
    taker.start()
    _, errors = modules_on_hosts(HOSTS, ["launcher"], tmp_path, JOB | PLACE)
    taker.join()
    said = {name: (tmp_path / f"said-{name}").read_text() for name in HOSTS}
    sys.stdout.write(errors)
    sys.stdout.write(f"start and next steps after {', '.join(f'{one:.1f} s' for one in took_s)}\n")
    assert said["node2"].splitlines()[-2:] == ["node2 has no ranks now: it waits as a spare", "finished"], (
        said
    )
    survivors = [name for name in HOSTS if name not in LOST]
    for name in survivors:
        words = said[name].splitlines()
        assert "node2 silent for 10 s: continuing on 3 of 4 nodes, 3 of 4 GPUs" in words, said
        assert "node10 silent for 10 s: continuing on 2 of 4 nodes, 2 of 4 GPUs" in words, said
        assert words[-1] == "finished", said
    assert len(took_s) == 1 + len(LOST), said
    killed_s = [took for name, took in zip(LOST, took_s[1:], strict=True) if name not in CUT]
    assert max(killed_s) <= RECOVERED_S, took_s
    history = {int(row["step"]): row for row in rows(tmp_path / "run")}
    counted = [(step, history[step]["samples"]) for step in sorted(history)]
    assert counted == [(step, BATCH * step) for step in range(1, STEPS + 1)]
    alone = planned_on(degraded(cluster, without=HOSTS[1:]), "meshplan", BATCH)
    run_here(settings(tmp_path / "alone"), alone)
    expected = {int(row["step"]): row["loss"] for row in rows(tmp_path / "alone")}
    for row in rows(tmp_path / "run"):  # also of steps that were repeated
        assert row["loss"] == pytest.approx(expected[int(row["step"])], rel=1e-5), row["step"]
