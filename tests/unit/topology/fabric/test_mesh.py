"""Ranks on GPUs by named axes."""

from dataclasses import replace

import pytest

from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.fabric.mesh import Mesh, mesh
from topology.fabric.seats import idle_nodes

AXES = (("pp", 2), ("dp", 3), ("tp", 4))


def test_groups_differ_along_one_axis_only() -> None:
    """Groups of tp are neighbours; dp members are tp apart; pp members are dp·tp apart."""
    ranks = mesh(AXES)
    assert ranks.groups("tp")[:2] == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert ranks.groups("dp")[0] == (0, 4, 8)
    assert ranks.groups("pp")[5] == (5, 17)
    assert [ranks.stride(axis) for axis, _ in AXES] == [12, 4, 1]


@pytest.mark.parametrize("axis", ["pp", "dp", "tp"])
def test_every_axis_partitions_the_gpus(axis: str) -> None:
    """Each GPU is in one group of an axis, of the size of the axis."""
    ranks = mesh(AXES)
    groups = ranks.groups(axis)
    assert sorted(gpu for group in groups for gpu in group) == list(range(24))
    assert {len(group) for group in groups} == {ranks.size(axis)}


def test_a_placement_moves_groups_with_their_ranks() -> None:
    """gpu_of_rank is applied to every group."""
    ranks = mesh([("dp", 2), ("tp", 2)], [3, 2, 1, 0])
    assert (ranks.groups("tp"), ranks.groups("dp")) == (((3, 2), (1, 0)), ((3, 1), (2, 0)))


def test_coordinates_name_the_place_of_a_rank() -> None:
    """Rank 17 of 2×3×4 is on the second stage, second replica, second shard."""
    assert mesh(AXES).coordinates(17) == {"pp": 1, "dp": 1, "tp": 1}


@pytest.mark.parametrize(
    ("axes", "gpus"),
    [([("tp", 2), ("tp", 2)], None), ([("tp", 0)], None), ([("tp", 2)], [0]), ([("tp", 2)], [0, 0])],
)
def test_a_malformed_mesh_is_refused(axes: list[tuple[str, int]], gpus: list[int] | None) -> None:
    """Axes are named once, sizes positive, and every rank has a GPU of its own."""
    with pytest.raises(InputError):
        mesh(axes, gpus)


def test_an_unknown_axis_is_refused() -> None:
    """The error names the axes there are."""
    with pytest.raises(InputError, match="pp, dp, tp"):
        Mesh(axes=AXES, gpu_of_rank=tuple(range(24))).groups("ep")


def test_nodes_without_a_rank_are_idle() -> None:
    """By the name of the host, by number where hosts have none."""
    spec = default_cluster("h100-sxm", 32).spec
    ranks = mesh([("dp", 16)], [*range(8), *range(16, 24)])
    assert idle_nodes(ranks, spec) == ("node1", "node3")
    named = replace(spec, nodes=(replace(spec.nodes[0], hosts=("a", "b", "c", "d")),))
    assert idle_nodes(ranks, named) == ("b", "d")
