"""Run a function on gloo ranks of this machine, forked after torch is imported to start in milliseconds."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from executor.launch.nodes import loopback, sockets_on
from executor.torch_internals.compiler import preload
from executor.torch_internals.quiet import quiet_known_warnings
from executor.training.lifeline import die_with_parent

MESSAGE = 4000  # characters of what a dead rank wrote: the innermost call comes first
SETTLING_S = 0.2  # a rank that loses a peer may say so before the peer's exit code is known


class RankError(RuntimeError):
    """A rank raised, died, or did not finish in time; the message carries its traceback or last words."""


class RankFaultError(RankError):
    """A rank was ended by one of `FAULTS`."""


FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS})
"""Signals of a fault in native code. On an overloaded machine a worker thread of gloo (torch 2.13) has been
seen to die in malloc, on a corrupt heap, about once in hundreds of groups; why is not known. What is wrong
with a layout fails again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """What every rank of a group is told; `folder` is where they meet and leave their last words."""

    size: int
    folder: Path
    timeout_s: float
    device_type: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    results: Any
    parent: int


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *arguments: Any,
    timeout_s: float = 120.0,
    device_type: str = "cpu",
    alive: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Call ``function(rank, *arguments)`` on forked ranks of one gloo group; return results by rank.

    Results travel pickled with numpy in place of tensors. The first failure stops every rank. With
    `device_type` ``cuda`` each rank has a GPU and NCCL beside gloo; CUDA must not have been used before.
    Ranks that a fault ends are started once more: see `FAULTS`. `alive` is called several times a second.
    """
    try:
        return _run_once(function, world_size, arguments, timeout_s, device_type, alive)
    except RankFaultError as fault:
        sys.stderr.write(f"{fault}\nall ranks are started once more\n")
        return _run_once(function, world_size, arguments, timeout_s, device_type, alive)


def _run_once(
    function: Callable[..., Any],
    world_size: int,
    arguments: tuple[Any, ...],
    timeout_s: float,
    device_type: str,
    alive: Callable[[], None],
) -> list[Any]:
    """Fork the ranks, collect their results, leave none behind."""
    preload()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        world = _World(
            size=world_size,
            folder=Path(folder),
            timeout_s=timeout_s,
            device_type=device_type,
            function=function,
            arguments=arguments,
            results=context.Queue(),
            parent=os.getpid(),
        )
        ranks: list[Any] = [
            context.Process(target=_rank_main, args=(rank, world), daemon=True) for rank in range(world_size)
        ]
        gc.freeze()  # else each rank's first collection writes to all that is here, and so copies it
        try:
            for process in ranks:
                process.start()
        finally:
            gc.unfreeze()
        try:
            return _collect(ranks, world.results, timeout_s, world.folder, alive)
        finally:
            for process in ranks:
                if process.is_alive():
                    process.kill()
                process.join()


def _collect(
    ranks: list[Any], results: Any, timeout_s: float, folder: Path, alive: Callable[[], None]
) -> list[Any]:
    """Wait for one result per rank; how a rank parts that has given its own is of no account.

    A peer may close its end of the last barrier first, and native code may fail while it is taken down.
    """
    done: dict[int, Any] = {}
    deadline = time.monotonic() + timeout_s
    while len(done) < len(ranks):
        alive()
        try:
            rank, failure, payload = results.get(timeout=0.2)
        except queue.Empty:
            _raise_death({rank: ranks[rank] for rank in range(len(ranks)) if rank not in done}, folder)
            if time.monotonic() > deadline:
                missing = sorted(set(range(len(ranks))) - set(done))
                raise RankError(f"no result from ranks {missing} after {timeout_s:.0f} s") from None
            continue
        if failure:
            time.sleep(SETTLING_S)
            _raise_death(dict(enumerate(ranks)), folder)  # what the others say then is that they lost a peer
            raise RankError(f"rank {rank}: {failure}")
        done[rank] = pickle.loads(payload)  # noqa: S301 - written by our own child a moment ago
    for process in ranks:
        process.join(timeout=10)
    return [done[rank] for rank in range(len(ranks))]


def _raise_death(ranks: Mapping[int, Any], folder: Path) -> None:
    """Raise the error of the first rank that died, if any did: one that raised has exit code 0."""
    for rank, process in ranks.items():
        code = process.exitcode
        if code not in (None, 0):
            kind = RankFaultError if -code in FAULTS else RankError
            raise kind(_death(rank, code, folder)) from None


def _death(rank: int, code: int, folder: Path) -> str:
    """What ended a rank that left without a word, and what it wrote to its standard error.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "messages-0").write_text("terminate called")
    ...     _death(0, -6, Path(folder)), _death(1, 3, Path(folder))
    ('rank 0 died of SIGABRT: terminate called', 'rank 1 died of exit code 3: it wrote nothing')
    """
    cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    try:
        words = (folder / f"messages-{rank}").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        words = ""
    return f"rank {rank} died of {cause}: {words[:MESSAGE] or 'it wrote nothing'}"


def _keep_messages(path: Path) -> None:
    """Send this process's standard error, also what C++ and a fatal signal write, to a file."""
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable()


def _rank_main(rank: int, world: _World) -> None:
    """Body of one rank: join the group, call, report, leave together."""
    die_with_parent(world.parent)
    _keep_messages(world.folder / f"messages-{rank}")
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world.size), LOCAL_RANK=str(rank), **sockets_on(loopback())
    )
    torch.set_num_threads(1)
    quiet_known_warnings()
    answer: tuple[int, str | None, bytes | None]
    try:
        if world.device_type == "cuda":
            torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl" if world.device_type == "cuda" else "gloo"
        dist.init_process_group(
            backend,
            init_method=f"file://{world.folder}/rendezvous",
            rank=rank,
            world_size=world.size,
            timeout=timedelta(seconds=world.timeout_s),
        )
        answer = (rank, None, pickle.dumps(_as_numpy(world.function(rank, *world.arguments))))
    except Exception as error:  # noqa: BLE001 - reported to the parent, whatever it is
        answer = (rank, f"{type(error).__name__}: {error}\n{traceback.format_exc()}", None)
    world.results.put(answer)
    world.results.close()
    world.results.join_thread()
    if answer[1] is None:
        with contextlib.suppress(RuntimeError):  # a peer that closes its end first
            dist.barrier()
            dist.destroy_process_group()
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
