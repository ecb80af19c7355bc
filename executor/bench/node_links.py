"""Links between the nodes of an allocation: every pair of hosts, and collectives of every level.

One process a rank, started in the allocation by torchrun or srun; every rank calls this. Pairs are measured
in rounds that all hosts share, so a fabric is measured under load, and what looks slow is measured once more
alone.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executor.bench.kernels import Benchmark, collective_of, repeats_of, summarize, time_it
from executor.bench.node_pairs import (
    WITHIN_NODE,
    Pair,
    PairLevel,
    boundaries_of,
    innermost_level,
    rounds,
    slow_pairs,
)
from executor.launch.nodes import count_of, names_here
from topology.base.errors import InputError
from topology.base.units import KIB, MIB
from topology.cluster import Cluster

COLLECTIVES = ("all_reduce", "all_gather", "all_to_all")
PING_BYTES = 8
PINGS, SENDS = 20, 3
MESSAGE_BYTES = {"cpu": (64 * KIB, 4 * MIB), "cuda": (64 * KIB, 256 * MIB)}
"""Small and large, of collectives; pairs send the large ones."""
PORT = "29500"
TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedRank:
    """One rank of the measurement, as torchrun, MPI or Slurm numbers it."""

    rank: int
    world: int
    local: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelEntry:
    """One collective among the ranks of the hosts that share a unit of a level; the slowest unit's."""

    level: str
    entry: Benchmark


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLinks:
    """What was measured: hosts by their place in the cluster with their names, pairs and collectives.

    `slow` are pairs that were slow among others and alone, as they were alone.
    """

    hosts: Mapping[int, str]
    ranks_per_host: int
    pairs: tuple[Pair, ...]
    slow: tuple[Pair, ...]
    entries: tuple[LevelEntry, ...]


def seat_of(environment: Mapping[str, str]) -> LaunchedRank:
    """Which rank this process is.

    >>> seat_of({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"})
    LaunchedRank(rank=3, world=4, local=1)
    """
    for rank, world, local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if {rank, world, local} <= environment.keys():
            number, count, here = (count_of(environment, name, default=0) for name in (rank, world, local))
            return LaunchedRank(rank=number, world=count, local=here)
    raise InputError(
        what="plan bench --nodes is started once for every rank of the allocation",
        cause="rank, number and local rank are not set, by torchrun, MPI or Slurm",
        fix="srun --ntasks-per-node=GPUS plan bench --nodes …, or torchrun … -m app bench --nodes …",
    )


