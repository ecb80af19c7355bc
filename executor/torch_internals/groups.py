"""Process groups: this rank's, their timeouts and last collectives; one process as many ranks."""

from __future__ import annotations

import importlib
import json
from datetime import timedelta
from typing import Any


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


def bound_groups(timeout: timedelta) -> None:
    """Give every group of this rank a timeout: but for the first they have torch's, half an hour on gloo."""
    from torch.distributed import distributed_c10d

    for group in distributed_c10d._world.pg_names:  # noqa: SLF001
        distributed_c10d._set_pg_timeout(timeout, group)  # noqa: SLF001


def flight_record() -> list[tuple[str, str, int]]:
    """The last collectives of this rank in their order: group by name, operation, its number in the group."""
    dump = getattr(importlib.import_module("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    entries = [] if dump is None else json.loads(dump()).get("entries", [])
    return [
        (str(e["process_group"][0]), str(e["profiling_name"]).partition(":")[2], int(e["collective_seq_id"]))
        for e in entries
        if not e["is_p2p"]
    ]
