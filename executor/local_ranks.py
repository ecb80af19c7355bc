"""Run a function on gloo ranks of this machine, forked after torch is imported to start in milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executor.torch_internals import preload, quiet_known_warnings


class RankError(RuntimeError):
    """A rank raised, died, or did not finish in time; the message carries its traceback."""


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    timeout_s: float = 120.0,
    device_type: str = "cpu",
) -> list[Any]:
    """Call ``function(rank, *arguments)`` on forked ranks of one gloo group; return results by rank.

    Results travel pickled with numpy in place of tensors. The first failure stops every rank. With
    `device_type` ``cuda`` each rank has a GPU and NCCL beside gloo; CUDA must not have been used before.
    """
    preload()
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "rendezvous")
        ranks = [
            context.Process(
                target=_rank_main,
                args=(rank, world_size, store, device_type, function, arguments, results),
                daemon=True,
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        try:
            return _collect(ranks, results, timeout_s)
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                process.join()


def _collect(ranks: list[Any], results: Any, timeout_s: float) -> list[Any]:
    """Wait for one result per rank."""
    done: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_s
    while len(done) < len(ranks):
        try:
            rank, failure, payload = results.get(timeout=0.2)
        except queue.Empty:
            dead = [r for r, p in enumerate(ranks) if p.exitcode not in (None, 0) and r not in done]
            if dead:
                raise RankError(f"rank {dead[0]} died with exit code {ranks[dead[0]].exitcode}") from None
            if time.monotonic() > deadline:
                missing = sorted(set(range(len(ranks))) - set(done))
                raise RankError(f"no result from ranks {missing} after {timeout_s:.0f} s") from None
            continue
        if failure:
            raise RankError(f"rank {rank}: {failure}")
        done[rank] = pickle.loads(payload)  # noqa: S301 - written by our own child a moment ago
    for process in ranks:
        process.join(timeout=10)
    return [done[rank] for rank in range(len(ranks))]


def _rank_main(
    rank: int,
    world_size: int,
    store: str,
    device_type: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    results: Any,
) -> None:
    """Body of one rank: join the group, call, report, leave together."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    quiet_known_warnings()
    try:
        if device_type == "cuda":
            torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world_size)
        outcome = function(rank, *arguments)
        results.put((rank, None, pickle.dumps(_as_numpy(outcome))))
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - reported to the parent, whatever it is
        results.put((rank, f"{type(error).__name__}: {error}\n{traceback.format_exc()}", None))
    results.close()
    results.join_thread()
    os._exit(0)


def _as_numpy(value: Any) -> Any:
    """Replace tensors by arrays, in nested containers."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {key: _as_numpy(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_as_numpy(item) for item in value)
    return value
