"""Where every server of a serving plan runs: its nodes, its GPUs there, and its ports.

A worker that fits into a node shares it with others, on neighbouring GPUs; a larger one has its nodes to
itself. What two servers on one node must not share follows from the first GPU of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.deployment.kubernetes import PORT
from planner.serving.plan import PoolPlan, ServingPlan

_WORKER_PORT, _APART = 8100, 100
"""SGLang takes ports from 233 above its own on, one an attention rank: servers stay a hundred apart."""
_SIDE_CHANNEL_PORT = 5600
"""vLLM's default; attention rank n of a server listens n above it."""
_BOOTSTRAP_PORT = 7900


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWorker:
    """One worker of a pool: what it runs on, and what it listens to.

    `nodes` are numbered from 0 in the whole deployment, `gpus` those of each of its nodes. `alone` says that
    the deployment has no other server.
    """

    role: str
    number: int
    pool: PoolPlan
    nodes: tuple[int, ...]
    gpus: tuple[int, ...]
    alone: bool

    @property
    def port(self) -> int:
        """The port of its API."""
        return PORT if self.alone else _WORKER_PORT + _APART * self.gpus[0]

    @property
    def side_channel_port(self) -> int:
        """Where vLLM's NixlConnector tells others how to fetch a cache."""
        return _SIDE_CHANNEL_PORT + self.gpus[0]

    @property
    def bootstrap_port(self) -> int:
        """Where decode servers of SGLang meet a prefill server."""
        return _BOOTSTRAP_PORT + self.gpus[0]

    @property
    def name(self) -> str:
        """Its role and number, such as prefill-0."""
        return f"{self.role or 'server'}-{self.number}"


def address(node: int) -> str:
    """What stands for the address of a node until its user knows it.

    >>> address(1)
    '<address of node 1>'
    """
    return f"<address of node {node}>"


def servers_of(plan: ServingPlan) -> tuple[PlacedWorker, ...]:
    """Every server of the plan in its place, prefill before decode; the largest choose their nodes first."""
    wanted = [(role, number, pool) for role, pool in plan.pools for number in range(pool.workers)]
    order = sorted(range(len(wanted)), key=lambda i: -wanted[i][2].layout.num_gpus)
    used: list[int] = []  # GPUs taken of each node
    places: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    full: dict[int, int] = {}
    for i in order:
        pool = wanted[i][2]
        places[i] = _place(used, full, pool.layout.num_gpus, plan.nodes_of(pool), plan.gpus_per_node)
    return tuple(
        PlacedWorker(
            role=role, number=n, pool=pool, nodes=places[i][0], gpus=places[i][1], alone=len(wanted) == 1
        )
        for i, (role, n, pool) in enumerate(wanted)
    )


def nodes_of(servers: Sequence[PlacedWorker]) -> int:
    """Nodes that the servers are placed on."""
    return 1 + max(max(server.nodes) for server in servers)


def _place(
    used: list[int], full: dict[int, int], gpus: int, nodes: int, per_node: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Nodes and GPUs of the next worker; `used` is told, and `full`, nodes without room for so many GPUs."""
    here = -(-gpus // nodes)
    if nodes == 1:
        free = full.get(here, 0)
        while free < len(used) and used[free] + here > per_node:
            free += 1
        full[here] = free
        if free < len(used):
            used[free] += here
            return (free,), tuple(range(used[free] - here, used[free]))
    first = len(used)
    used += [here if nodes == 1 else per_node] * nodes
    return tuple(range(first, first + nodes)), tuple(range(here))
