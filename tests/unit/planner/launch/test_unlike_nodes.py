"""Bundles of plans whose stages run on unlike nodes: each node is held against its own kind."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from executor.parsers import ask
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import facts_of
from planner.launch.bundle import LAUNCHERS, bundle
from planner.launch.node_order import HOSTS, KEEPS
from planner.launch.targets import told
from planner.plan import Plan, PlanRequest
from planner.problem import setting_of
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


@pytest.mark.parametrize("launcher", [name for name in LAUNCHERS if KEEPS[name] != HOSTS])
def test_a_launcher_that_asks_for_equal_nodes_is_refused(launcher: str) -> None:
    """Also where the nearest would do: a stage may not even fit on another kind."""
    with pytest.raises(InputError, match=f"{launcher} is asked for nodes that are all alike"):
        bundle(planned(), "megatron", launcher, nearest=True)


def test_stages_must_fill_nodes() -> None:
    """Twelve GPUs are a node and a half, and torchrun starts eight ranks on each."""
    plan = found(pool(("dgx-h100", 1), ("dgx-a100", 1)), "megatron", pp=3, dp=4)
    with pytest.raises(InputError, match="4 ranks in stage 0 on nodes of 8 a100-sxm-80gb, 8 GPUs per node"):
        bundle(plan, "megatron", "torchrun")


def test_nodes_must_have_as_many_gpus() -> None:
    """A launcher starts as many ranks on every node."""
    spec = pool(("dgx-h100", 1), ("dgx-a100", 1))
    half = replace(spec.nodes[1], gpus_per_node=4, nics_per_node=4, count=2)
    plan = found(replace(spec, nodes=(spec.nodes[0], half)), "megatron", pp=2, dp=8)
    with pytest.raises(InputError, match="a launcher starts as many ranks on every node"):
        bundle(plan, "megatron", "torchrun")


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
    python = ask.interpreter(engine)
    if python is None:
        pytest.skip(f"{ask.PACKAGES[engine]} is not installed here")
    plan, contract = planned(engine), CONTRACTS[engine]
    assert len(set(plan.layers_of_stage)) > 1
    facts = facts_of(plan)
    case = ask.case_of(contract, told(plan, contract)[0], facts, setting_of(plan.request).cluster.gpu)
    (answer,) = ask.answers(engine, [case], python)
    assert ask.faults(facts, answer) == ()
    assert answer["derived"]
