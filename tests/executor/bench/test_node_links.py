"""`plan bench --nodes`: every pair once, levels of the cluster, slow pairs by name, figures in its file."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from tests.cli.documents import held_to_schema

pytest.importorskip("torch", reason="torch is not installed")

from costmodel.kernels.measurement import read_measurements
from executor.bench.measured_links import with_links
from executor.bench.node_links import NodeLinks, pair_entries, ranks_of_hosts, seat_of
from executor.bench.node_pairs import (
    ACROSS,
    Pair,
    boundaries_of,
    innermost_level,
    rounds,
    slow_hosts,
    slow_pairs,
)
from tests.executor.launch.namespaces import INTERFACE, modules_on_hosts, possible
from tests.executor.launch.test_placed_ranks import HOSTS, four_hosts
from tests.unit.topology.pools.test_kinds import pool
from topology.base.errors import InputError
from topology.builders import build, default_cluster
from topology.catalog import cluster as named_cluster
from topology.cluster_file import to_toml
from topology.spec import TierSpec

LEAVES = replace(
    default_cluster("h100-sxm", 64).spec,
    tiers=(TierSpec(name="leaf", nodes_per_unit=4), TierSpec(name="spine", nodes_per_unit=8)),
)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 33])
def test_rounds_have_every_pair_once_and_no_host_twice(count: int) -> None:
    """In n − 1 rounds, n where one host has to sit out."""
    found = rounds(range(count))
    assert sorted(pair for together in found for pair in together) == list(combinations(range(count), 2))
    assert all(len({host for pair in together for host in pair}) == 2 * len(together) for together in found)
    assert len(found) == (count - 1 if count % 2 == 0 else count)


def measured(rate: float = 4e11, across: float = 1e11, **slow: float) -> tuple[Pair, ...]:
    """Eight hosts below two leaves, whose pairs have these bytes/s; `h0_h5` is the pair of hosts 0 and 5."""
    levels, found = boundaries_of(build(LEAVES)), []
    for pair in combinations(range(8), 2):
        level = innermost_level(pair, levels)
        usual = rate if level == "leaf" else across
        of_pair = slow.get(f"h{pair[0]}_h{pair[1]}", usual)
        seconds = 5e-6 if level == "leaf" else 9e-6
        found.append(Pair(hosts=pair, level=level, latency_s=seconds, bytes_per_s=of_pair))
    return tuple(found)


def test_levels_are_those_of_the_cluster() -> None:
    """Twelve pairs share a leaf, sixteen cross; nodes alone and one spine are no level."""
    assert [level.name for level in boundaries_of(build(LEAVES))] == ["leaf", ACROSS]
    assert [pair.level for pair in measured()].count("leaf") == 12
    racks = boundaries_of(build(default_cluster("gb200", 144).spec))
    assert [len(set(level.unit_of_host)) for level in racks] == [2, 1]


def test_a_slow_pair_is_below_half_of_its_own_level_among_others_and_alone() -> None:
    """Pairs across leaves are no slow ones, nor is one that was held up by others alone."""
    assert slow_pairs(measured()) == ()
    pairs = measured(h0_h5=4.9e10, h1_h2=1.9e11, h3_h4=5.1e10)
    assert [pair.hosts for pair in slow_pairs(pairs)] == [(0, 5), (1, 2)]
    assert slow_hosts(slow_pairs(pairs), pairs) == ()
    free = replace(slow_pairs(pairs)[0], bytes_per_s=1e11)
    assert [pair.hosts for pair in slow_pairs(pairs, {(0, 5): free})] == [(1, 2)]
    host = {f"h{min(5, other)}_h{max(5, other)}": 1e9 for other in range(8) if other != 5}
    assert slow_hosts(slow_pairs(measured(**host)), measured(**host)) == (5,)
    assert slow_pairs(measured()[:2]) == ()  # two pairs have no usual one


def links(pairs: tuple[Pair, ...], ranks: int = 8) -> NodeLinks:
    """Measured links without collectives."""
    hosts = {host: f"n{host}" for pair in pairs for host in pair.hosts}
    return NodeLinks(hosts=hosts, ranks_per_host=ranks, pairs=pairs, slow=(), entries=())


def test_the_cluster_gets_what_its_links_have() -> None:
    """Eight NICs share what a host sends; a quarter of it crosses the leaf, four microseconds later."""
    spec, notes = with_links(build(LEAVES), links(measured()))
    (node,), (leaf, spine) = spec.nodes, spec.tiers
    assert (node.nic_bandwidth_bytes_per_s, node.nic_latency_s, notes) == (5e10, 5e-6, ())
    assert (leaf.oversubscription, leaf.latency_s, spine) == (4.0, pytest.approx(2e-6), LEAVES.tiers[1])
    crossing = build(spec).hierarchy.levels[-1]
    assert crossing.latency_s == pytest.approx(9e-6)
    (inside, outside) = pair_entries(links(measured()), build(LEAVES), "cpu")
    assert (inside.inputs["stride"], outside.inputs["stride"], inside.inputs["size"]) == (8, 8, 2)
    assert outside.timing.p50_s == pytest.approx(4 * inside.timing.p50_s)


def test_links_of_a_scale_up_domain_are_no_nics() -> None:
    """Trays of one rack say what NVLink has, those of two what the NICs have."""
    cluster = build(default_cluster("gb200", 144).spec)
    levels = boundaries_of(cluster)
    pairs = tuple(
        Pair(hosts=pair, level=innermost_level(pair, levels), latency_s=1e-6, bytes_per_s=rate)
        for pair, rate in (((0, 1), 3.2e12), ((0, 18), 1.6e11))
    )
    (node,) = with_links(cluster, links(pairs, 4))[0].nodes
    assert (node.scaleup_bandwidth_bytes_per_s, node.nic_bandwidth_bytes_per_s) == (8e11, 4e10)


def test_kinds_of_node_keep_their_own_figures() -> None:
    """The median over pairs of unlike nodes is that of neither."""
    spec = pool(("dgx-h100", 1), ("dgx-a100", 1))
    pair = Pair(hosts=(0, 1), level=ACROSS, latency_s=1e-6, bytes_per_s=1.0)
    found, notes = with_links(build(spec), links((pair,)))
    assert (found, "several kinds" in notes[0]) == (spec, True)


def test_ranks_are_those_of_the_hosts_that_the_cluster_names() -> None:
    """Whatever number a launcher gave them; hosts of another allocation are refused."""
    cluster = build(four_hosts(2))
    told = [([name, name + ".site"], name) for name in sorted(HOSTS) for _ in range(2)]
    found = ranks_of_hosts(cluster, told)
    assert {HOSTS[host]: its for host, its in found.items()} == {
        name: [2 * place, 2 * place + 1] for place, name in enumerate(sorted(HOSTS))
    }
    with pytest.raises(InputError, match="other hosts than this allocation"):
        ranks_of_hosts(cluster, [(["elsewhere"], "elsewhere")])
    unnamed = build(LEAVES)
    with pytest.raises(InputError, match="another number of nodes"):
        ranks_of_hosts(unnamed, [(["a"], "a"), (["b"], "b")])
    assert seat_of({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}).rank == 5
    slurm = {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "3"}
    assert seat_of({"PMI_RANK": "3", "PMI_SIZE": "8", **slurm}).local == 3  # srun --mpi=pmi2
    assert seat_of({"PMI_RANK": "3", "PMI_SIZE": "8", "PMI_LOCAL_RANK": "1"}).local == 1
    with pytest.raises(InputError, match="started once for every rank"):
        seat_of({"PMI_RANK": "3", "PMI_SIZE": "8"})


def test_outside_an_allocation_it_says_how_it_is_started() -> None:
    """One process is no rank."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "app", "bench", "--nodes", "--cluster", "dgx-h100"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "srun --ntasks-per-node=GPUS plan bench --nodes" in done.stderr
    assert named_cluster("dgx-h100", None).spec.num_nodes == 1


