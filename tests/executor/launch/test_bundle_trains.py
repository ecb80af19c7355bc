"""The bundle of Meshplan's own executor trains: two hosts played by one machine, numbered the wrong way round."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from planner.launch.bundle import bundle
from planner.plan import Plan, PlanRequest
from planner.rules.check import parse_pins
from planner.search.given_layout import plan_of_layout
from tests.executor.conftest import TINY
from topology.builders import default_cluster


@pytest.mark.slow
def test_two_hosts_train_two_steps(tmp_path: Path) -> None:
    """Host b is the plan's node 0: it writes the run, ranks of both meet there, and its rank 0 keeps the books."""
    request = PlanRequest(
        model=TINY,
        cluster=default_cluster("h100-sxm", 2, gpus_per_node=1).spec,
        job=TrainingJob(sequence_length=16, global_batch_size=8),
        stack="meshplan",
        engine="meshplan",
        pins=parse_pins({"dp": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1}),
        memory_headroom=0.0,
    )
    plan = plan_of_layout(request, load_calibration())
    assert isinstance(plan, Plan), plan
    for name, text in bundle(plan, "meshplan", "torchrun")[0].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "mine").write_text("127.0.0.1\nhost-a\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    named = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "SKIP_PREFLIGHT": "1", "HOSTS": "mine", "MASTER_PORT": port, "RUN_DIR": "run", "DATA": "synthetic",
        "INTERFACE": "lo", "TRAIN_ITERS": "2", "LEARNING_RATE": "1e-3",
    }  # fmt: skip
    hosts = [("host-a", "0"), ("127.0.0.1", "1")]
    started = [
        subprocess.Popen(
            ["bash", "start.sh"], cwd=tmp_path, env={**os.environ, **named, "NODE_NAME": name, "NODE_RANK": rank},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for name, rank in hosts
    ]  # fmt: skip
    try:
        said = [one.communicate(timeout=400)[0] for one in started]
    finally:
        for one in started:
            one.kill()
    assert [one.returncode for one in started] == [0, 0], said
    assert ("step 2/2" in said[1], "step" in said[0]) == (True, False)
    assert (tmp_path / "run" / "run.json").exists()
