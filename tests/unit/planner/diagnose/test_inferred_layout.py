"""Layouts of up to 1,024 ranks from the groups that ranks list and the collectives that they make."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from planner.diagnose.collectives import Call
from planner.diagnose.layout import InferredLayout, infer_layout, layout_of
from planner.traces.events import Events, ProcessGroup, Trace
from topology.fabric.mesh import mesh

ORDERS = (("pp", "dp", "cp", "tp"), ("dp", "pp", "cp", "tp"))
"""Slowest axis first: Megatron-LM and torchtitan, and what DeepSpeed has."""
CALLS = {
    "tp": (("allgather", 96), ("reducescatter", 96)),
    "cp": (("sendrecv", 128),),
    "pp": (("sendrecv", 32),),
    "dp": (("reducescatter", 8), ("allgather", 8)),
}
"""What engines send on each axis in a step, and how often."""
WORDS = {
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
}


def draw(seed: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """Degrees whose product is at most 1,024, and the order of their axes."""
    random = Random(seed)
    while True:
        degrees = {
            "tp": 2 ** random.randint(0, 3),
            "cp": 2 ** random.randint(0, 2),
            "pp": 2 ** random.randint(0, 4),
            "dp": random.choice([1, 2, 3, 4, 6, 8, 16, 32]),
        }
        world = degrees["tp"] * degrees["cp"] * degrees["pp"] * degrees["dp"]
        if 1 < world <= 1024:
            return degrees, random.choice(ORDERS)


def inferred(degrees: dict[str, int], order: tuple[str, ...], words: bool, ranks: int) -> InferredLayout:
    """What is inferred of the traces of some ranks: with words of an engine, or of traffic alone."""
    whole = mesh([(axis, degrees[axis]) for axis in order])
    everybody = tuple(range(whole.num_ranks))
    groups, calls = [ProcessGroup(ranks=everybody, description="default_pg")], [(everybody, "allreduce")] * 2
    replicas = copies(degrees, order) if degrees["cp"] > 1 else whole.groups("dp")
    for axis in order:
        for group in whole.groups(axis):
            if len(group) > 1 and any(rank in group for rank in range(ranks)):
                groups.append(ProcessGroup(ranks=group, description=WORDS[axis] if words else "undefined"))
                if axis != "dp":
                    calls += [(group, kind) for kind, times in CALLS[axis] for _ in range(times)]
    for group in replicas:
        if len(group) > 1 and any(rank in group for rank in range(ranks)):
            name = "DATA_PARALLEL_GROUP_WITH_CP" if degrees["cp"] > 1 else "undefined"
            groups.append(ProcessGroup(ranks=group, description=name if words else "undefined"))
            calls += [(group, kind) for kind, times in CALLS["dp"] for _ in range(times)]
    return infer_layout(groups, calls, whole.num_ranks)


def copies(degrees: dict[str, int], order: tuple[str, ...]) -> list[tuple[int, ...]]:
    """Ranks that hold the same weights: they differ along dp and cp alone, and reduce gradients together."""
    grid = np.arange(np.prod([*degrees.values()])).reshape([degrees[axis] for axis in order])
    moved = np.moveaxis(grid, [order.index("dp"), order.index("cp")], [-2, -1])
    return [tuple(map(int, row)) for row in moved.reshape(-1, degrees["dp"] * degrees["cp"])]


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("ranks", [1, 8])
def test_layouts_are_inferred(words: bool, ranks: int) -> None:
    """At least 95 % of 200 sets, from one rank or from eight."""
    wrong = []
    for seed in range(200):
        degrees, order = draw(seed)
        layout = inferred(degrees, order, words, ranks)
        if dict(layout.degrees) != {axis: degree for axis, degree in degrees.items() if degree > 1}:
            wrong.append((degrees, dict(layout.degrees), order))
    assert len(wrong) <= 10, wrong[:5]


def test_experts_stand_beside_the_nest() -> None:
    """They re-use the ranks of a stage."""
    whole = mesh([("pp", 2), ("dp", 8), ("tp", 2)])
    groups = [ProcessGroup(ranks=group) for axis in ("pp", "dp", "tp") for group in whole.groups(axis)]
    experts = tuple(range(0, 8, 2))
    calls = [(groups[0].ranks, "sendrecv")] * 9 + [(whole.groups("tp")[0], "allreduce")] * 99
    calls += [(whole.groups("dp")[0], "allreduce")] * 2 + [(experts, "alltoall")] * 50
    layout = infer_layout(groups, calls, 32)
    assert dict(layout.degrees) == {"tp": 2, "dp": 8, "pp": 2, "ep": 4}


def test_a_group_counts_no_more_for_its_size_and_tells_the_ranks_of_the_job() -> None:
    """Products of layers are reduced twice as often as gradients, by half as many ranks, and no group is named."""

    def of_rank(rank: int) -> list[Call]:
        pair, replicas = (rank // 2 * 2, rank // 2 * 2 + 1), tuple(range(rank % 2, 8, 2))
        kinds = [("allreduce", pair)] * 16 + [("reducescatter", replicas)] * 8
        return [
            Call(rank=rank, kind=k, group=g, description="", start_s=0, end_s=1, bytes=1, thread=1)
            for k, g in kinds
        ]

    calls = {rank: of_rank(rank) for rank in range(8)}
    nothing = Events.of_rows([])
    traces = [
        Trace(source="", format="kineto", rank=rank, world_size=1, gpu=True, events=nothing) for rank in calls
    ]
    assert dict(layout_of(traces, calls).degrees) == {"tp": 2, "dp": 4}
    alone = layout_of(traces[:1], {0: calls[0]})
    assert (dict(alone.degrees), alone.world_size) == ({"tp": 2, "dp": 4}, 8)
