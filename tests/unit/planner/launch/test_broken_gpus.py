"""Bundles on nodes whose GPUs are not all whole, and on fabrics whose switches add up."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from planner.launch.bundle import bundle
from planner.launch.targets import export_plan
from planner.plan import Plan, PlanRequest
from planner.search.search import search
from topology.builders import default_cluster
from topology.fabric.degraded import degraded
from topology.spec import ClusterSpec

TWO = default_cluster("h100-sxm", 16).spec
NAMED = replace(TWO, nodes=(replace(TWO.nodes[0], hosts=("b", "a")),))


@cache
def planned(spec: ClusterSpec) -> Plan:
    """Replicas on every GPU."""
    request = PlanRequest(
        model=model("llama-3.2-1b"),
        cluster=spec,
        job=TrainingJob(sequence_length=4096, global_batch_size=4 * spec.num_gpus),
        engine="megatron",
        pins={"tp": 1, "pp": 1, "cp": 1, "dp": spec.num_gpus, "microbatch_size": 1},
    )
    plan = search(request, load_calibration())
    assert isinstance(plan, Plan)
    return plan


def devices(spec: ClusterSpec, launcher: str = "torchrun") -> list[str]:
    """Lines of the node's script that name its GPUs."""
    files, _ = bundle(planned(spec), "megatron", launcher)
    return [line for line in files["start.sh"].splitlines() if "CUDA_VISIBLE_DEVICES" in line]


def test_the_gpu_that_is_broken_is_passed_over() -> None:
    """Seven ranks on the GPUs of a node but its fourth, as the node numbers them."""
    one = degraded(default_cluster("h100-sxm", 8).spec, [], ["node0:gpu3"])
    assert devices(one) == [
        '[ "$NODE_RANK" != 0 ] || export CUDA_VISIBLE_DEVICES=0,1,2,4,5,6,7  # the others are broken'
    ]
    files, _ = bundle(planned(one), "megatron", "slurm")
    assert [row.split(",")[3] for row in files["ranks.csv"].splitlines()[1:]] == list("0124567")
    assert "--gpus-per-node" not in files["train.sbatch"]  # seven might be the wrong seven
    assert devices(one, "kubernetes") == []  # a device plugin hands out whole GPUs only


def test_each_host_has_its_own_broken_gpu() -> None:
    """Hosts are known by their names, or in order where each is used in part; else the user must say."""
    for spec in (TWO, NAMED):
        first, second = spec.hosts or ("node0", "node1")
        both = degraded(spec, [], [f"{first}:gpu0", f"{second}:gpu7", f"{second}:gpu7"])
        assert devices(both) == [
            '[ "$NODE_RANK" != 0 ] || export CUDA_VISIBLE_DEVICES=1,2,3,4,5,6,7  # the others are broken'
        ]
    unknown = replace(planned(both).request.cluster, left_out=("x without gpu1",), nodes=TWO.nodes)
    assert devices(unknown)[0].startswith(': "${CUDA_VISIBLE_DEVICES:?name the GPUs of this node that work')


def test_a_host_that_idles_for_a_broken_gpu_names_none() -> None:
    """The other is whole, and its GPUs are numbered as they are."""
    left = degraded(TWO, [], ["node0:gpu0"])
    assert (left.num_gpus, devices(left)) == (8, [])


@pytest.mark.parametrize("reduces", [True, False])
def test_the_switches_add_up_where_the_plan_says_so(*, reduces: bool) -> None:
    """NCCL is told to let them, since the step was priced with it; else it is not."""
    tiers = tuple(replace(tier, sharp=reduces) for tier in TWO.tiers)
    files, _ = bundle(planned(replace(TWO, tiers=tiers)), "megatron", "slurm")
    assert ("export NCCL_COLLNET_ENABLE=" in files["environment.sh"]) == reduces


def test_a_job_of_plan_run_passes_over_the_broken_gpu_too() -> None:
    """The launcher of a node numbers its ranks from 0 on, and torch the GPUs that it is shown."""
    one = degraded(default_cluster("h100-sxm", 8).spec, [], ["node0:gpu3"])
    asked = replace(planned(one).request, engine="meshplan", stack="meshplan")
    plan = search(asked, load_calibration())
    assert isinstance(plan, Plan)
    lines = export_plan(plan, "slurm").text.splitlines()
    assert "export CUDA_VISIBLE_DEVICES=0,1,2,4,5,6,7  # the others are broken" in lines
    assert not [line for line in lines if "--gpus-per-node" in line]
