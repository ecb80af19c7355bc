"""A census of process groups: how many a rank has; axes with the same ranks share one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.comm.mesh import build_meshes
from executor.torch_internals.groups import end_fake_group, named_groups, start_fake_group


def census(layout: ParallelLayout, *, experts: bool) -> list[str]:
    """What the groups of rank 0 are for; no two have the same ranks."""
    start_fake_group(layout.num_gpus, 0)
    try:
        build_meshes(layout, "cpu", experts=experts)
        groups = named_groups().values()
        assert len({tuple(ranks) for _, ranks in groups}) == len(groups)
        return sorted(purpose.removeprefix("mesh_") for purpose, _ in groups)
    finally:
        end_fake_group()


EXPERTS = ParallelLayout(tp=4, pp=2, dp=4, cp=2, ep=4, zero_stage=3, shard_degree=2, sequence_parallel=True)


def test_groups_of_a_layout_of_experts() -> None:
    """Thirteen dimensions of more than one rank have five sets of ranks: on GPUs each is a communicator."""
    assert census(EXPERTS, experts=True) == ["cp", "default_pg", "dp", "pp", "tp+ep"]


def test_a_layout_without_experts_has_none_of_theirs() -> None:
    """Nor groups of one rank."""
    layout = ParallelLayout(tp=2, dp=2, zero_stage=1, sequence_parallel=True)
    assert census(layout, experts=False) == ["default_pg", "dp", "tp"]


def test_replicas_of_shards_have_groups_beside_their_axis() -> None:
    """Shards and their replicas cut the axis of replicas, which has a group of its own."""
    layout = ParallelLayout(tp=2, dp=4, zero_stage=3, shard_degree=2, sequence_parallel=True)
    assert census(layout, experts=False) == ["default_pg", "dp", "replicate", "shard", "tp"]
