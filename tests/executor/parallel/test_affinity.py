"""A rank runs on the processors of the NUMA node that its GPU is plugged into."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from executor.parallel.affinity import beside, bind, listed, pci_address_of

FIRST, SECOND, UNKNOWN = "0000:1b:00.0", "0000:9a:00.0", "0000:c1:00.0"


def sysfs(folder: Path, nodes: dict[int, str], gpus: dict[str, str]) -> Path:
    """A tree as Linux shows it: nodes with their processors, PCI devices with their node."""
    numbers = ",".join(map(str, nodes))
    files = {"devices/system/node/online": numbers}
    files |= {f"devices/system/node/node{node}/cpulist": cpus for node, cpus in nodes.items()}
    files |= {f"bus/pci/devices/{gpu}/numa_node": node for gpu, node in gpus.items()}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{text}\n", encoding="ascii")
    return folder


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    """Two sockets of eight threads, four cores each, as hyperthreads are numbered."""
    return sysfs(tmp_path, {0: "0-3,8-11", 1: "4-7,12-15"}, {FIRST: "0", SECOND: "1", UNKNOWN: "-1"})


@pytest.mark.parametrize(
    ("gpu", "allowed", "expected", "said"),
    [
        (FIRST, range(16), {0, 1, 2, 3, 8, 9, 10, 11}, "bound to the processors beside their GPUs"),
        (SECOND, range(16), {4, 5, 6, 7, 12, 13, 14, 15}, "on 2 nodes"),
        (SECOND, range(6), {4, 5}, "bound to the processors"),  # what Slurm has left of the node
        (SECOND, range(4), set(), "none of the processors of NUMA node 1"),
        (UNKNOWN, range(16), set(), f"the NUMA node of GPU {UNKNOWN} is not known"),
        ("0000:ff:00.0", range(16), set(), "is not known"),
    ],
)
def test_processors_are_those_of_the_node_that_are_allowed(
    two_nodes: Path, gpu: str, allowed: range, expected: set[int], said: str
) -> None:
    """What is not known, or would leave nothing, changes nothing."""
    found = beside(gpu, set(allowed), two_nodes)
    assert (found.cpus, said in found.words) == (expected, True)


@pytest.mark.parametrize("nodes", [{0: "0-15"}, {}])
def test_a_host_of_one_node_is_left_alone(tmp_path: Path, nodes: dict[int, str]) -> None:
    """And says so; one that tells no nodes has one."""
    found = beside(FIRST, set(range(16)), sysfs(tmp_path, nodes, {FIRST: "-1"}))
    assert (found.cpus, found.words) == (set(), "this host has one NUMA node: ranks are not bound")


def test_ranks_on_a_cpu_are_not_bound() -> None:
    """They have no GPU to be beside."""
    assert bind(torch.device("cpu")) == ""


def test_every_thread_of_a_process_is_bound() -> None:
    """Those that torch has started, and those that come later; one bound by someone else stays there."""
    here = sorted(os.sched_getaffinity(0))
    if len(here) < 2:
        pytest.skip("this machine lets one processor be used")
    program = f"""
import os, threading
from executor.parallel.affinity import bind_threads
ready, done = threading.Barrier(3), threading.Event()
places = {{}}
def stay(name, cpus):
    if cpus: os.sched_setaffinity(0, cpus)
    ready.wait(); done.wait(); places[name] = os.sched_getaffinity(0)
others = [threading.Thread(target=stay, args=a) for a in (("free", None), ("bound", {{{here[1]}}}))]
[other.start() for other in others]
ready.wait(); bind_threads({{{here[0]}}}); done.set()
[other.join() for other in others]
later = threading.Thread(target=lambda: places.update(later=os.sched_getaffinity(0)))
later.start(); later.join()
print(os.sched_getaffinity(0), places["free"], places["bound"], places["later"])
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [f"{{{here[place]}}}" for place in (0, 0, 1, 0)]


def test_lists_of_linux_are_read() -> None:
    """Ranges and single numbers, and nothing of what is neither."""
    assert listed("0-1,4") == {0, 1, 4}
    assert listed("") == listed("\n") == listed("x,-1") == frozenset()


def test_a_torch_that_tells_no_address_leaves_ranks_where_they_are(
    monkeypatch: pytest.MonkeyPatch, two_nodes: Path
) -> None:
    """Older ones have no PCI numbers among a GPU's properties."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: object())
    address = pci_address_of(torch.device("cuda", 0))
    found = beside(address, frozenset(range(16)), two_nodes)
    assert (found.cpus, found.words) == (
        frozenset(),
        "the NUMA node of GPU of an unknown address is not known: ranks are not bound",
    )
