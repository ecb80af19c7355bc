"""What launchers run on a node reaches start.sh with the rank and the host that their own variables say."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.launch.bundle import bundle
from planner.launch.cloud import sagemaker, vertex
from planner.launch.entries import ENTRIES
from planner.launch.machines import hosts_by_kind
from planner.launch.node_order import node_order
from tests.unit.planner.launch.test_bundle import plan_for
from tests.unit.planner.launch.test_node_order import two_racks

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


def request_of(folder: Path, service: str) -> dict[str, Any]:
    """The request of a service, held against the members that it requires."""
    schemas = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    request: dict[str, Any] = json.loads((folder / f"{service}.json").read_text())
    schema = json.loads((Path(__file__).parent / "schemas" / f"{service}.json").read_text())
    schemas.Draft202012Validator.check_schema(schema)
    schemas.validate(request, schema)
    return request


def test_sagemaker_is_asked_for_the_nodes_of_the_plan(tmp_path: Path) -> None:
    """Two instances of the container command; each finds its rank in SageMaker's list of hosts."""
    folder_of(tmp_path, "sagemaker")
    request = request_of(tmp_path, "sagemaker")
    assert (request["ResourceConfig"]["InstanceCount"], request["Environment"]) == (2, {"PROGRAM": ""})
    assert request["ResourceConfig"]["InstanceType"] == "<instance type with 8 h100-sxm>"
    command = request["AlgorithmSpecification"]["ContainerEntrypoint"]
    assert command == ["bash", "/plan/sagemaker.sh"]
    hosts = {"current_host": "algo-2", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"}
    (tmp_path / "told.json").write_text(json.dumps(hosts))
    (tmp_path / "start.sh").write_text(ECHO + 'echo "$NCCL_SOCKET_IFNAME"\n')
    found = said(["bash", "sagemaker.sh", "--more"], tmp_path, RESOURCES="told.json")
    assert found[:2] == (0, "1 algo-1 none none --more\neth0")
    assert said(["bash", "sagemaker.sh"], tmp_path, RESOURCES="nowhere.json")[0] != 0


def test_vertex_is_asked_for_a_first_node_and_the_others(tmp_path: Path) -> None:
    """The pools of CLUSTER_SPEC in their order are the ranks; without it the script stops and says so."""
    folder_of(tmp_path, "vertex")
    pools = request_of(tmp_path, "vertex")["jobSpec"]["workerPoolSpecs"]
    assert [pool["replicaCount"] for pool in pools] == ["1", "1"]
    assert pools[0]["machineSpec"]["acceleratorCount"] == 8
    assert pools[0]["containerSpec"]["command"] == ["bash", "/plan/vertex.sh"]
    cluster = {"workerpool0": ["first-0:2222"], "workerpool1": ["others-0:2222", "others-1:2222"]}
    for rank, task in enumerate([("workerpool0", 0), ("workerpool1", 0), ("workerpool1", 1)]):
        told = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
        found = said(["bash", "vertex.sh"], tmp_path, CLUSTER_SPEC=json.dumps(told))
        assert found[:2] == (0, f"{rank} first-0 none none")
    code, out, errors = said(["bash", "vertex.sh"], tmp_path)
    assert (code != 0, out, "CLUSTER_SPEC: Vertex AI sets it" in errors) == (True, "", True)


def test_a_machine_of_the_cloud_is_asked_for_by_its_name() -> None:
    """Where the plan was made for it; another cloud's is left to the user."""
    plan = plan_for("deepspeed")
    named = replace(
        plan, request=replace(plan.request, cluster=replace(plan.request.cluster, name="aws-p5.48xlarge"))
    )
    where = hosts_by_kind(named)
    order = node_order(named, where)
    assert (
        '"InstanceType": "ml.p5.48xlarge"'
        in sagemaker(named, ENTRIES["deepspeed"], where, order)["sagemaker.json"]
    )
    assert '"machineType": "<instance' in vertex(named, ENTRIES["deepspeed"], where, order)["vertex.json"]


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


def stand_in(folder: Path) -> list[str]:
    """Ray's classes as they are documented, and the call of the driver: Ray is no dependency of a test."""
    package = folder / "ray" / "train"
    package.mkdir(parents=True)
    (folder / "ray" / "__init__.py").write_text(RAY)
    (package / "__init__.py").write_text(TRAIN)
    (package / "torch.py").write_text(TORCH)
    return [sys.executable, "ray_train.py", "--more"]


def test_ray_runs_a_worker_a_node_in_a_placement_group(tmp_path: Path) -> None:
    """Nodes and GPUs are the plan's; nothing starts while a variable is not named."""
    folder_of(tmp_path, "ray")
    call = stand_in(tmp_path)
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


def test_ray_gives_its_workers_the_hosts(tmp_path: Path) -> None:
    """Where their order matters the driver stops without them, and a worker is the rank of its own line."""
    for name, text in bundle(two_racks(), "megatron", "ray")[0].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    start = (tmp_path / "start.sh").read_text().replace("exec torchrun", 'echo "rank $NODE_RANK"; exit; :')
    (tmp_path / "start.sh").write_text(start)
    (tmp_path / "environment.sh").write_text("")
    hosts = [f"tray-{index}" for index in range(36)]
    (tmp_path / "mine").write_text("\n".join([*hosts[:20], socket.gethostname(), *hosts[21:]]))
    call, named = (
        stand_in(tmp_path),
        dict.fromkeys(ENTRIES["megatron"].variables, "x") | {"SKIP_PREFLIGHT": "1"},
    )
    code, out, errors = said(call, tmp_path, **named)
    assert (code, out, "HOSTS: name the file" in errors) == (1, "", True), errors
    code, out, errors = said(call, tmp_path, HOSTS="mine", **named)
    assert (code, out.splitlines()[2:]) == (0, ["rank 20", "rank 20"]), errors
    assert json.loads(out.splitlines()[0])["env_vars"]["HOSTS"] == "mine"