SHAPED = f"""
if [ "$HOST_NAME" = node9 ]; then
  {{ tc qdisc add dev {INTERFACE} root handle 1: htb default 10
    tc class add dev {INTERFACE} parent 1: classid 1:10 htb rate 40gbit
    tc class add dev {INTERFACE} parent 1: classid 1:20 htb rate 50mbit burst 128k
    tc filter add dev {INTERFACE} protocol ip parent 1: prio 1 u32 match ip dst 10.77.0.3 flowid 1:20
  }} 2> tc-said && touch shaped
fi
"""


@pytest.mark.slow
@pytest.mark.skipif(not possible(), reason="this machine gives no networks of one's own")
def test_four_hosts_are_measured_and_the_slow_link_is_named(tmp_path: Path) -> None:
    """From node9 to node2 goes little: that pair is named, and no other; the file has what was measured."""
    (tmp_path / "four.toml").write_text(to_toml(four_hosts(1)))
    (tmp_path / "meet").mkdir()
    job = {"SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7", "XDG_DATA_HOME": str(tmp_path)}
    named = job | {"OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
    named |= {"SLURM_PROCID": "$HOST_NUMBER", "SLURMD_NODENAME": "$HOST_NAME"}
    words = ["app", "bench", "--nodes", "--device", "cpu", "--cluster", "four.toml", "--interface", INTERFACE]
    code, said = modules_on_hosts(HOSTS, [*words, "--meet", "meet", "--json"], tmp_path, named, SHAPED)
    assert code == 0, said
    answers = [text for name in HOSTS if (text := (tmp_path / f"said-{name}").read_text())]
    assert len(answers) == 1
    found = held_to_schema("bench", answers[0])
    assert found["hosts"] == list(HOSTS)
    assert sorted(map(tuple, (pair["hosts"] for pair in found["pairs"]))) == sorted(combinations(HOSTS, 2))
    assert {one["what"] for one in found["measurements"]} == {"all_reduce", "all_gather", "all_to_all", "p2p"}
    (file,) = (tmp_path / "meshplan" / "measurements").glob("*.toml")
    text = file.read_text()
    assert text.startswith("# links measured 20")
    assert "4 hosts of 1 ranks: python" in text.splitlines()[0]
    cluster = named_cluster(str(file), None)
    kept = read_measurements(file.with_suffix(".json"))
    assert {one.cluster for one in kept} == {cluster.fingerprint()}
    assert cluster.spec.nodes[0].nic_bandwidth_bytes_per_s != four_hosts(1).nodes[0].nic_bandwidth_bytes_per_s
    if not (tmp_path / "shaped").exists():
        pytest.skip(f"no link can be shaped here: {(tmp_path / 'tc-said').read_text()}")
    assert found["slow_pairs"] == [["node9", "node2"]]
    assert found["slow_hosts"] == []
