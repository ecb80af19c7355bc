"""A census of process groups: how many a rank has, and which of them have the same ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from costmodel.layout import ParallelLayout
from executor.comm.mesh import build_meshes
from executor.torch_internals.groups import end_fake_group, named_groups, start_fake_group


def census(layout: ParallelLayout, *, experts: bool) -> dict[tuple[int, ...], list[str]]:
    """What the groups of rank 0 are for, by their ranks."""
    start_fake_group(layout.num_gpus, 0)
    try:
        build_meshes(layout, "cpu", experts=experts)
        found: dict[tuple[int, ...], list[str]] = {}
        for purpose, ranks in named_groups().values():
            found.setdefault(tuple(ranks), []).append(purpose.removeprefix("mesh_"))
        return found
    finally:
        end_fake_group()


EXPERTS = ParallelLayout(tp=4, pp=2, dp=4, cp=2, ep=4, zero_stage=3, shard_degree=2, sequence_parallel=True)


def test_groups_of_a_layout_of_experts() -> None:
    """Thirteen of five sets of ranks: on GPUs each is a communicator, the estimate has one for each axis."""
    assert sorted(census(EXPERTS, experts=True).values()) == [
        ["cp", "shard", "expert_shard"],
        ["default_pg"],
        ["dp", "replicate", "expert_replicate"],
        ["pp", "stage", "expert_stage"],
        ["tp", "tensor", "ep"],
    ]


def test_a_layout_without_experts_has_none_of_theirs() -> None:
    """Nor groups of one rank."""
    groups = census(ParallelLayout(tp=2, dp=2, zero_stage=1, sequence_parallel=True), experts=False)
    assert sorted(groups.values()) == [["default_pg"], ["dp", "shard"], ["tp", "tensor"]]
