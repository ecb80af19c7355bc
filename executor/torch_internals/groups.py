"""Process groups: this rank's, their timeouts and last collectives; one process as many ranks."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def nvlinks() -> list[list[int]]:
    """How many NVLinks this machine's GPUs have to each other, by torch's index of a GPU."""
    compiled = importlib.import_module("torch._C")
    detect = compiled._distributed_c10d._detect_dma_connectivity  # noqa: SLF001
    matrix: list[list[int]] = detect(compiled._autograd.DeviceType.CUDA, "nvlink").matrix  # noqa: SLF001
    return matrix


def start_fake_group(num_ranks: int, rank: int) -> None:
    """Make the default process group one whose collectives return at once and move nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    importlib.import_module("torch.distributed._tools.fake_collectives")  # registers their fake kernels
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)


def end_fake_group() -> None:
    """Leave the fake group, and forget how DTensor sharded: that memory points to the group's meshes."""
    import torch.distributed as dist
    from torch.distributed.tensor import debug

    dist.destroy_process_group()
    debug._clear_sharding_prop_cache()  # noqa: SLF001


def process_group_of(argument: Any) -> Any:
    """Process group behind an argument of a ``c10d`` operator, None if it is none."""
    import torch.distributed as dist

    if isinstance(argument, dist.ProcessGroup):
        return argument
    try:
        return dist.ProcessGroup.unbox(argument)
    except (RuntimeError, TypeError, AttributeError):
        return None


def group_name(group: Any) -> str:
    """Name by which functional collectives know a group."""
    return str(group.group_name)


def named_groups() -> dict[str, tuple[str, list[int]]]:
    """Process groups of this rank by name: what each is for, and its ranks; those of one rank left out."""
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    result = {}
    for group, name in list(distributed_c10d._world.pg_names.items()):  # noqa: SLF001
        ranks = dist.get_process_group_ranks(group)
        if len(ranks) > 1:
            result[str(name)] = (str(group.group_desc), ranks)
    return result


def default_store() -> Any:
    """What the ranks of the default group met in."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()  # noqa: SLF001


def groups_here() -> list[Any]:
    """Process groups of this rank, in the order in which all ranks made them."""
    from torch.distributed import distributed_c10d

    return list(distributed_c10d._world.pg_names)  # noqa: SLF001


def bound_groups(timeout: timedelta, groups: Sequence[Any]) -> None:
    """Give groups a timeout: but for the first they have torch's, half an hour on gloo."""
    from torch.distributed import distributed_c10d

    for group in groups:
        distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001


def open_groups(groups: Sequence[Any], device: torch.device) -> None:
    """Have ranks talk once in each group, while they have patience: those that talk in pairs all with all.

    All ranks go through their groups in the order in which these were made, so none waits for one that waits.
    """
    import torch
    import torch.distributed as dist

    for group in groups:
        ranks = dist.get_world_size(group)
        if ranks == 1:
            continue
        devices = {each.type for each in group._device_types}  # noqa: SLF001
        place = device if device.type in devices else torch.device("cpu")
        if IN_PAIRS & set(str(group.group_desc).removeprefix("mesh_").split("+")):
            values = torch.zeros(ranks, device=place)
            dist.all_to_all_single(torch.empty_like(values), values, group=group)
        else:
            dist.all_reduce(torch.zeros(1, device=place), group=group)


IN_PAIRS = frozenset(("pp", "cp", "ep"))
"""Axes whose ranks send each other messages, or all to all."""


def flight_record() -> list[tuple[str, str, int]]:
    """The last collectives of this rank in their order: group by name, operation, its number in the group."""
    dump = getattr(importlib.import_module("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    entries = [] if dump is None else json.loads(dump()).get("entries", [])
    return [
        (str(e["process_group"][0]), str(e["profiling_name"]).partition(":")[2], int(e["collective_seq_id"]))
        for e in entries
        if not e["is_p2p"]
    ]
