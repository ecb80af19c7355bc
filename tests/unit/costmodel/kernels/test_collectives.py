"""Collective times: inside a node, across nodes, and what they may never do."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.kernels.collectives import OPS, collective, collective_time, group_of
from costmodel.kernels.tables import load_calibration
from topology.base.errors import InputError
from topology.base.units import GIB, MIB
from topology.builders import build, default_cluster
from topology.fabric.hierarchy import ring_bandwidth

CAL = load_calibration()
NODE = default_cluster("h100-sxm", 8).hierarchy
MANY = default_cluster("h100-sxm", 1024).hierarchy


@pytest.mark.parametrize("op", OPS)
def test_nothing_to_say_takes_no_time(op):
    """A group of one, or an empty message, costs nothing."""
    assert collective_time(CAL, MANY, op, [MIB, 0.0], [1, 8], 1).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("gpu", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    [
        ("a100-sxm-80gb", 222, 205, 213, 203),
        ("h100-sxm", 445, 335, 336, 317),
        ("h200-sxm", 460, 337, 337, 319),
        ("b200-sxm", 701, 617, 612, 562),
    ],
)
def test_plateau_bus_bandwidth_of_a_node(gpu, all_reduce, all_gather, reduce_scatter, all_to_all):
    """At 512 MiB on 8 GPUs bus bandwidth is what nccl-tests measured, in GB/s."""
    h = default_cluster(gpu, 8).hierarchy
    measured = {"all_reduce": all_reduce, "all_gather": all_gather}
    measured |= {"reduce_scatter": reduce_scatter, "all_to_all": all_to_all}
    for op, bus in measured.items():
        traffic = (2 if op == "all_reduce" else 1) * 7 / 8 * 512 * MIB
        assert traffic / float(collective_time(CAL, h, op, 512 * MIB, 8, 1)) / 1e9 == pytest.approx(
            bus, rel=0.01
        )


def test_switch_reduction_helps_eight_gpus_and_not_four():
    """SHARP in the NVSwitch lifts the all-reduce of 8 H200s 1.2 to 1.4 times over a ring, that of 4 not."""
    h = default_cluster("h200-sxm", 8).hierarchy
    ring = 2 * collective_time(CAL, h, "all_gather", 512 * MIB, [4, 8], 1)
    lift = ring / collective_time(CAL, h, "all_reduce", 512 * MIB, [4, 8], 1)
    assert lift[0] == pytest.approx(1.07, abs=0.08)
    assert 1.2 < lift[1] < 1.4


def test_the_network_sets_the_rate_across_nodes():
    """96 H100 with 400 Gbit/s NICs reduce 8 GiB at 380 to 400 GB/s of bus bandwidth."""
    h = default_cluster("h100-sxm", 96).hierarchy
    seconds = float(collective_time(CAL, h, "all_reduce", 8 * GIB, 96, 1))
    assert 370 < 2 * 95 / 96 * 8 * GIB / seconds / 1e9 < 400


def test_two_nodes_exchange_halves_directly():
    """Two nodes reduce faster than a ring over their NICs could, up to the switch's own rate."""
    h = default_cluster("h100-sxm", 16).hierarchy
    bus = 2 * 15 / 16 * 8 * GIB / float(collective_time(CAL, h, "all_reduce", 8 * GIB, 16, 1)) / 1e9
    assert 440 < bus < 500


def test_a_strided_group_shares_its_nodes_nics():
    """Groups with one member per node each have one NIC: an all-gather moves at a NIC's rate."""
    seconds = float(collective_time(CAL, MANY, "all_gather", GIB, 128, 8))
    rate = 127 / 128 * GIB / seconds
    assert 0.75 * 50e9 < rate < 50e9


def test_small_all_reduces_climb_a_tree():
    """A tiny all-reduce of 256 A100 takes 55 to 80 µs, as published (NVIDIA/nccl#652: 63 to 71 µs)."""
    h = default_cluster("a100-sxm-80gb", 256).hierarchy
    assert 55e-6 < float(collective_time(CAL, h, "all_reduce", 128, 256, 1)) < 80e-6


@pytest.mark.parametrize("op", OPS)
def test_more_bytes_never_take_less_time(op):
    """Time rises with the message from 1 MiB on (below, tables keep the noise of a launch), 1 to 128 nodes."""
    sizes = np.geomspace(1 * MIB, 64 * GIB, 200)
    for n, stride in ((2, 1), (3, 1), (8, 1), (64, 1), (128, 8), (1024, 1)):
        seconds = collective_time(CAL, MANY, op, sizes, n, stride)
        assert (np.diff(seconds) > 0).all(), (op, n, stride)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
def test_ten_thousand_gpus_get_a_finite_answer(op):
    """A group of 10,240 GPUs is priced, slower than one of 1,024, and flagged as extrapolated."""
    h = default_cluster("h100-sxm", 10_240).hierarchy
    found = collective(CAL, h, op, GIB, group_of(h, [1024, 10_240], 1))
    assert np.isfinite(found.seconds).all()
    assert found.seconds[0] < found.seconds[1] < 1.0
    assert found.extrapolated.all()


