"""Where each rank stands: the plan's axes as DeviceMeshes, and the finer meshes that state is sharded over.

The root mesh has the plan's axes in the plan's order. Two more meshes cut the same ranks differently:
`dense` splits the data-parallel ranks into replicas of shards (ZeRO, HSDP), `expert` cuts a stage's
dp·cp·tp block into expert replicas, expert groups and expert-tensor groups (`ParallelLayout` says how).
Dimensions with the same ranks share a process group: on GPUs each is a communicator with buffers of its own.

Legend: ``pp dp cp tp`` the plan's axes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from costmodel.layout import ParallelLayout
from costmodel.parallel.axes import LAYER_AXES, RANK_AXES


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """The meshes of one layout; `expert` is None unless experts are split or sharded on their own."""

    layout: ParallelLayout
    root: DeviceMesh
    dense: DeviceMesh
    expert: DeviceMesh | None

    def group(self, axis: str) -> Any:
        """Process group of this rank along a root axis."""
        return self.root.get_group(axis)

    def mesh_of(self, axis: str) -> DeviceMesh | None:
        """The mesh that has an axis; None for an axis of experts where they have no mesh."""
        meshes = (mesh for mesh in (self.root, self.dense, self.expert) if mesh is not None)
        return next((mesh for mesh in meshes if axis in mesh.mesh_dim_names), None)

    def coordinate(self, axis: str) -> int:
        """Place of this rank along an axis of any of the meshes."""
        mesh = self.mesh_of(axis)
        if mesh is None:
            raise KeyError(axis)
        return int(mesh.get_local_rank(axis))

    def size(self, axis: str) -> int:
        """Ranks along an axis of any of the meshes. To cut it out makes a mesh each time: milliseconds."""
        mesh = self.mesh_of(axis)
        if mesh is None:
            raise KeyError(axis)
        return int(mesh.size(mesh.mesh_dim_names.index(axis)))

    def copies(self, *, is_expert: bool, whole: bool) -> int:
        """Ranks of a stage that hold the same part of a parameter; `whole` if tensor ranks have it all."""
        replicas, tensor = ("replicate", "tensor")
        if is_expert and self.expert is not None:
            replicas, tensor = ("expert_replicate", "expert_tp")
        return self.size(replicas) * (self.size(tensor) if whole else 1)

    @property
    def shard_mesh(self) -> DeviceMesh:
        """Mesh that FSDP shards dense state over: one dimension, or replicas of shards."""
        return (
            self.dense["shard"] if self.dense["replicate"].size() == 1 else self.dense["replicate", "shard"]
        )

    @property
    def expert_shard_mesh(self) -> DeviceMesh:
        """Mesh that FSDP shards expert state over."""
        if self.expert is None:
            return self.shard_mesh
        names = ("expert_replicate", "expert_shard")
        return self.expert["expert_shard"] if self.expert[names[0]].size() == 1 else self.expert[names]


def rank_grid(layout: ParallelLayout) -> npt.NDArray[np.int64]:
    """Ranks as an array of shape (pp, dp, cp, tp), whatever the order in which the axes are laid out.

    >>> rank_grid(ParallelLayout(tp=2, pp=2, axis_order=("tp", "dp", "cp", "pp"))).reshape(2, 2).tolist()
    [[0, 2], [1, 3]]
    """
    sizes = tuple(getattr(layout, axis) for axis in layout.axis_order)
    ranks = np.arange(layout.num_gpus).reshape(sizes)
    return ranks.transpose([layout.axis_order.index(axis) for axis in RANK_AXES])


def dense_grid(layout: ParallelLayout) -> npt.NDArray[np.int64]:
    """Ranks as (pp, replicate, shard, tp); ZeRO-0 has shards of one rank."""
    shard = layout.effective_shard_degree if layout.zero_stage else 1
    return rank_grid(layout).reshape(layout.pp, -1, shard, layout.tp)


def expert_grid(layout: ParallelLayout) -> npt.NDArray[np.int64]:
    """Ranks as (pp, expert_replicate, expert_shard, ep, expert_tp), cut from each stage's block."""
    order = ("pp", *(axis for axis in layout.axis_order if axis != "pp"))
    block = rank_grid(layout).transpose([RANK_AXES.index(axis) for axis in order]).reshape(layout.pp, -1)
    shard = layout.expert_shard_degree if layout.zero_stage else 1
    return block.reshape(layout.pp, layout.expert_dp // shard, shard, layout.ep, layout.expert_tp)


DENSE_AXES = ("stage", "replicate", "shard", "tensor")
EXPERT_AXES = ("expert_stage", "expert_replicate", "expert_shard", "ep", "expert_tp")
REPLICA_AXES = ("shard", "replicate", "expert_shard", "expert_replicate")
"""Axes that state is sharded and replicated over."""

Members = tuple[tuple[int, ...], ...]
"""Ranks of every group of a dimension."""


def _members(grid: npt.NDArray[np.int64], dimension: int) -> Members:
    """Ranks of the groups along a dimension.

    >>> _members(np.arange(4).reshape(2, 2), 0)
    ((0, 2), (1, 3))
    """
    rows = np.moveaxis(grid, dimension, -1).reshape(-1, grid.shape[dimension])
    return tuple(sorted(tuple(sorted(row)) for row in rows.tolist()))


def build_meshes(layout: ParallelLayout, device_type: str, *, experts: bool) -> Meshes:
    """Create the process groups of a layout, on every rank; `experts` says whether the model has any."""
    order = layout.axis_order
    sizes = tuple(getattr(layout, axis) for axis in order)
    grids = {order: np.arange(layout.num_gpus).reshape(sizes), DENSE_AXES: dense_grid(layout)}
    if experts:
        grids[EXPERT_AXES] = expert_grid(layout)
    purposes: dict[Members, list[str]] = {}
    for names, grid in grids.items():
        for dimension, name in enumerate(names):
            purposes.setdefault(_members(grid, dimension), []).append(name)
    groups = {members: _group(members, names) for members, names in purposes.items()}

    def mesh(names: tuple[str, ...]) -> DeviceMesh:
        grid = grids[names]
        along = [groups[_members(grid, dimension)] for dimension in range(len(names))]
        ranks = torch.from_numpy(grid.copy())
        return DeviceMesh.from_group(along, device_type, mesh=ranks, mesh_dim_names=names)

    expert = mesh(EXPERT_AXES) if experts else None
    return Meshes(layout=layout, root=mesh(order), dense=mesh(DENSE_AXES), expert=expert)


def _group(members: Members, names: Sequence[str]) -> Any:
    """This rank's group of a dimension, called by the axes of the plan that it serves."""
    world = dist.group.WORLD
    if len(members) == 1:
        return world
    of_plan = [name for name in names if name in (*RANK_AXES, *LAYER_AXES)]
    purpose = f"mesh_{'+'.join(of_plan or names[:1])}"
    if getattr(world, "bound_device_id", None) is not None:  # one call splits the communicator of all ranks
        return dist.split_group(split_ranks=[list(ranks) for ranks in members], group_desc=purpose)
    made = [dist.new_group(list(ranks), group_desc=purpose) for ranks in members]
    return next(group for group, ranks in zip(made, members, strict=True) if dist.get_rank() in ranks)


@functools.lru_cache(maxsize=64)
def _members_of_axes(layout: ParallelLayout) -> Mapping[str, Members]:
    """Ranks of the groups of every axis of the meshes."""
    result: dict[str, Members] = {}
    for names, grid in (
        (RANK_AXES, rank_grid(layout)), (DENSE_AXES, dense_grid(layout)), (EXPERT_AXES, expert_grid(layout)),
    ):  # fmt: skip
        result |= {name: _members(grid, dimension) for dimension, name in enumerate(names)}
    return result


def axis_of_messages(layout: ParallelLayout, axis: str) -> str:
    """Under which axis messages of an axis count: axes with the same ranks share a group.

    >>> axis_of_messages(ParallelLayout(tp=2, expert_tp=2), "tp")
    'expert_tp'
    """
    members = _members_of_axes(layout)
    return next((name for name in reversed(LAYER_AXES) if members[name] == members[axis]), axis)


def axis_of_replicas(layout: ParallelLayout, axis: str) -> str:
    """The same of the axes that state is sharded and replicated over: of experts often those of the rest.

    >>> axis_of_replicas(ParallelLayout(dp=4, zero_stage=1), "expert_shard")
    'shard'
    >>> axis_of_replicas(ParallelLayout(dp=4, ep=2, zero_stage=1), "expert_shard")
    'expert_shard'
    """
    members = _members_of_axes(layout)
    return next(name for name in REPLICA_AXES if members[name] == members[axis])
