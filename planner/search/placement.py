"""Which GPU every rank runs on.

The order of the axes is decided by the search. On a symmetric fabric ranks then follow GPUs in order, which
keeps every group inside the smallest unit that can hold it. On an irregular one CP-SAT chooses which nodes
to use, so that the plan spans as few uneven units as possible and idle GPUs are those behind the thinnest
links.
"""

from __future__ import annotations

from costmodel.layout import ParallelLayout
from planner.problem import Setting
from planner.stages.cpsat import IntegerModel, solve
from topology.fabric.mesh import Mesh, mesh

WORK_LIMIT = 2.0
SPLIT_COST = 1_000
"""Using one more unit costs more than any difference between nodes of the same unit."""


def place(setting: Setting, layout: ParallelLayout) -> tuple[Mesh, tuple[str, ...]]:
    """Mesh of a layout, and what should be said about it."""
    axes = [(axis, int(getattr(layout, axis))) for axis in layout.axis_order]
    hierarchy = setting.cluster.hierarchy
    if hierarchy.symmetric or layout.num_gpus == setting.cluster.num_gpus:
        return mesh(axes), ()
    from topology.fabric.derive import unit_of_gpu

    units = unit_of_gpu(setting.cluster.graph, 2)
    chosen = choose_gpus(units, hierarchy.gpus_per_node, layout.num_gpus)
    note = f"the fabric is not symmetric: ranks run on GPUs {chosen[0]}…{chosen[-1]} of the fewest switches"
    return mesh(axes, chosen), (note,)


def choose_gpus(unit_of_gpu: tuple[int, ...], gpus_per_node: int, num_gpus: int) -> tuple[int, ...]:
    """GPUs to run on: whole nodes from as few units (leaf switches) as possible, earlier nodes first.

    >>> choose_gpus((0, 0, 1, 1, 1, 1), gpus_per_node=2, num_gpus=4)
    (2, 3, 4, 5)

    Args:
        unit_of_gpu: unit of every GPU.
        gpus_per_node: GPUs of a node; nodes follow each other in GPU order.
        num_gpus: GPUs wanted.
    """
    nodes = [unit_of_gpu[start] for start in range(0, len(unit_of_gpu), gpus_per_node)]
    wanted = -(-num_gpus // gpus_per_node)
    model = IntegerModel()
    used = [model.boolean() for _ in nodes]
    opened = {unit: model.boolean() for unit in sorted(set(nodes))}
    model.require(dict.fromkeys(used, 1), wanted, wanted)
    for node, unit in zip(used, nodes, strict=True):
        model.require({node: 1, opened[unit]: -1}, None, 0)
    order = {node: position for position, node in enumerate(used)}
    model.minimise({**dict.fromkeys(opened.values(), SPLIT_COST * len(nodes)), **order})
    answer = solve(model, work_limit=WORK_LIMIT)
    picked = [position for position, node in enumerate(used) if answer.values[node]]
    gpus = [gpu for node in picked for gpu in range(node * gpus_per_node, (node + 1) * gpus_per_node)]
    return tuple(gpus[:num_gpus])
