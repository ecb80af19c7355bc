"""Two launchers play two nodes of a job on this machine: their ranks meet in the run's folder, or where they are told."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch")

from app.cli import run as main
from costmodel.layout import ParallelLayout
from executor.comm.meeting import endpoint, require_reachable, store
from executor.launch.nodes import loopback
from executor.launch.supervise import MEETINGS
from executor.training.settings import METRICS_FILE
from executor.training.worker import RANKS_FOLDER
from planner.plan import Plan, to_json
from tests.executor.launch.processes import addresses, endpoints, family
from tests.patience import wait_for
from topology.base.errors import InputError

STEPS = 12


SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "NODE",
}  # fmt: skip


def started(
    plan: Path, run: Path, node: int, steps: int, *words: str, job: Mapping[str, str] = SLURM
) -> subprocess.Popen[str]:
    """A launcher that takes itself for one of two nodes."""
    call = [sys.executable, "-P", "-m", "app", "run", str(plan), "--run-dir", str(run), "--device", "cpu"]
    call += ["--fp32", "--steps", str(steps), "--interface", loopback(), "--json", *words]
    told = {name: value.replace("NODE", str(node)) for name, value in job.items()}
    with (run.parent / f"said-{node}").open("a", encoding="utf-8") as said:
        launcher = subprocess.Popen(
            call, env={**os.environ, **told}, stdout=said, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
    cores = sorted(os.sched_getaffinity(0))  # as a machine has its own: ranks take a thread for each
    os.sched_setaffinity(launcher.pid, {cores[node % len(cores)]})
    return launcher


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
def test_two_nodes_train_together_and_restart_together(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Kill −9 of the second node's rank: both start theirs again; they listen on the interface they were given."""
    plan, run = tmp_path / "wanted.json", tmp_path / "run"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")
    launchers = [started(plan, run, node, STEPS, "--checkpoint-every", "2") for node in (1, 0)]
    metrics = run / METRICS_FILE
    try:
        assert wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 4)
        listening = [addresses(family(launcher.pid)) for launcher in launchers]
        os.kill(int((run / RANKS_FOLDER / "1").read_text()), signal.SIGKILL)
        for launcher in launchers:
            launcher.wait(timeout=120)
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    said = (tmp_path / "said-0").read_text()
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    assert listening == [{"127.0.0.1"}, {"127.0.0.1"}]
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert (sorted(set(steps)), steps[-1]) == (list(range(1, STEPS + 1)), STEPS)
    assert "a rank died: all are started again (time 1)" in said


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
def test_a_node_that_comes_back_joins_at_a_checkpoint_and_takes_over(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Of two nodes the second is lost, and joins again; then the first is, and the second ends the run.

    To join costs no step: those before and after follow each other.
    """
    plan, run = tmp_path / "wanted.json", tmp_path / "run"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")
    metrics, words = run / METRICS_FILE, ("--checkpoint-every", "10", "--min-gpus", "1")
    launchers = [started(plan, run, node, 1_000_000, *words) for node in (0, 1)]

    def lines() -> int:
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def steps_seen() -> list[int]:
        return [json.loads(line)["step"] for line in metrics.read_text().splitlines() if line.endswith("}")]

    def said(node: int, text: str) -> bool:
        return text in (tmp_path / f"said-{node}").read_text()

    def lose(node: int) -> int:
        for process in family(launchers[node].pid):
            os.kill(process, signal.SIGKILL)
        launchers[node].wait()
        return lines()

    try:
        assert wait_for(lambda: lines() >= 12)
        lose(1)
        going_on = "silent for 10 s: continuing on 1 of 2 nodes, 1 of 2 GPUs"
        assert wait_for(lambda: said(0, f"node 1 {going_on}"))
        launchers[1] = started(plan, run, 1, 1_000_000, *words)
        joined = "node 1 joined: continuing on 2 of 2 nodes, 2 of 2 GPUs"
        waits = "node 1 has no ranks now: it waits as a spare"  # unless a checkpoint comes while it starts
        assert wait_for(lambda: said(1, waits) or said(1, joined))
        assert wait_for(lambda: said(0, joined) and said(1, joined))
        alone = steps_seen()
        assert wait_for(lambda: len(steps_seen()) > len(alone) + 3)
        once = steps_seen()[len(alone) - 1 :]
        assert once == list(range(once[0], once[0] + len(once)))
        before = lose(0)
        assert wait_for(lambda: lines() > before + 1)
        assert said(1, f"node 0 {going_on}")
        launchers[1].send_signal(signal.SIGTERM)
        assert launchers[1].wait(timeout=60) == 0
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    last = rows[-1]["step"]
    steps = {row["step"]: row["samples"] for row in rows if row["step"] <= last}
    assert steps == {step: 8 * step for step in range(1, last + 1)}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
def test_pods_of_an_indexed_job_meet_at_an_endpoint_and_go_on_with_the_fewest_nodes(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Kill −9 of a rank: both start again, by the same port. Kill −9 of the second pod: the first goes on alone."""
    plan, run = tmp_path / "wanted.json", tmp_path / "run"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    metrics, words = (
        run / METRICS_FILE,
        ("--nnodes", "1:2", "--rdzv-endpoint", place, "--checkpoint-every", "5"),
    )
    pods = {"JOB_COMPLETION_INDEX": "NODE", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    launchers = [started(plan, run, node, 1_000_000, *words, job=pods) for node in (1, 0)]

    def lines() -> int:
        return metrics.read_text().count("\n") if metrics.exists() else 0

    try:
        assert wait_for(lambda: lines() >= 6), (tmp_path / "said-0").read_text()
        ranks = [int((run / RANKS_FOLDER / str(rank)).read_text()) for rank in range(2)]
        assert [addresses((rank,)) for rank in ranks] == [{"127.0.0.1"}, {"127.0.0.1"}]
        assert [place in listening_at(rank) for rank in ranks] == [True, False]
        assert not list((run / MEETINGS).glob("*/turn-*/store-*"))
        os.kill(ranks[1], signal.SIGKILL)
        assert wait_for(lambda: "a rank died: all are started again" in (tmp_path / "said-0").read_text())
        before = lines()
        assert wait_for(lambda: lines() > before + 2)
        for process in family(launchers[0].pid):
            os.kill(process, signal.SIGKILL)
        launchers[0].wait()
        alone = "node 1 silent for 10 s: continuing on 1 of 2 nodes, 1 of 2 GPUs"
        assert wait_for(lambda: alone in (tmp_path / "said-0").read_text())
        before = lines()
        assert wait_for(lambda: lines() > before + 1)
        launchers[1].send_signal(signal.SIGTERM)
        assert launchers[1].wait(timeout=60) == 0
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    assert "started by Kubernetes: node 0 (from 0) of 2 nodes" in (tmp_path / "said-0").read_text()


def test_an_endpoint_that_is_not_the_first_nodes_is_refused(
    estimated_plan_of: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On that node, before anything is written: a port that is taken, an address of another; what is no address."""
    plan, run = tmp_path / "wanted.json", tmp_path / "run"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value.replace("NODE", "0"))
    words = [
        "run",
        str(plan),
        "--run-dir",
        str(run),
        "--device",
        "cpu",
        "--interface",
        loopback(),
        "--dry-run",
    ]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = {
            f"127.0.0.1:{taken.getsockname()[1]}": "the first node cannot listen at 127.0.0.1",
            "192.0.2.1:29500": "the first node cannot listen at 192.0.2.1:29500",
            "node..x:29500": "the first node cannot listen at node..x:29500",
            "0.0.0.0:29500": "nodes cannot meet at --rdzv-endpoint 0.0.0.0:29500",
            "[::]:29500": "nodes cannot meet at --rdzv-endpoint :::29500",
            "29500": "--rdzv-endpoint cannot be read",
            "host:0": "--rdzv-endpoint cannot be read",
        }
        for place, what in cases.items():
            assert main([*words, "--rdzv-endpoint", place]) == 2
            said = capsys.readouterr().err.splitlines()[-3:]
            assert [line.partition(":")[0] for line in said] == ["error", "cause", "help"]
            assert what in said[0]
    assert not run.exists()
    assert main([*words, "--rdzv-endpoint", "127.0.0.1:29500"]) == 0


def test_nodes_of_several_machines_do_not_meet_on_loopback() -> None:
    """Unless that is the network that they were given; a name that is not known here is not judged."""
    for text in ("127.0.0.1:29500", "[::1]:29500", "[::ffff:127.0.0.1]:29500", "localhost:29500"):
        require_reachable(endpoint(text), loopback=True)
        with pytest.raises(InputError, match="this machine alone"):
            require_reachable(endpoint(text), loopback=False)
    for text in ("192.0.2.1:29500", "node..x:29500"):
        require_reachable(endpoint(text), loopback=False)


def test_attempts_at_an_endpoint_do_not_share_keys() -> None:
    """A rank of another attempt that still knocks sees nothing; paths differ by where nodes have the folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        text = f"127.0.0.1:{free.getsockname()[1]}"
    first = store("/a/run/7/turn-0/store-0", 0, 2, endpoint_text=text)
    peer = store("/b/run/7/turn-0/store-0", 1, 2, endpoint_text=text)
    later = store("/b/run/7/turn-0/store-1", 1, 2, endpoint_text=text)
    first.set("key", "value")
    assert (peer.check(["key"]), later.check(["key"])) == (True, False)


def listening_at(process: int) -> str:
    """Addresses with their ports on which a process listens."""
    return " ".join(f"{address}:{port}" for address, port in endpoints((process,)))
