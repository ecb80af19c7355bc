"""Bundles of plans whose stages run on unlike nodes: each node is held against its own kind."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from executor.launch.doors import require_even
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import facts_of
from planner.launch.bundle import LAUNCHERS, bundle
from planner.launch.node_order import HOSTS, KEEPS, SELECTS
from planner.launch.targets import engine_files, export_plan
from planner.parsers import client
from planner.plan import Plan, PlanRequest
from planner.search.search import search
from tests.unit.planner.launch.test_preflight import SMI, checked
from tests.unit.topology.pools.test_kinds import pool
from topology.base.errors import InputError
from topology.builders import makers_of
from topology.spec import ClusterSpec

NAMED = {"dgx-h100": ("new2", "new1"), "dgx-a100": ("old1",)}


@cache
def planned(engine: str = "megatron") -> Plan:
    """Two nodes of H100 that the cluster names before the one of A100."""
    spec = pool(*((machine, len(hosts)) for machine, hosts in NAMED.items()))
    nodes = zip(spec.nodes, NAMED.values(), strict=True)
    named = replace(spec, nodes=tuple(replace(node, hosts=hosts) for node, hosts in nodes))
    return found(named, engine, pp=3, dp=8)


def found(spec: ClusterSpec, engine: str, **pins: int) -> Plan:
    """The best plan; a question with few layouts."""
    request = PlanRequest(
        model=replace(model("llama-3.1-8b"), num_layers=12),
        cluster=spec,
        job=TrainingJob(sequence_length=8192, global_batch_size=192),
        engine=engine,
        pins={"cp": 1, "tp": 1, "microbatch_size": 1, **pins},
    )
    plan = search(request, load_calibration())
    assert isinstance(plan, Plan), plan
    assert plan.kind_of_stage
    return plan


def smi(names: str, memory: int, driver: str = "570.86.15") -> dict[str, str]:
    """A driver that shows these GPUs."""
    text = SMI.replace("NVIDIA H100 80GB HBM3", names).replace("81559", str(memory))
    return {"bin/nvidia-smi": text.replace("570.86.15", driver)}


H100, A100 = ("NVIDIA H100 80GB HBM3", 81559), ("NVIDIA A100-SXM4-80GB", 81920)


@pytest.mark.parametrize(
    ("rank", "shown", "driver", "told"),
    [
        (1, H100, "570.86.15", ""),
        (2, H100, "570.86.15", ""),
        (0, A100, "470.256.02", ""),
        (1, A100, "570.86.15", "planned on h100-sxm, found NVIDIA A100-SXM4-80GB"),
        (0, H100, "570.86.15", "planned on a100-sxm-80gb, found NVIDIA H100 80GB HBM3"),
        (2, ("NVIDIA H100 PCIe", 81559), "570.86.15", "planned on h100-sxm, found NVIDIA H100 PCIe"),
        (0, ("NVIDIA A100-SXM4-40GB", 40960), "570.86.15", "40960 MiB of a GPU, the plan counts on 77824"),
        (1, H100, "470.256.02", "driver: plan 520 or later, that of hopper, found 470.256.02"),
    ],
)
def test_a_node_must_be_of_the_kind_of_its_stages(
    rank: int, shown: tuple[str, int], driver: str, told: str, tmp_path: Path
) -> None:
    """Product, memory and driver by the rank of the node: all stages but the first are on H100."""
    plan = planned()
    kinds = [plan.request.cluster.nodes[kind].gpu for kind in plan.kind_of_stage]
    assert kinds == ["a100-sxm-80gb", "h100-sxm", "h100-sxm"]
    named = {"NODE_RANK": str(rank), "HOSTS": "any"}
    code, said = checked(tmp_path, smi(*shown, driver), plan=plan, path=os.environ["PATH"], **named)
    wrong = [line for line in said.splitlines() if told and told in line]
    assert (code, len(wrong)) == ((1, 1) if told else (0, 0)), said


def test_nodes_are_numbered_as_their_stages_are() -> None:
    """The cluster lists the A100 last; its ranks are the first, and every launcher looks hosts up."""
    files, _ = bundle(planned(), "megatron", "slurm")
    assert files["hosts"].split() == ["old1", "new2", "new1"]
    rows = files["ranks.csv"].splitlines()
    assert (rows[1], rows[9], rows[17]) == ("0,0,2,0,old1", "8,1,0,0,new2", "16,2,1,0,new1")
    assert "node 0 of 8 a100-sxm-80gb, nodes 1–2 of 8 h100-sxm" in files["README.md"]
    assert "--segment" not in files["train.sbatch"]


@pytest.mark.parametrize(
    "launcher", [name for name in LAUNCHERS if KEEPS[name] != HOSTS and name not in SELECTS]
)
def test_a_launcher_that_asks_for_equal_nodes_is_refused(launcher: str) -> None:
    """Also where the nearest would do: a stage may not even fit on another kind."""
    with pytest.raises(InputError, match=f"{launcher} is asked for nodes that are all alike"):
        bundle(planned(), "megatron", launcher, nearest=True)


def test_stages_must_fill_nodes() -> None:
    """Twelve GPUs are a node and a half, and torchrun starts eight ranks on each."""
    plan = found(pool(("dgx-h100", 1), ("dgx-a100", 1)), "megatron", pp=3, dp=4)
    with pytest.raises(InputError, match="4 ranks in stage 0 on nodes of 8 a100-sxm-80gb, 8 GPUs per node"):
        bundle(plan, "megatron", "torchrun")


@cache
def eight_and_four(gpus: int = 8) -> Plan:
    """A stage on a node of eight H100, one on two nodes of four A100."""
    spec = pool(("dgx-h100", 1), ("dgx-a100", 1))
    full = replace(spec.nodes[0], gpus_per_node=gpus, nics_per_node=gpus)
    half = replace(spec.nodes[1], gpus_per_node=gpus // 2, nics_per_node=gpus // 2, count=2)
    return found(replace(spec, nodes=(full, half)), "megatron", pp=2, dp=gpus)


def test_nodes_may_have_unlike_numbers_of_gpus() -> None:
    """Every node starts its own number of ranks, and is held against it."""
    plan = eight_and_four()
    assert plan.kind_of_stage == (0, 1)
    files, _ = bundle(plan, "megatron", "slurm")
    rows = [row.split(",")[:2] for row in files["ranks.csv"].splitlines()[1:]]
    assert [sum(node == str(number) for _, node in rows) for number in range(3)] == [8, 4, 4]
    started = [line for line in files["start.sh"].splitlines() if "ranks_here" in line]
    assert started[:2] == [
        '[ "$NODE_RANK" -lt 0 ] || ranks_here=8',
        '[ "$NODE_RANK" -lt 1 ] || ranks_here=4',
    ]
    assert '--nproc-per-node="$ranks_here"' in started[2]
    assert "--gpus-per-node" not in files["train.sbatch"]
    asked = [line.strip() for line in files["preflight.sh"].splitlines() if '"$count" -ge' in line]
    assert [line.split("]")[0] for line in asked] == ['[ "$count" -ge 8 ', '[ "$count" -ge 4 ']


def test_torchrun_numbers_the_ranks_of_unlike_nodes_as_planned(tmp_path: Path) -> None:
    """Nodes of two, one and one rank, started in the wrong order: each rank is on the node that ranks.csv says."""
    pytest.importorskip("torch", reason="torch is not installed")
    files, _ = bundle(eight_and_four(2), "megatron", "torchrun")
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    telling = "import os; print('seat', *(os.environ[n] for n in ('RANK', 'GROUP_RANK')))"
    (tmp_path / "pretrain_gpt.py").write_text(telling)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    named = {"MEGATRON_LM": ".", "DATA_PATH": "d", "TOKENIZER": "t", "CHECKPOINTS": "c", "TRAIN_ITERS": "1"}
    shown = {**os.environ, **named, "LEARNING_RATE": "1", "SKIP_PREFLIGHT": "1", "HOSTS": "any"}
    started = [
        subprocess.Popen(
            ["/bin/bash", str(tmp_path / "start.sh")],
            env={**shown, "NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in (2, 0, 1)
    ]
    said = [process.communicate(timeout=120) for process in started]
    seats = [line.split()[1:3] for out, _ in said for line in out.splitlines() if line.startswith("seat")]
    planned_seats = [row.split(",")[:2] for row in files["ranks.csv"].splitlines()[1:]]
    assert sorted(seats) == planned_seats, said


def test_what_starts_equally_many_ranks_refuses_unlike_nodes() -> None:
    """Ray gives every worker as many GPUs, and plan run divides the ranks evenly."""
    with pytest.raises(InputError, match="ray starts as many ranks on every node"):
        bundle(eight_and_four(), "megatron", "ray")
    with pytest.raises(InputError, match="plan run starts as many ranks on every node"):
        require_even(eight_and_four())
    require_even(planned())


def test_pods_of_each_kind_have_a_job_of_their_own() -> None:
    """A JobSet has a job for each kind, in the order of ranks, on the nodes that its label selects."""
    files, _ = bundle(eight_and_four(), "megatron", "kubernetes")
    reader = pytest.importorskip("yaml", reason="PyYAML is not installed")
    jobset = reader.safe_load(files["jobset.yaml"])
    told = []
    for job in jobset["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        pod = spec["template"]["spec"]
        gpus = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        told.append((job["name"], spec["completions"], gpus, pod["nodeSelector"]["nvidia.com/gpu.product"]))
        assert "-kind0-0-0." in pod["containers"][0]["command"][2]
    assert told == [
        ("kind0", 1, "8", "<its value on node 0 of 8 h100-sxm>"),
        ("kind1", 2, "4", "<its value on nodes 1–2 of 4 a100-sxm-80gb>"),
    ]
    command = jobset["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert 'NODE_RANK="$((1 + JOB_COMPLETION_INDEX))"' in command["command"][2]
    assert "labels in `jobset.yaml`" in files["README.md"]


def test_pods_are_refused_where_racks_of_a_kind_matter() -> None:
    """Pods of a kind are given its nodes in any order, which an oversubscribed leaf does not forgive."""
    plan = planned()
    leaf = replace(plan.request.cluster.tiers[0], nodes_per_unit=2, oversubscription=4.0)
    top = replace(plan.request.cluster.tiers[0], name="spine")
    torn = replace(plan.request.cluster, tiers=(leaf, top))
    with pytest.raises(InputError, match="kubernetes keeps nodes of a kind in no order, and 2 of them share"):
        bundle(
            replace(plan, request=replace(plan.request, cluster=torn)), "megatron", "kubernetes", nearest=True
        )


def test_a_bundle_numbers_nodes_itself() -> None:
    """Flags alone leave the order of nodes to the user, a bundle does not."""
    assert any(note.startswith("number the nodes") for note in export_plan(planned(), "megatron").notes)
    assert not any(note.startswith("number the nodes") for note in bundle(planned(), "megatron", "slurm")[1])


def test_one_job_has_gpus_of_one_maker() -> None:
    """No collective library joins NCCL and RCCL: the pool is planned as the better of its makers."""
    spec = pool(("dgx-h100", 1), ("hgx-mi300x", 1))
    assert makers_of(spec) == ("nvidia", "amd")
    request = replace(planned().request, cluster=spec, pins={"tp": 1, "cp": 1, "microbatch_size": 1})
    plan = search(request, load_calibration())
    assert isinstance(plan, Plan)
    assert (plan.kind_of_stage, [node.gpu for node in plan.request.cluster.nodes]) == ((), ["h100-sxm"])
    assert plan.pool is not None
    whole = next(part for part in plan.pool.others if part.num_gpus == 16)
    assert whole.step_time_s is None


@pytest.mark.parametrize("engine", ["megatron", "megatron-bridge"])
def test_the_engine_s_own_parser_takes_unequal_stages(engine: str) -> None:
    """And derives the plan's values from them."""
    python = client.interpreter(engine)
    if python is None:
        pytest.skip(f"{client.PACKAGES[engine]} is not installed here")
    plan, contract = planned(engine), CONTRACTS[engine]
    assert len(set(plan.layers_of_stage)) > 1
    facts = facts_of(plan)
    case = client.case_of(contract, engine_files(plan, contract).files, facts, plan.problem.cluster.gpu)
    (answer,) = client.answers(engine, [case], python)
    assert client.faults(facts, answer) == ()
    assert answer["derived"]
