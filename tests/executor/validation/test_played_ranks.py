"""Training steps of ranks on a device that is neither a CPU nor there: what stays on the host, who waits.

`python -m benchmarks.fake_cuda_ranks` plays more of them on a GPU that is not there, with torch's CUDA wheel.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.fake_cuda_ranks import CASES, DeviceCensus, Seen, played, stand_in

PLAYED = (
    "ZeRO-3 with tensor parallelism",
    "experts with tensor parallelism",
    "windows and soft caps",
    "muon",
)
READ_AT_ONCE = 4  # loss, loss of routers, whether to stop, gradient norm


MADE_APART = """
import importlib.util, pickle, sys
spec = importlib.util.spec_from_file_location("played_ranks", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
seen = getattr(module, sys.argv[2])()
with open(sys.argv[3], "wb") as file:
    pickle.dump(seen, file)
"""


def apart(play: Callable[[], Any], folder: Path) -> Any:
    """What a process of its own makes: torch takes one more device a process, and keeps it.

    The process has computed nothing before: autograd counts the devices at its first backward.
    """
    made = folder / "seen.pickle"
    words = [sys.executable, "-c", MADE_APART, __file__, play.__name__, str(made)]
    root = Path(__file__).resolve().parents[3]
    subprocess.run(words, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=True, timeout=300)
    return pickle.loads(made.read_bytes())  # noqa: S301 - written a line above


def play_all() -> dict[str, Seen]:
    """One step of one microbatch through a layer of each."""
    device, least = stand_in(), {"layers": 1, "microbatches": 1}
    return {name: played(replace(CASES[name], **least), device, steps=1, evaluates=False) for name in PLAYED}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """What was seen of each rank."""
    ranks: dict[str, Seen] = apart(play_all, tmp_path_factory.mktemp("played"))
    return ranks


@pytest.mark.parametrize("name", PLAYED)
def test_a_step_stays_on_its_device(seen: dict[str, Seen], name: str) -> None:
    """Nothing is computed on the host, nothing on two devices, and only the batch is copied there."""
    assert seen[name].operators.total() > 1000
    assert (seen[name].elsewhere, seen[name].mixed, seen[name].to_device) == ({}, {}, {})


@pytest.mark.parametrize("name", PLAYED)
def test_the_host_waits_at_the_end_of_a_step(seen: dict[str, Seen], name: str) -> None:
    """Once, for what it tells and decides by; ranks that exchange rows also wait for how many."""
    waits = dict(seen[name].waits)
    rows = waits.pop("aten::_local_scalar_dense (model/moe._traffic)", 0)
    assert waits == {"aten::_local_scalar_dense (training/loop._train_step)": READ_AT_ONCE}
    assert (rows > 0) == ("experts" in name)


def see_faults() -> Seen:
    """Operators that a rank should not have."""
    from executor.torch_internals.fakes import fake_tensors

    device = stand_in()
    with fake_tensors(), DeviceCensus(device) as census:
        there, here = torch.empty(4, device=device), torch.empty(4)
        here.add(1.0)
        there.add(there.cpu().sum().to(device))
        there.sum().item()
        there.copy_(here)
        there.double()
    return census.seen


def test_faults_are_seen(tmp_path: Path) -> None:
    """Work of the host, copies both ways, values that the host reads, doubles."""
    seen = apart(see_faults, tmp_path)
    names = {
        what: {name.partition(" ")[0] for name in getattr(seen, what)} for what in Seen.__dataclass_fields__
    }
    assert {"aten::add", "aten::sum"} <= names["elsewhere"]
    assert names["to_device"] == {"aten::copy_", "aten::_to_copy"}
    assert names["waits"] == {"aten::_to_copy", "aten::_local_scalar_dense"}
    assert names["wide"] == {"aten::_to_copy"}
