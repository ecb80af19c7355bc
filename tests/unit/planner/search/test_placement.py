"""Where ranks run: in GPU order on a regular fabric, behind the fewest switches on an irregular one."""

from dataclasses import replace

from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from planner.problem import Setting
from planner.search.placement import choose_gpus, place
from topology.builders import build, default_cluster
from topology.spec import SwitchSpec

SETTING = Setting(
    model=model("llama-3.1-8b"),
    cluster=default_cluster("h100-sxm", 16),
    job=TrainingJob(sequence_length=4096, global_batch_size=32),
    stack=stack("megatron-core"),
)


def test_ranks_follow_gpus_on_a_symmetric_fabric() -> None:
    """The mesh has the axes of the layout, slowest first, and rank r runs on GPU r."""
    found, notes = place(SETTING, ParallelLayout(tp=4, pp=2, dp=2))
    assert found.axes == (("pp", 2), ("dp", 2), ("cp", 1), ("tp", 4))
    assert found.gpu_of_rank == tuple(range(16))
    assert notes == ()


def test_whole_nodes_behind_one_switch_are_chosen() -> None:
    """Of two leaves with one and three nodes, two nodes are taken from the larger."""
    leaf_of_gpu = (0, 0, 1, 1, 1, 1, 1, 1)
    assert choose_gpus(leaf_of_gpu, gpus_per_node=2, num_gpus=4) == (2, 3, 4, 5)


def test_an_irregular_cluster_is_used_behind_its_widest_switch() -> None:
    """Of rows with two and four nodes, four nodes are the second row's, and the plan says so."""
    base = default_cluster("h100-sxm", 8).spec
    rows = tuple(
        SwitchSpec(name=name, parent=parent, uplink_bandwidth_bytes_per_s=2e11 if parent else 0.0)
        for name, parent in (("room", ""), ("a", "room"), ("b", "room"))
    )
    nodes = tuple(replace(base.nodes[0], switch=row, count=count) for row, count in (("a", 2), ("b", 4)))
    spec = replace(base, nodes=nodes, switches=rows, tiers=(), rail_optimized=False)
    found, notes = place(replace(SETTING, cluster=build(spec)), ParallelLayout(dp=32))
    assert found.gpu_of_rank == tuple(range(16, 48))
    assert "16…47 of the fewest switches" in notes[0]


def test_a_part_of_a_node_needs_the_whole_node() -> None:
    """Three GPUs on nodes of two take two nodes and leave one GPU idle."""
    assert choose_gpus((0, 0, 0, 0), gpus_per_node=2, num_gpus=3) == (0, 1, 2)


def test_more_than_one_switch_is_used_only_when_it_must() -> None:
    """Four nodes spread over two leaves take both, and no third."""
    leaf_of_gpu = (0, 1, 1, 2, 2, 2)
    chosen = choose_gpus(leaf_of_gpu, gpus_per_node=1, num_gpus=4)
    assert len({leaf_of_gpu[gpu] for gpu in chosen}) == 2
