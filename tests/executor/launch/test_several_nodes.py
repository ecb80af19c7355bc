"""Two launchers play two nodes of a Slurm job on this machine: their ranks meet in the run's folder, and nowhere else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.launch.nodes import loopback
from executor.training.settings import METRICS_FILE
from executor.training.worker import RANKS_FOLDER
from planner.plan import Plan, to_json
from tests.executor.launch.processes import addresses, family, wait_for

STEPS = 12


def started(plan: Path, run: Path, node: int, steps: int, *words: str) -> subprocess.Popen[str]:
    """A launcher that takes itself for one of two nodes."""
    call = [sys.executable, "-P", "-m", "app", "run", str(plan), "--run-dir", str(run), "--device", "cpu"]
    call += ["--fp32", "--steps", str(steps), "--interface", loopback(), "--json", *words]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    with (run.parent / f"said-{node}").open("a", encoding="utf-8") as said:
        return subprocess.Popen(
            call, env={**os.environ, **job, "SLURM_NODEID": str(node)}, stdout=said, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip


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
        assert wait_for(lambda: said(1, "node 1 has no ranks now: it waits as a spare"))
        joined = "node 1 joined: continuing on 2 of 2 nodes, 2 of 2 GPUs"
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
