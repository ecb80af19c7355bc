"""Layouts of a serving replica: what engines can start on the hosts there are."""

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout, Weights
from costmodel.serving.engine import serving_stack
from costmodel.serving.mixers import splits_recurrence
from planner.serving.space import serving_layouts
from topology.builders import default_cluster


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


@pytest.mark.parametrize(
    ("name", "engine", "weights", "started"),
    [
        ("granite-4.0-h-small", "vllm", "bf16", True),  # one group of 128 heads: MambaMixer2 copies it
        ("granite-4.0-h-small", "sglang", "bf16", True),
        ("granite-4.0-h-small", "vllm", "fp8", False),  # not of a quantised checkpoint
        ("granite-4.0-h-small", "trtllm", "bf16", False),
        ("nemotron-3-nano", "vllm", "fp8", True),  # eight groups are divided
        ("8b", "trtllm", "fp8", True),
    ],
)
def test_ranks_copy_an_only_group_of_a_recurrence(
    name: str, engine: str, weights: Weights, started: bool
) -> None:
    """The degree is offered, and kept by the engines and weights that start it."""
    layout = ServingLayout(tp=4)
    offered = serving_layouts(model(name), most_gpus=8, domain_gpus=8, host_gpus=8)
    assert 4 in {each.tp for each in offered}
    here = Deployment(
        model=model(name),
        hierarchy=default_cluster("h100-sxm", 8).hierarchy,
        layout=layout,
        stack=serving_stack(engine),
        weights=weights,
    )
    assert splits_recurrence(here) is started


def test_an_only_group_is_copied_to_ranks_that_divide_its_heads() -> None:
    """Up to all GPUs of a domain; 128 heads of one group."""
    offered = serving_layouts(model("granite-4.0-h-small"), most_gpus=8, domain_gpus=8, host_gpus=8)
    assert {layout.tp for layout in offered} == {1, 2, 4, 8}
