"""Ranks of four hosts whose names sort otherwise than the plan has them sit where it put them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from executor.training.worker import RANKS_FOLDER
from planner.launch.bundle import bundle
from planner.plan import Plan, PlanRequest, to_json
from planner.rules.check import parse_pins
from planner.search.given_layout import plan_of_layout
from tests.executor.conftest import TINY
from tests.executor.launch.namespaces import INTERFACE, modules_on_hosts, on_hosts, possible
from topology.builders import build
from topology.discover.cluster import discover, dump_facts
from topology.fabric.seats import seats
from topology.spec import ClusterSpec

TREE = """SwitchName=top Switches=s[1-2]
SwitchName=s1 Nodes=node10,node9
SwitchName=s2 Nodes=node2,node1
"""
HOSTS = ("node10", "node9", "node2", "node1")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not possible(), reason="this machine gives no networks of one's own"),
]
PROBE = """
import json, os, socket

seat = [int(os.environ["RANK"]), socket.gethostname(), int(os.environ["LOCAL_RANK"])]
with open(f"seat-{seat[0]}.json", "w") as file:
    json.dump(seat, file)
"""
"""What torchrun tells a rank: no torch of its own, which eight of them load for seconds to say the same."""


def four_hosts(gpus_per_node: int) -> ClusterSpec:
    """As a job sees its switches: they name hosts in an order that is none of their names."""
    spec = discover([dump_facts(TREE, "topology.conf")], gpu="h100-sxm").spec
    return replace(
        spec,
        nodes=tuple(
            replace(node, gpus_per_node=gpus_per_node, nics_per_node=gpus_per_node) for node in spec.nodes
        ),
    )


def planned(gpus_per_node: int, engine: str) -> Plan:
    """Data-parallel ranks on all of them."""
    return planned_on(four_hosts(gpus_per_node), engine)


def planned_on(cluster: ClusterSpec, engine: str, batch: int | None = None) -> Plan:
    """Data-parallel ranks on every GPU of a cluster, each with one sequence unless the batch is given."""
    request = PlanRequest(
        model=TINY,
        cluster=cluster,
        job=TrainingJob(sequence_length=16, global_batch_size=batch or cluster.num_gpus),
        stack="meshplan" if engine == "meshplan" else "megatron-core",
        engine=engine,
        pins=parse_pins({"dp": cluster.num_gpus, "tp": 1, "pp": 1, "cp": 1, "ep": 1}),
        memory_headroom=0.0,
    )
    plan = plan_of_layout(request, load_calibration())
    assert isinstance(plan, Plan), plan
    return plan


def seats_of(plan: Plan) -> list[list[object]]:
    """Rank, host and GPU of the host, as the plan has them."""
    return [[seat.rank, seat.host, seat.gpu] for seat in seats(plan.mesh, build(plan.request.cluster).spec)]


def test_a_plan_says_the_host_of_each_rank() -> None:
    """Of the switches' own order, two GPUs each."""
    wanted = [[2 * node + gpu, host, gpu] for node, host in enumerate(HOSTS) for gpu in range(2)]
    assert seats_of(planned(2, "meshplan")) == wanted


def test_a_bundle_starts_ranks_where_they_were_planned(tmp_path: Path) -> None:
    """Each host finds its own line, and torch's static meeting gives its ranks their numbers."""
    plan = planned(2, "megatron")
    for name, text in bundle(plan, "megatron", "torchrun")[0].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert tuple((tmp_path / "hosts").read_text().split()) == HOSTS
    (tmp_path / "probe.py").write_text(PROBE)
    script = (tmp_path / "start.sh").read_text()
    at = script.index('"$MEGATRON_LM/pretrain_gpt.py"')
    (tmp_path / "start.sh").write_text(script[:at] + "probe.py\n")
    told = dict.fromkeys(("MEGATRON_LM", "DATA_PATH", "TOKENIZER", "CHECKPOINTS"), "x")
    told |= {"TRAIN_ITERS": "1", "LEARNING_RATE": "1", "SKIP_PREFLIGHT": "1"}
    told |= {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
    told["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # what a launcher that numbers hosts by name would say
    start = 'NODE_RANK="$HOST_NUMBER" MASTER_ADDR=node1 exec bash start.sh'
    code, said = on_hosts(HOSTS, ["bash", "-c", start], tmp_path, told)
    assert code == 0, said
    assert sorted(json.loads(path.read_text()) for path in tmp_path.glob("seat-*.json")) == seats_of(plan)


def watch_seats(folder: Path, sat: dict[int, str], over: threading.Event) -> None:
    """Note the host of each rank while the run goes on: the one whose launcher has started it."""
    while not over.wait(0.05):
        launchers = {
            int(path.read_text() or 0): path.name.partition("-")[2] for path in folder.glob("host-*")
        }
        for mark in (folder / "run" / RANKS_FOLDER).glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError):  # it has ended, or is only being written
                status = Path(f"/proc/{int(mark.read_text())}/stat").read_text()
                parent = int(status.rpartition(")")[2].split()[1])
                sat |= {int(mark.name): launchers[parent]} if parent in launchers else {}


def test_plan_run_trains_ranks_where_they_were_planned(tmp_path: Path) -> None:
    """Slurm numbers the hosts by name; the plan's first host writes the run and has rank 0."""
    plan = planned(1, "meshplan")
    (tmp_path / "wanted.json").write_text(to_json(plan), encoding="utf-8")
    words = ["app", "run", "wanted.json", "--run-dir", "run", "--device", "cpu", "--fp32", "--steps", "2"]
    sat: dict[int, str] = {}
    over = threading.Event()
    watcher = threading.Thread(target=watch_seats, args=(tmp_path, sat, over))
    watcher.start()
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}
    job |= {"SLURM_NODEID": "$HOST_NUMBER", "SLURMD_NODENAME": "$HOST_NAME"}
    code, said = modules_on_hosts(HOSTS, [*words, "--interface", INTERFACE, "--json"], tmp_path, job)
    over.set()
    watcher.join()
    assert code == 0, said
    assert [sat.get(rank) for rank in range(4)] == [host for _, host, _ in seats_of(plan)]