def test_a_rack_sized_domain_is_one_node():
    """72 GB200 of one rack reduce 4 GiB at 700 to 900 GB/s without touching a NIC."""
    h = default_cluster("gb200", 72).hierarchy
    seconds = float(collective_time(CAL, h, "all_reduce", 4 * GIB, 72, 1))
    assert 700 < 2 * 71 / 72 * 4 * GIB / seconds / 1e9 < 900


def test_a_mesh_gives_a_pair_one_link():
    """Two MI300X share one of seven links: their bus bandwidth is 30 to 60 GB/s, that of all eight above 250."""
    h = default_cluster("mi300x", 8).hierarchy
    seconds = collective_time(CAL, h, "all_reduce", 4 * GIB, [2, 8], 1)
    pair, all_eight = np.array([1.0, 7 / 4]) * 4 * GIB / seconds / 1e9
    assert 30 < pair < 60
    assert all_eight > 250


def test_pcie_hosts_are_read_off_pcie_tables():
    """L40S on a host without peer-to-peer reduce at about 1.4 GB/s, and an A10 over PCIe at more than 3."""
    l40s, a10 = (default_cluster(name, 8).hierarchy for name in ("l40s", "a10"))
    rates = [7 / 4 * GIB / float(collective_time(CAL, h, "all_reduce", GIB, 8, 1)) / 1e9 for h in (l40s, a10)]
    assert rates[0] == pytest.approx(1.4, abs=0.4)
    assert 3 < rates[1] < 32


def test_an_unknown_collective_is_refused():
    """The error names the known ones."""
    with pytest.raises(InputError, match="all_reduce"):
        collective_time(CAL, NODE, "gossip", MIB, 8, 1)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_a_faster_switch_never_slows_a_group_that_straddles_nodes(op):
    """Eight ranks three GPUs apart share nodes unevenly; their part inside a node still moves over the switch."""
    seconds = []
    for share in (0.5, 1.0, 1.2, 2.0, 4.0):
        switch = replace(MANY.scaleup, bandwidth_bytes_per_s=share * MANY.scaleup.bandwidth_bytes_per_s)
        h = replace(MANY, scaleup=switch)
        seconds.append(collective_time(CAL, h, op, GIB, [8, 4, 16], [3, 3, 5]))
    assert (np.diff(seconds, axis=0) <= 1e-12).all()


def sharp(*tiers: str):
    """The same cluster, whose switches of these tiers reduce."""
    spec = default_cluster("h100-sxm", 1024).spec
    last = replace(spec.tiers[-1], nodes_per_unit=spec.num_nodes)
    changed = [replace(tier, sharp=tier.name in tiers) for tier in (*spec.tiers[:-1], last)]
    return build(replace(spec, tiers=tuple(changed))).hierarchy


def test_switches_that_reduce_halve_what_a_large_all_reduce_sends():
    """Each GPU sends and receives B once instead of 2(n−1)/n·B; other collectives stay as they are."""
    h = sharp("leaf", "spine")
    assert [level.reduces for level in h.levels] == [True, True]
    before, now = (collective_time(CAL, one, "all_reduce", 64 * GIB, 128, 8) for one in (MANY, h))
    assert before / now == pytest.approx(2 * 127 / 128, rel=0.02)
    before, now = (collective_time(CAL, one, "all_reduce", 64 * GIB, 1024, 1) for one in (MANY, h))
    assert 1.2 < before / now < 1.5  # where a node has eight NICs, NVLink is what remains
    for op in OPS:
        if op != "all_reduce":
            assert collective_time(CAL, h, op, GIB, 64, 1) == collective_time(CAL, MANY, op, GIB, 64, 1)


def test_a_tier_that_does_not_reduce_stops_what_crosses_it():
    """Leaves that reduce below spines that do not: groups inside a leaf gain, larger ones do not."""
    h = sharp("leaf")
    seconds = [collective_time(CAL, one, "all_reduce", GIB, [256, 1024], 1) for one in (h, MANY)]
    assert seconds[0][0] < seconds[1][0]
    assert seconds[0][1] == seconds[1][1]
    for off in (sharp(), sharp("spine")):
        assert (collective_time(CAL, off, "all_reduce", GIB, [256, 1024], 1) == seconds[1]).all()


def test_reduction_in_the_network_is_off_unless_the_cluster_says_so():
    """No machine of the catalog states it."""
    assert not any(level.reduces for level in MANY.levels)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(min_value=1.0, max_value=1e12),
    st.sampled_from([16, 24, 64, 96, 256, 1024]),
    st.sampled_from([1, 8]),
)
def test_no_all_reduce_beats_its_links(message_bytes, size, stride):
    """Every GPU's message leaves and enters once: never below B / bandwidth, never above the ring's time."""
    h = sharp("leaf", "spine")
    if size * stride > h.num_gpus:
        return
    seconds = float(collective_time(CAL, h, "all_reduce", message_bytes, size, stride))
    assert seconds >= message_bytes / float(ring_bandwidth(h, size, stride))
    assert seconds <= float(collective_time(CAL, MANY, "all_reduce", message_bytes, size, stride))
    larger = float(collective_time(CAL, h, "all_reduce", 2 * message_bytes, size, stride))
    assert larger >= seconds
