"""What is left of a cluster when GPUs are lost, so that a run can be planned again."""

from __future__ import annotations

import pytest

from app.actions.runs.replan import part_of_cluster
from topology.builders import build, default_cluster


@pytest.mark.parametrize(("gpus", "left"), [(2, 1), (8, 7), (16, 8), (16, 4)])
def test_whole_nodes_or_a_part_of_one_are_left(gpus: int, left: int) -> None:
    """A node that lost a GPU goes on with the others."""
    part = part_of_cluster(default_cluster("h100-sxm", gpus).spec, left)
    assert part is not None
    assert build(part).num_gpus == left


def test_nodes_that_are_not_alike_are_not_planned_for() -> None:
    """Fifteen of sixteen GPUs are no regular cluster: the launcher asks for fewer."""
    assert part_of_cluster(default_cluster("h100-sxm", 16).spec, 15) is None
