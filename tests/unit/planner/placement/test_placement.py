"""Where ranks run: in GPU order, unless fewer groups span units of the fabric in another."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from planner.placement.cost import AxisPlaced, axes_placed
from planner.placement.nodes import choose_hosts, place_on_nodes
from planner.plan import Plan, PlanRequest, Problem
from planner.rules.check import parse_pins
from planner.search.given_layout import plan_of_layout
from topology.builders import build, default_cluster
from topology.discover.cluster import discover, dump_facts
from topology.fabric.derive import unit_of_gpu
from topology.fabric.mesh import Mesh
from topology.fabric.packing import units_of_hosts
from topology.spec import ClusterSpec, SwitchSpec, TierSpec

SETTING = Problem(
    case=Case(
        model=model("llama-3.1-8b"),
        cluster=default_cluster("h100-sxm", 16),
        job=TrainingJob(sequence_length=4096, global_batch_size=32),
        stack=stack("megatron-core"),
        cal=load_calibration(),
    )
)


def placed_by(problem: Problem, layout: ParallelLayout) -> Mesh:
    """The mesh of a layout, with the estimate of that layout."""
    answer = estimate(problem.case, layout)
    return place_on_nodes(problem, layout, answer)


def rows(*counts: int) -> ClusterSpec:
    """Rows of so many DGX H100, below one room."""
    base = default_cluster("h100-sxm", 8).spec
    names = [f"row-{number}" for number in range(len(counts))]
    switches = [
        SwitchSpec(name=name, parent="room", uplink_bandwidth_bytes_per_s=2e11, latency_s=1e-7)
        for name in names
    ]
    nodes = tuple(
        replace(base.nodes[0], switch=name, count=count) for name, count in zip(names, counts, strict=True)
    )
    room = SwitchSpec(name="room", latency_s=1e-7)
    return replace(base, nodes=nodes, switches=(room, *switches), tiers=(), rail_optimized=False)


def racks(*counts: int) -> ClusterSpec:
    """Racks of so many GB200 trays, each one scale-up domain, as Slurm's blocks say."""
    ends = np.cumsum(counts)
    lines = [
        f"BlockName=b{i} Nodes=t[{end - count + 1}-{end}]"
        for i, (count, end) in enumerate(zip(counts, ends, strict=True))
    ]
    return discover([dump_facts("\n".join(lines) + "\n", "topology.conf")], gpu="gb200").spec


def test_ranks_follow_gpus_on_a_symmetric_fabric() -> None:
    """The mesh has the axes of the layout, slowest first, and rank r runs on GPU r."""
    found = placed_by(SETTING, ParallelLayout(tp=4, pp=2, dp=2))
    assert found.axes == (("pp", 2), ("dp", 2), ("cp", 1), ("tp", 4))
    assert found.gpu_of_rank == tuple(range(16))


def test_an_irregular_cluster_is_used_behind_one_switch() -> None:
    """Of rows with two and four nodes, four nodes are the second row's."""
    found = placed_by(SETTING.of(cluster=build(rows(2, 4))), ParallelLayout(dp=32))
    assert found.gpu_of_rank == tuple(range(16, 48))


def test_more_than_one_switch_is_used_only_when_it_must() -> None:
    """Four nodes over leaves of one, two and three take two of them; all of them stay in order."""
    leaves = np.array([0, 1, 1, 2, 2, 2])
    assert len({int(leaves[host]) for host in choose_hosts((leaves,), {}, 4)}) == 2
    assert choose_hosts((leaves,), {}, 6).tolist() == list(range(6))


def test_pairs_stay_in_their_rows() -> None:
    """Pipelines of two nodes on rows of three, one and four: only what is left of the first two is joined."""
    problem = SETTING.of(cluster=build(rows(3, 1, 4)))
    found = placed_by(problem, ParallelLayout(pp=4, dp=2, tp=8, axis_order=("pp", "dp", "cp", "tp")))
    hosts = np.asarray(found.gpu_of_rank).reshape(4, 2, 8)[:, :, 0] // 8
    assert hosts.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    row_of = np.array([0, 0, 0, 1, 1, 1, 1, 2])  # rows of three, four and one: now in order two are torn
    assert choose_hosts((row_of,), {"dp": 2}, 8).tolist() == [0, 1, 2, 7, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "spec",
    [
        rows(2, 4, 1),
        racks(3, 2, 3),
        replace(
            default_cluster("h100-sxm", 96).spec,
            tiers=(
                TierSpec(name="leaf", nodes_per_unit=3, units=(3, 2, 1, 3, 3)),
                TierSpec(name="spine", nodes_per_unit=6, units=(6, 6)),
            ),
        ),
    ],
)
def test_units_of_hosts_are_those_of_the_graph(spec: ClusterSpec) -> None:
    """What stays connected when outer switches are taken away."""
    cluster = build(spec)
    host = spec.nodes[0].gpus_per_node
    for tier, units in enumerate(units_of_hosts(cluster.spec), start=1):
        assert unit_of_gpu(cluster.graph, tier)[::host] == tuple(units)


def expert_groups(spec: ClusterSpec, ranks: int) -> tuple[Plan, tuple[AxisPlaced, ...]]:
    """A plan of sixteen-fold experts on so many GPUs, and how its axes are placed."""
    degrees = {"dp": ranks, "tp": 1, "pp": 1, "cp": 1, "ep": 16}
    request = PlanRequest(
        model=model("qwen3-30b-a3b"),
        cluster=spec,
        job=TrainingJob(sequence_length=4096, global_batch_size=4 * ranks),
        pins=parse_pins(degrees),
        memory_headroom=0.0,
    )
    plan = plan_of_layout(request, load_calibration())
    assert isinstance(plan, Plan), plan
    placed = axes_placed(plan.problem, plan.layout, plan.mesh, plan.estimate)
    return plan, tuple(one for one in placed if one.axis == "ep")


def test_an_expert_group_over_two_racks_is_avoided() -> None:
    """NVIDIA-NeMo/RL#2986: EP16 is four trays, and eighteen of a rack hold four such groups, not the fifth.

    Of 36 trays 32 are used: in order group 4 has two trays of each rack, as placed every group is in one.
    """
    plan, (experts,) = expert_groups(racks(18, 18), 128)
    assert (experts.groups, experts.in_order, experts.placed, experts.least) == (8, 1, 0, 0)
    trays = np.asarray(plan.mesh.gpu_of_rank).reshape(8, 16) // 4
    assert ((trays // 18) == (trays // 18)[:, :1]).all()
    shown, hidden = plan.estimate.time.ep_s, plan.estimate.time.hidden_s.get("ep", 0.0)
    saved = (shown + hidden) * (1 - experts.torn_bytes_per_s**-1 / 100e9**-1)
    assert experts.gained_s == pytest.approx(min(shown, saved), rel=1e-6)
    assert any(
        "1 span several scale-up domains in the order of nodes, 0 as placed" in a for a in plan.assumptions
    )


@pytest.mark.parametrize("trays", [(18, 18), (18, 14)])
def test_an_expert_group_that_must_span_racks_is_priced(trays: tuple[int, int]) -> None:
    """Every tray is used: one block has no rack to itself, which is told with what to ask for."""
    plan, (experts,) = expert_groups(racks(*trays), 4 * sum(trays))
    assert (experts.in_order, experts.placed, experts.least, experts.gained_s) == (1, 1, 1, 0.0)
    assert 0 < experts.torn_s <= plan.estimate.time.ep_s
    assert any("Slurm --segment=4" in said for said in plan.assumptions)
