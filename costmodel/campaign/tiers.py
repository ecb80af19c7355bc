"""Where checkpoints go: chains of places, nearest first, of those that a cluster has and a world allows.

State lies in the GPUs' own memory (HBM), which no failure leaves as it was; so the first copy is that aside
in host memory, and from there it goes to a peer's memory, a node's own disks, or a shared system. A chain is
some of the near places and one shared one that survives everything; which chain, is searched.

Legend: a *chain* is the levels of a `Course`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from costmodel.campaign.checkpoint import CheckpointState
from costmodel.campaign.course import CheckpointLevel
from costmodel.campaign.record import SURVIVED, FailureModel, Storage, Survival
from topology.spec import ClusterSpec, StorageSpec

LOCAL_TIERS = ("host", "peer", "nvme")
MOST_LOCAL = 2
"""Near places of one chain; a third is struck by what the others survive."""
SURVIVES: dict[str, Survival] = {
    "host": "process", "peer": "node", "nvme": "disk", "file-system": "memory", "object-store": "memory",
}  # fmt: skip
COPIES: dict[str, int] = {"host": 2, "peer": 3, "nvme": 2}
"""Of a node's share that must fit: the last whole one, the next; of a peer both, and one's own on its way."""


def chains_of(
    state: CheckpointState, world: FailureModel, cluster: ClusterSpec
) -> tuple[tuple[CheckpointLevel, ...], ...]:
    """Every chain of places that this checkpoint can go to, the shortest first."""
    return tuple(
        tuple(_level(state, world, cluster, place) for place in chain)
        for chain in storage_places(state, world, cluster)
    )


def storage_places(
    state: CheckpointState, world: FailureModel, cluster: ClusterSpec
) -> tuple[tuple[StorageSpec, ...], ...]:
    """The same as places; one that this checkpoint does not fit is in none.

    A world's own places stand for those of the cluster; where none of them is shared, its storage is.
    """
    offered = world.tiers or cluster.storage
    shared = [place for place in offered if place.kind not in LOCAL_TIERS] or [as_place(world.storage)]
    storage_specs = [place for place in offered if place.kind in LOCAL_TIERS and fits(state, cluster, place)]
    storage_specs.sort(key=lambda place: LOCAL_TIERS.index(place.kind))
    if world.peer_memory:
        peer = next(
            (place for place in offered if place.kind == "peer"), StorageSpec(kind="peer", name="peer memory")
        )
        others = [place for place in storage_specs if place.kind != "peer"]
        forced = [(peer, *more) for n in range(MOST_LOCAL) for more in itertools.combinations(others, n)]
    else:
        forced = [
            combination
            for n in range(MOST_LOCAL + 1)
            for combination in itertools.combinations(storage_specs, n)
        ]
    return tuple((*chain, last) for chain in forced for last in shared)


def as_place(storage: Storage) -> StorageSpec:
    """A world's storage as a place of a chain."""
    return StorageSpec(
        kind="file-system",
        name=storage.name,
        write_bytes_per_s=storage.write_bytes_per_s,
        read_bytes_per_s=storage.read_bytes_per_s,
        survives=storage.survives,
    )


def fits(state: CheckpointState, cluster: ClusterSpec, place: StorageSpec) -> bool:
    """Whether the copies that a node must keep fit there; what nobody said is taken to."""
    copies = COPIES[place.kind]
    for node in cluster.nodes:
        most = place.bytes or (node.host_memory_bytes if place.kind != "nvme" else 0.0)
        if most and copies * state.per_rank_bytes * node.gpus_per_node > most:
            return False
    return True


def last_written_s(state: CheckpointState, world: FailureModel, cluster: ClusterSpec) -> float:
    """Seconds in which the fastest of the shared places has one checkpoint."""
    written = world.changed_share * state.total_bytes
    return min(written / chain[-1].write_bytes_per_s for chain in storage_places(state, world, cluster))


def _level(
    state: CheckpointState, world: FailureModel, cluster: ClusterSpec, place: StorageSpec
) -> CheckpointLevel:
    """What a checkpoint on one place takes.

    Where only what changed is written, a restart reads the whole and the last change; frozen weights come
    from the world's own storage, whatever place the checkpoint is on.
    """
    host = min(node.host_bandwidth_bytes_per_s for node in cluster.nodes)
    nic = min(node.nic_bandwidth_bytes_per_s or host for node in cluster.nodes)
    gpus = max(node.gpus_per_node for node in cluster.nodes)
    share = world.changed_share
    read = 1.0 if share == 1.0 else 1.0 + share
    rank_bytes = state.per_rank_bytes
    spread_s = state.weights_per_rank_bytes / nic + state.base_bytes / world.storage.read_bytes_per_s
    aside_s = world.times.stall.seconds + share * rank_bytes / host
    match place.kind:
        case "host":
            write_s, load_s = (
                share * rank_bytes / _or(place.write_bytes_per_s / gpus, host),
                rank_bytes / _or(place.read_bytes_per_s / gpus, host),
            )
            return CheckpointLevel(
                name=place.title, stall_s=world.times.stall.seconds + write_s, durable_s=0.0,
                load_s=read * load_s + spread_s, survives=_survives(place),
            )  # fmt: skip
        case "peer":
            write_s, load_s = (
                rank_bytes / _or(place.write_bytes_per_s / gpus, nic),
                rank_bytes / _or(place.read_bytes_per_s / gpus, nic),
            )
        case "nvme":
            write_s, load_s = (
                rank_bytes * gpus / place.write_bytes_per_s,
                rank_bytes * gpus / place.read_bytes_per_s,
            )
        case _:
            write_s = state.total_bytes / place.write_bytes_per_s
            load_s = state.total_bytes / place.read_bytes_per_s
    waits = not world.asynchronous and place.kind != "peer"
    return CheckpointLevel(
        name=place.title,
        stall_s=share * write_s if waits else aside_s,
        durable_s=0.0 if waits else share * write_s,
        load_s=read * load_s + spread_s,
        survives=_survives(place),
    )


def _survives(place: StorageSpec) -> Survival:
    """What it was said to survive, or what its kind does."""
    known: dict[str, Survival] = {str(item): item for item in SURVIVED}
    return known[place.survives] if place.survives else SURVIVES[place.kind]


def _or(value: float, usual: float) -> float:
    """What was said, the slower of both; the usual where nothing was."""
    return min(value, usual) if value else usual


def only(world: FailureModel, chain: Sequence[StorageSpec]) -> FailureModel:
    """The world in which checkpoints go to these places and may go to no others."""
    return replace(world, tiers=tuple(chain))