def join_ranks(
    seat: LaunchedRank, environment: Mapping[str, str], meet: Path | None, *, cuda: bool
) -> torch.device:
    """Meet the other ranks: in a folder that all nodes share, or at MASTER_ADDR."""
    device = torch.device("cuda", seat.local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    options: dict[str, Any] = {"rank": seat.rank, "world_size": seat.world, "timeout": TIMEOUT}
    if meet is not None:
        step = ".".join(environment.get(f"SLURM_{word}", "0") for word in ("JOB_ID", "STEP_ID"))
        options["store"] = dist.FileStore(str(meet / f"bench-{step}"), seat.world)
    elif "MASTER_ADDR" in environment:
        where = f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', PORT)}"
        options["init_method"] = f"tcp://{where}"
    else:
        raise InputError(
            what="ranks have nowhere to meet",
            cause="MASTER_ADDR is not set, and no --meet",
            fix="give --meet FOLDER, an empty folder that all nodes share",
        )
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", **options)
    return device


def measured_links(
    cluster: Cluster, seat: LaunchedRank, environment: Mapping[str, str], meet: Path | None, *, cuda: bool
) -> NodeLinks:
    """Meet the other ranks, measure with them, and part."""
    device = join_ranks(seat, environment, meet, cuda=cuda)
    try:
        links = measure_links(cluster, seat, device, environment)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return links


def measure_links(
    cluster: Cluster, seat: LaunchedRank, device: torch.device, environment: Mapping[str, str]
) -> NodeLinks:
    """Measure every pair and every level; every rank returns all of it."""
    ranks = ranks_of_hosts(cluster, gathered((sorted(names_here(environment)), socket.gethostname())))
    each = len(next(iter(ranks.values())))
    if any(len(its) != each for its in ranks.values()):
        raise InputError(
            what="hosts have unlike numbers of ranks",
            cause=", ".join(f"host {host} has {len(its)}" for host, its in sorted(ranks.items())),
            fix="start as many on each: srun --ntasks-per-node=GPUS",
        )
    levels, order = boundaries_of(cluster), sorted(ranks)
    pairs: list[Pair] = []
    for together in rounds(order):
        pairs += _pairs(together, ranks, levels, seat, device)
    alone: dict[tuple[int, int], Pair] = {}
    for suspect in slow_pairs(pairs):
        (alone[suspect.hosts],) = _pairs([suspect.hosts], ranks, levels, seat, device)
    names = gathered(socket.gethostname())
    known = cluster.spec.hosts
    return NodeLinks(
        hosts={host: known[host] if known else names[ranks[host][0]] for host in order},
        ranks_per_host=each,
        pairs=tuple(pairs),
        slow=tuple(pair for pair in slow_pairs(pairs, alone) if pair.hosts in alone),
        entries=tuple(_collectives(ranks, levels, seat, device)),
    )


def gathered(mine: Any) -> list[Any]:
    """What every rank has, by rank."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def ranks_of_hosts(cluster: Cluster, values: Sequence[tuple[Sequence[str], str]]) -> dict[int, list[int]]:
    """Ranks by the place of their host in the cluster: by its names, else in the order of ranks.

    Args:
        cluster: whose hosts.
        values: of each rank, the names its host may have, and the one that it has.
    """
    known, ranks = cluster.spec.hosts, dict[int, list[int]]()
    places: dict[str, int] = {}
    for rank, (names, host) in enumerate(values):
        if known:
            at = [place for place, name in enumerate(known) if {name, name.partition(".")[0]} & {*names}]
            if len(at) != 1:
                raise InputError(
                    what="the cluster has other hosts than this allocation",
                    cause=f"it names {', '.join(known[:4])}…; rank {rank} runs on {host}",
                    fix="describe this allocation: plan topology --here",
                )
            places[host] = at[0]
        ranks.setdefault(places.setdefault(host, len(places)), []).append(rank)
    if len(ranks) > cluster.spec.num_nodes or (not known and len(ranks) != cluster.spec.num_nodes):
        raise InputError(
            what="the cluster has another number of nodes than this allocation",
            cause=f"{cluster.spec.num_nodes} there, ranks on {len(ranks)} hosts",
            fix="name the cluster of this allocation with --cluster, or plan topology --here",
        )
    return ranks


def _pairs(
    together: Iterable[tuple[int, int]],
    ranks: Mapping[int, Sequence[int]],
    levels: Sequence[PairLevel],
    seat: LaunchedRank,
    device: torch.device,
) -> list[Pair]:
    """Measure pairs of hosts at once: ranks of one with those of the other, in the order of both."""
    pairs, mine = list(together), None
    for a, b in pairs:
        for count, other in zip(ranks[a], ranks[b], strict=True):
            if seat.rank in (count, other):
                peer = other if seat.rank == count else count
                mine = ((a, b), *_exchanged(peer, device, first=seat.rank == count))
    every = [item for item in gathered(mine) if item is not None]
    measured = []
    for hosts in pairs:
        its = [(latency_s, rate) for pair, latency_s, rate in every if pair == hosts]
        rate = sum(rate for _, rate in its) / 2  # both ends report each message
        latency_s = statistics.median(latency_s for latency_s, _ in its)
        level = innermost_level(hosts, levels)
        measured.append(Pair(hosts=hosts, level=level, latency_s=latency_s, bytes_per_s=rate))
    return measured


def _exchanged(peer: int, device: torch.device, *, first: bool) -> tuple[float, float]:
    """Seconds of an empty message one way, and bytes/s of a large one, by sending to and fro."""
    large = MESSAGE_BYTES[device.type][-1]
    ping = torch.zeros(PING_BYTES, dtype=torch.uint8, device=device)
    message = torch.zeros(large, dtype=torch.uint8, device=device)
    finish = torch.cuda.synchronize if device.type == "cuda" else _nothing

    def to_and_fro(tensor: torch.Tensor) -> float:
        start = time.perf_counter()
        for sends in (first, not first):
            (dist.send if sends else dist.recv)(tensor, peer)
        finish()
        return (time.perf_counter() - start) / 2

    for tensor in (ping, message):
        to_and_fro(tensor)
    latency_s = statistics.median(to_and_fro(ping) for _ in range(PINGS))
    seconds = statistics.median(to_and_fro(message) for _ in range(SENDS))
    return latency_s, large / seconds


def _nothing() -> None:
    """A CPU has finished when the call returns."""


def _collectives(
    ranks: Mapping[int, Sequence[int]], levels: Sequence[PairLevel], seat: LaunchedRank, device: torch.device
) -> list[LevelEntry]:
    """Collectives of every level, all of its units at once; of equal units the slowest counts."""
    node = PairLevel(name=WITHIN_NODE, unit_of_host=tuple(range(len(levels[-1].unit_of_host))))
    collectives: dict[tuple[str, str, float, float], Benchmark] = {}
    for level in (node, *levels):
        units: dict[int, list[int]] = {}
        for host, its in sorted(ranks.items()):
            units.setdefault(level.unit_of_host[host], []).extend(its)
        mine: list[Benchmark] = []
        for members in units.values():
            group = dist.new_group(members) if len(members) > 1 else None
            if group is not None and seat.rank in members:
                mine = _of_group(group, len(members), device)
        dist.barrier()
        for entry in (entry for entries in gathered(mine) for entry in entries):
            key = (level.name, entry.what, entry.inputs["bytes"], entry.inputs["size"])
            if key not in collectives or collectives[key].timing.p50_s < entry.timing.p50_s:
                collectives[key] = entry
    return [LevelEntry(level=name, entry=entry) for (name, *_), entry in collectives.items()]


def _of_group(group: Any, size: int, device: torch.device) -> list[Benchmark]:
    """Every collective of a group of consecutive GPUs."""
    finish = torch.cuda.synchronize if device.type == "cuda" else _nothing
    entries = []
    for what in COLLECTIVES:
        for message in MESSAGE_BYTES[device.type]:
            timing = time_it(collective_of(what, message, group, device), finish, repeats_of(message))
            inputs = {"bytes": message, "size": size, "stride": 1}
            entries.append(Benchmark(what=what, dtype="", inputs=inputs, timing=timing))
    return entries


def pair_entries(links: NodeLinks, cluster: Cluster, device_type: str) -> list[Benchmark]:
    """Median message of the pairs of each level as an entry: sent by the GPUs of neighbours that it parts."""
    per_host, levels = cluster.spec.nodes[0].gpus_per_node, boundaries_of(cluster)
    large, result = MESSAGE_BYTES[device_type][-1], []
    for level in levels:
        its = [pair for pair in links.pairs if pair.level == level.name]
        if not its:
            continue
        apart = min(b - a for a, b in (pair.hosts for pair in its))
        seconds = [large * links.ranks_per_host / pair.bytes_per_s for pair in its]
        inputs = {"bytes": large, "size": 2, "stride": apart * per_host}
        timing = summarize(seconds if len(seconds) > 1 else seconds * 2)
        result.append(Benchmark(what="p2p", dtype="", inputs=inputs, timing=replace(timing, repeats=SENDS)))
    return result
