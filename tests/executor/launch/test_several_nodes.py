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


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's /proc")
def test_two_nodes_train_together_and_restart_together(
    estimated_plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Kill −9 of the second node's rank: both start theirs again; they listen on the interface they were given."""
    plan, run = tmp_path / "wanted.json", tmp_path / "run"
    plan.write_text(to_json(estimated_plan_of(ParallelLayout(dp=2, zero_stage=1))), encoding="utf-8")
    words = [
        sys.executable,
        "-P",
        "-m",
        "app",
        "run",
        str(plan),
        "--run-dir",
        str(run),
        "--device",
        "cpu",
        "--fp32",
    ]
    words += ["--steps", str(STEPS), "--checkpoint-every", "2", "--interface", loopback(), "--json"]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    launchers = [
        subprocess.Popen(
            words,
            env={**os.environ, **job, "SLURM_NODEID": str(node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for node in (1, 0)
    ]
    metrics = run / METRICS_FILE
    try:
        assert wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 4)
        listening = [addresses(family(launcher.pid)) for launcher in launchers]
        os.kill(int((run / RANKS_FOLDER / "1").read_text()), signal.SIGKILL)
        said = [launcher.communicate(timeout=120)[0] for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
            launcher.wait()
    assert [launcher.returncode for launcher in launchers] == [0, 0], said
    assert listening == [{"127.0.0.1"}, {"127.0.0.1"}]
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert (sorted(set(steps)), steps[-1]) == (list(range(1, STEPS + 1)), STEPS)
    assert "a rank died: all are started again (time 1)" in said[1]
