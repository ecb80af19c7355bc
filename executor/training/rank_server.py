"""The process from which a launcher's ranks are forked: it has imported what they import, and no more.

It answers each line of its channel, which names a run's file and the variables of a rank, by the number of a
process that has become that rank, or by 0 where none can be forked: of threads a fork has none, and CUDA that
has been used does not work in it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
from pathlib import Path

LOADED = (
    "costmodel.kernels.tables",
    "executor.comm.hangs",
    "executor.model.attention.kernels",
    "executor.parallel.affinity",
    "executor.parallel.device",
    "executor.parallel.link_check",
    "executor.parallel.parallelize",
    "executor.torch_internals.lean_start",
    "executor.torch_internals.quiet",
    "executor.training.loop",
    "executor.training.trainer",
    "fsspec",
    "numpy.random",
    "planner.plan",
    "planner.structure",
    "torch.distributed.checkpoint._fsspec_filesystem",
    "torch.utils.serialization.config",
)
"""What a rank imports before its first step ends, whatever the run; nothing that reads its settings."""
OPTIONAL = ("torch.utils.tensorboard",)
"""What a rank uses where it is installed."""
NO_RANK = b"0\n"


def next_rank(descriptor: int, launcher: int) -> str:
    """Fork ranks until the launcher's end of a channel is closed; returns in each of them, its run's file."""
    for name in LOADED:
        importlib.import_module(name)
    for name in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    alone = len(list(Path("/proc/self/task").iterdir())) == 1
    gc.collect()
    gc.freeze()  # no collection touches, and so copies, what all share
    channel = socket.socket(fileno=descriptor)
    for line in channel.makefile("rb"):
        if not alone:
            channel.sendall(NO_RANK)
        elif _becomes_rank(channel, launcher):
            asked = json.loads(line)
            os.environ.update(asked["environment"])
            return str(asked["run_file"])
    os._exit(0)


def _becomes_rank(channel: socket.socket, launcher: int) -> bool:
    """Fork a process that the launcher adopts once the process between is gone; whether this is it."""
    from executor.torch_internals.forked import cuda_forbids_fork

    try:
        between = os.fork()
    except OSError:  # no process more, or no memory
        channel.sendall(NO_RANK)
        return False
    if between:
        if os.waitpid(between, 0)[1]:
            channel.sendall(NO_RANK)
        return False
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    while os.getppid() == between:
        os.sched_yield()
    if os.getppid() != launcher or cuda_forbids_fork():
        channel.sendall(NO_RANK)
        os._exit(1)
    os.setsid()
    importlib.import_module("numpy.random").seed()
    channel.sendall(f"{os.getpid()}\n".encode())
    os.close(channel.detach())  # the launcher's alone: it hears of this server's death, and no rank reads it
    return True
