"""What launchers run on a node reaches start.sh with the rank and the host that their own variables say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.launch.bundle import bundle
from planner.launch.entries import ENTRIES
from tests.unit.planner.launch.test_bundle import plan_for

ECHO = 'echo "$NODE_RANK $MASTER_ADDR ${MASTER_PORT:-none} ${RANK:-none} $*"\n'


def folder_of(path: Path, launcher: str) -> dict[str, str]:
    """A bundle whose start.sh only says what it was told."""
    files = dict(bundle(plan_for("deepspeed"), "deepspeed", launcher)[0])
    for name, text in (files | {"start.sh": ECHO}).items():
        (path / name).write_text(text, encoding="utf-8")
    return files


def said(call: list[str], folder: Path, **named: str) -> tuple[int, str, str]:
    """How a node of it ends and what it says."""
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **named}
    done = subprocess.run(call, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout.strip(), done.stderr


def task_of(folder: Path) -> dict[str, Any]:
    """The SkyPilot task in it."""
    reader = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found: dict[str, Any] = reader.safe_load((folder / "task.yaml").read_text())
    return found


def test_skypilot_gives_a_node_its_rank_and_the_first_address(tmp_path: Path) -> None:
    """Its variables are the documented ones; those that a user names are null, which SkyPilot refuses."""
    folder_of(tmp_path, "skypilot")
    task = task_of(tmp_path)
    its = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    assert said(["bash", "-c", task["run"]], tmp_path, **its)[:2] == (0, "1 10.0.0.1 none none")
    assert task["envs"] == dict.fromkeys(ENTRIES["deepspeed"].variables)
    assert (task["resources"]["accelerators"], task["workdir"]) == ("H100:8", ".")


RAY = """
import json, os
def init(**told):
    print(json.dumps(told["runtime_env"]))
"""
TRAIN = """
class Context:
    rank = 0
    def get_world_rank(self):
        return Context.rank
def get_context():
    return Context()
def ScalingConfig(**told):
    return told
"""
TORCH = """
import os, json, sys
from ray.train import Context
def TorchConfig(**told):
    return told
class TorchTrainer:
    def __init__(self, loop, *, train_loop_config, torch_config, scaling_config):
        self.loop, self.told = loop, train_loop_config
        print(json.dumps([torch_config, scaling_config]), flush=True)
    def fit(self):
        os.environ |= {"MASTER_ADDR": "head", "MASTER_PORT": "1", "RANK": "9"}  # of Ray's own group
        for Context.rank in range(2):
            self.loop(self.told)
"""


def test_ray_runs_a_worker_a_node_in_a_placement_group(tmp_path: Path) -> None:
    """As Ray's classes are documented: they are stood in for, since Ray is no dependency of a test."""
    folder_of(tmp_path, "ray")
    package = tmp_path / "ray" / "train"
    package.mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text(RAY)
    (package / "__init__.py").write_text(TRAIN)
    (package / "torch.py").write_text(TORCH)
    call = [sys.executable, "ray_train.py", "--more"]
    code, out, errors = said(call, tmp_path)
    assert (code, out, "PROGRAM: name the" in errors) == (1, "", True)
    code, out, errors = said(call, tmp_path, PROGRAM="train.py")
    environment, configured, *nodes = out.splitlines()
    assert (code, errors, nodes) == (0, "", ["0 head 29500 none --more", "1 head 29500 none --more"])
    assert json.loads(environment)["env_vars"]["PROGRAM"] == "train.py"
    torch, scaling = json.loads(configured)
    assert (torch, scaling) == (
        {"backend": "gloo"},
        {
            "num_workers": 2,
            "use_gpu": True,
            "resources_per_worker": {"GPU": 8},
            "placement_strategy": "STRICT_SPREAD",
        },
    )
