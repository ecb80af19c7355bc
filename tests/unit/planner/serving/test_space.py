"""Layouts of a serving replica: what engines can start on the hosts there are."""

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout
from planner.serving.space import serving_layouts


@pytest.mark.parametrize(
    ("layout", "host_gpus", "startable"),
    [
        (ServingLayout(tp=2, pp=3), 8, True),  # one host
        (ServingLayout(tp=8, pp=3), 8, True),  # a stage a host
        (ServingLayout(tp=4, pp=4), 8, True),  # two stages a host
        (ServingLayout(tp=8, pp=1), 4, True),  # half a stage a host
        (ServingLayout(tp=2, pp=3), 4, False),  # the second stage would straddle both hosts
        (ServingLayout(tp=4, pp=3), 8, False),
        (ServingLayout(tp=1, pp=3), 2, False),  # two ranks on one host, one on the other
    ],
)
def test_every_host_of_a_replica_runs_as_many_ranks(
    layout: ServingLayout, host_gpus: int, startable: bool
) -> None:
    """Engines start as many ranks on each node, whole stages or equal parts of one."""
    offered = serving_layouts(model("70b"), most_gpus=64, domain_gpus=72, host_gpus=host_gpus)
    assert (layout in offered) == startable
