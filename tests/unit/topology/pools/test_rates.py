"""What the nodes of a cluster cost an hour, by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.topology.pools.test_kinds import pool
from topology.builders import build, default_cluster
from topology.cluster_file import read_cluster, to_toml
from topology.pools.kinds import kinds_of, part_of
from topology.pools.rates import (
    mean_usd_per_gpu_hour,
    rates_of,
    rates_of_kinds,
    unpriced,
    usd_per_hour,
    with_idle,
)
from topology.spec import ClusterSpec, SwitchSpec
from topology.spec_rules import violations


def priced(spec: ClusterSpec, *dollars: float | None) -> ClusterSpec:
    """The nodes of a cluster, each entry with its price."""
    nodes = (replace(node, usd_per_gpu_hour=each) for node, each in zip(spec.nodes, dollars, strict=True))
    return replace(spec, nodes=tuple(nodes))


MIXED = priced(pool(("dgx-h100", 2), ("dgx-a100", 1)), 4.0, 1.0)


def test_the_dollars_of_an_hour_follow_the_order_of_ranks() -> None:
    """Sixteen GPUs of 4 and eight of 1 dollar: twelve, twenty and all of them, and four of each."""
    rates = rates_of(MIXED)
    assert rates == ((16, 4.0), (8, 1.0))
    assert usd_per_hour(rates, [0, 12, 20, 24]).tolist() == [0.0, 48.0, 68.0, 72.0]
    assert mean_usd_per_gpu_hour(MIXED, 24) == 3.0
    assert mean_usd_per_gpu_hour(MIXED, 8, of_kinds=(4, 4)) == 2.5


def test_the_price_of_the_cluster_stands_for_nodes_without_one() -> None:
    """Own prices go first; without either there is no price, and the kind that lacks it is named."""
    half = priced(MIXED, None, 1.0)
    assert rates_of(half) is None
    assert mean_usd_per_gpu_hour(half, 24) is None
    assert unpriced(half) == ("h100-sxm",)
    assert rates_of(replace(half, usd_per_gpu_hour=2.0)) == ((16, 2.0), (8, 1.0))


def test_one_price_of_all_is_what_it_was() -> None:
    """A cluster of one price answers with that very number."""
    alike = replace(default_cluster("h100-sxm", 64).spec, usd_per_gpu_hour=2.345)
    assert mean_usd_per_gpu_hour(alike, 24) == 2.345


def test_idle_nodes_of_a_pool_are_paid_for() -> None:
    """Of 72 dollars an hour the H100 alone are billed 64 themselves and 8 for the A100 that idle."""
    part = with_idle(part_of(MIXED, kinds_of(MIXED)[:1]), MIXED)
    assert part.idle_usd_per_hour == 8.0
    assert mean_usd_per_gpu_hour(part, 16) == 72 / 16


def test_entries_of_one_kind_count_together() -> None:
    """Kinds come once each, entries in the order in which they stand."""
    spec = priced(pool(("dgx-h100", 1), ("dgx-a100", 1), ("dgx-h100", 2)), 4.0, 1.0, 4.0)
    assert rates_of(spec) == ((8, 4.0), (8, 1.0), (16, 4.0))
    assert rates_of_kinds(spec) == ((24, 4.0), (8, 1.0))


def test_ranks_on_a_tree_of_switches_pay_in_its_order() -> None:
    """GPUs are numbered as a walk of the tree meets them, whatever the order of the entries."""
    switches = (
        SwitchSpec(name="core"),
        SwitchSpec(name="a", parent="core", uplink_bandwidth_bytes_per_s=1e11),
        SwitchSpec(name="b", parent="core", uplink_bandwidth_bytes_per_s=1e11),
    )
    nodes = (replace(node, switch=name) for node, name in zip(MIXED.nodes, "ba", strict=True))
    spec = replace(MIXED, nodes=tuple(nodes), tiers=(), switches=switches)
    assert rates_of(spec) == ((8, 1.0), (16, 4.0))
    assert [node.usd_per_gpu_hour for node in build(spec).spec.nodes] == [1.0, 4.0]


@pytest.mark.parametrize("dollars", [-1.0, float("nan"), float("inf")])
def test_a_price_is_a_number_of_dollars(dollars: float) -> None:
    """A node's price is finite and not negative."""
    assert any("nodes[0].usd_per_gpu_hour" in line for line in violations(priced(MIXED, dollars, 1.0)))


KINDS = '[[nodes]]\nmachine = "{}"\ncount = 2\n{}\n[[nodes]]\nmachine = "{}"\ncount = 1\n'


@pytest.mark.parametrize(
    ("top", "machines", "own", "dollars"),
    [
        ("", ("dgx-h100", "dgx-a100"), "", "both"),
        ("", ("dgx-h100", "dgx-h100"), "", (None, None)),
        ("", ("dgx-h100", "dgx-h100"), "usd_per_gpu_hour = 1.5", "one"),
        ("usd_per_gpu_hour = 2.0\n", ("dgx-h100", "dgx-a100"), "", (None, None)),
        ("usd_per_gpu_hour = 2.0\n", ("dgx-h100", "dgx-a100"), "usd_per_gpu_hour = 1.5", (1.5, None)),
    ],
    ids=["catalog's", "one kind", "one of two states it", "cluster's", "own and the cluster's"],
)
def test_a_file_of_several_kinds_takes_the_catalog_s_prices(
    tmp_path: Path, top: str, machines: tuple[str, str], own: str, dollars: object
) -> None:
    """Unless the file states a price for all; what it took is said with its source, and reads back."""
    file = tmp_path / "pool.toml"
    file.write_text(top + KINDS.format(machines[0], own, machines[1]))
    spec = read_cluster(file)
    found = tuple(node.usd_per_gpu_hour for node in spec.nodes)
    listed = tuple(default_cluster(name, 8).spec.usd_per_gpu_hour for name in ("h100-sxm", "a100-sxm-80gb"))
    assert found == {"both": listed, "one": (1.5, listed[0])}.get(str(dollars), dollars)
    assert bool(spec.price_source) == isinstance(dollars, str)
    file.write_text(to_toml(spec))
    assert read_cluster(file) == spec
