"""Nodes that a cluster has beside a run are its spares for nothing."""

from dataclasses import replace

import pytest

from costmodel.campaign.closed_form import erlang_b, expected
from costmodel.campaign.course import CheckpointLevel, Course, Hazard
from costmodel.campaign.interval import HARDLY, with_best_spares
from costmodel.campaign.worth import RunPrice, usd_per_s
from topology.base.units import DAY, HOUR


def course(*, idle_nodes: int, **changes: object) -> Course:
    """A run of 100 nodes that loses 8 of them a day, each for a day: 8 Erlang of repair."""
    lost = Hazard(name="lost", per_s=8 / DAY, notice_s=30.0, restart_s=60.0, loses="node")
    made = Course(
        work_s=100 * DAY, nodes=100, idle_nodes=idle_nodes, hazards=(lost,), every_s=(600.0,), repair_s=DAY,
        levels=(CheckpointLevel(name="storage", stall_s=1.0, durable_s=10.0, load_s=20.0),),
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spares", "idle_nodes", "nodes_paid"),
    [
        (3, 0, 103),  # nothing idles: each spare is paid for
        (3, 2, 101),  # two of three are there
        (2, 5, 100),  # all of them are, and three more idle
        (0, 5, 100),
    ],
)
def test_only_spares_beyond_idle_nodes_are_paid_for(spares: int, idle_nodes: int, nodes_paid: int) -> None:
    """Nodes of 8 GPUs at $2 an hour; what idles in any case costs its own $16 a node, once."""
    price = RunPrice(usd_per_gpu_hour=2.0, gpus_per_node=8.0, idle_usd_per_hour=16.0 * idle_nodes)
    paid = usd_per_s(course(idle_nodes=idle_nodes, spares=spares), price)
    assert paid == pytest.approx((nodes_paid * 16.0 + idle_nodes * 16.0) / HOUR)


@pytest.mark.parametrize("floor_nodes", [None, 80])
@pytest.mark.parametrize("idle_nodes", [0, 1, 5, 9, 14, 40])
def test_as_many_spares_as_make_the_fewest_paid_node_hours(idle_nodes: int, floor_nodes: int | None) -> None:
    """Against every number of spares; idle ones are taken until more hardly bring the finish forward."""
    bare = course(idle_nodes=idle_nodes, floor_nodes=floor_nodes)
    chosen = with_best_spares(bare)

    def node_hours(spares: int) -> float:
        """Node-hours that are paid for one of useful work on one node."""
        return (
            max(bare.nodes + spares, bare.nodes + idle_nodes) / expected(replace(bare, spares=spares)).useful
        )

    least = min(map(node_hours, range(60)))
    assert node_hours(chosen.spares) <= least * (1 + HARDLY)
    alone = with_best_spares(replace(bare, idle_nodes=0))
    assert chosen.spares >= min(alone.spares, idle_nodes)
    if idle_nodes == 0:
        assert node_hours(chosen.spares) == least


def test_idle_nodes_are_not_all_called_spares() -> None:
    """Of forty that idle, the fewest after which a run waits for hardly any: 20 by Erlang's B(n, 8) < 1/10,000."""
    fewest = next(n for n in range(100) if erlang_b(n + 1, 8.0) <= HARDLY)
    assert with_best_spares(course(idle_nodes=40)).spares == fewest
    assert with_best_spares(course(idle_nodes=0)).spares < fewest
