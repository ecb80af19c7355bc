"""Ranks open connections to those that they talk to, not to all others in every group."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from costmodel.layout import ParallelLayout
from executor.bench.local_ranks import run_ranks
from executor.comm.mesh import build_meshes
from executor.launch.environment import environment_of_ranks
from executor.launch.nodes import loopback

RANKS = 12
pytestmark = pytest.mark.usefixtures("forked_scripts")
SCRIPT = "from tests.executor.comm.test_connections import count; count()"


def _connections(rank: int) -> tuple[int, float]:
    """Sockets after a sum over all ranks, with groups of axes and of checkpoints that say nothing yet; the sum."""
    value = torch.tensor([float(rank)])
    for _ in range(2):
        dist.new_group(backend="gloo")
    build_meshes(ParallelLayout(dp=RANKS, zero_stage=1), "cpu", experts=False)
    dist.all_reduce(value)
    sockets = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of this list has gone
            sockets += str(descriptor.readlink()).startswith("socket:")
    return sockets, float(value)


def count() -> None:
    """What each rank has, as JSON; in a process of its own, as torch reads its variables once."""
    sys.stdout.write(json.dumps(run_ranks(_connections, RANKS)))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads Linux's /proc")
def test_no_group_is_a_full_mesh() -> None:
    """Three groups of all ranks are 33 connections of each by torch's own; a sum needs a few."""
    name = "TORCH_GLOO_LAZY_INIT"
    found = {}
    for case, value in (("told", environment_of_ranks({}, interface=loopback())[name]), ("torch's own", "0")):
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT], env={**os.environ, name: value},
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        found[case] = json.loads(ended.stdout.splitlines()[-1])
    assert {total for ranks in found.values() for _, total in ranks} == {float(sum(range(RANKS)))}
    assert min(sockets for sockets, _ in found["torch's own"]) >= 3 * (RANKS - 1)
    assert max(sockets for sockets, _ in found["told"]) <= 2 * (RANKS - 1)
