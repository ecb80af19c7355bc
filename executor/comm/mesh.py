"""Where each rank stands: the plan's axes as DeviceMeshes, and the finer meshes that state is sharded over.

The root mesh has the plan's axes in the plan's order. Two more meshes cut the same ranks differently:
`dense` splits the data-parallel ranks into replicas of shards (ZeRO, HSDP), `expert` cuts a stage's
dp·cp·tp block into expert replicas, expert groups and expert-tensor groups (`ParallelLayout` says how).

Legend: ``pp dp cp tp`` the plan's axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
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


def build_meshes(layout: ParallelLayout, device_type: str, *, experts: bool) -> Meshes:
    """Create the process groups of a layout, on every rank; `experts` says whether the model has any."""
    order = layout.axis_order
    sizes = tuple(getattr(layout, axis) for axis in order)
    root = DeviceMesh(device_type, torch.arange(layout.num_gpus).reshape(sizes), mesh_dim_names=order)
    dense = DeviceMesh(
        device_type,
        torch.from_numpy(dense_grid(layout).copy()),
        mesh_dim_names=("stage", "replicate", "shard", "tensor"),
    )
    if not experts:
        return Meshes(layout=layout, root=root, dense=dense, expert=None)
    names = ("expert_stage", "expert_replicate", "expert_shard", "ep", "expert_tp")
    expert = DeviceMesh(device_type, torch.from_numpy(expert_grid(layout).copy()), mesh_dim_names=names)
    return Meshes(layout=layout, root=root, dense=dense, expert=expert)


def axis_of_messages(layout: ParallelLayout, axis: str) -> str:
    """Under which axis messages of an axis count: those of all ranks share torch's default group.

    >>> axis_of_messages(ParallelLayout(tp=2, expert_tp=2), "tp")
    'expert_tp'
    """
    whole = [name for name in LAYER_AXES if getattr(layout, name) == layout.num_gpus]
    return whole[-1] if axis in whole else axis


def same_replicas(layout: ParallelLayout) -> bool:
    """Whether experts are replicated over the same ranks as the rest: traffic of both is then of one axis.

    >>> same_replicas(ParallelLayout(dp=4)), same_replicas(ParallelLayout(dp=4, ep=2))
    (True, False)
    """
    dense, expert = dense_grid(layout)[0, :, :, 0], expert_grid(layout)[0, :, :, 0, 0]
    return np.array_equal(dense, expert)
