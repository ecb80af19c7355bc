"""Memory of a rank: of snapshots that an allocator wrote which counts for itself, and of torch's own timelines."""

from __future__ import annotations

import gzip
import json
import pickle
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from planner.traces.memory_snapshots import (
    CATEGORIES,
    memory_moments,
    read_memory_timeline,
    snapshot_memory,
)
from planner.traces.pickles import read_pickle
from tests.counts import tries
from topology.base.errors import InputError
from topology.base.units import GIB, MIB

FILES = {
    "activations": "/x/torch/nn/modules/linear.py",
    "gradients": "/x/torch/autograd/graph.py",
    "optimizer states": "/x/torch/optim/adamw.py",
}


@dataclass
class Allocator:
    """A caching allocator that writes what torch's does, and counts for itself."""

    room: int
    trace: list[dict[str, Any]] = field(default_factory=list)
    segments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    living: dict[int, tuple[int, str]] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    peak: int = 0
    at_peak: dict[str, int] = field(default_factory=dict)
    peak_reserved: int = 0
    takes: int = 0
    gives: int = 0
    retries: int = 0
    top: int = 7 << 32

    def reserved(self) -> int:
        """Bytes of segments."""
        return sum(block["size"] for blocks in self.segments.values() for block in blocks)

    def event(self, action: str, address: int, size: int, category: str = "") -> None:
        """Write one."""
        frames = [{"filename": FILES[category], "line": 1, "name": "f"}] if category in FILES else []
        self.trace.append({"action": action, "addr": address, "size": size, "stream": 0, "frames": frames})

    def alloc(self, size: int, category: str) -> int | None:
        """An address; None where there is no room."""
        size = -(-size // 512) * 512
        block = next(
            (
                b
                for blocks in self.segments.values()
                for b in blocks
                if b["state"] == "inactive" and b["size"] >= size
            ),
            None,
        )
        if block is None:
            block = self._take(max(size, 20 * MIB))
            if block is None:
                self.trace.append(
                    {
                        "action": "oom",
                        "size": size,
                        "device_free": self.room - self.reserved(),
                        "stream": 0,
                        "frames": [],
                    }
                )
                return None
        blocks = next(blocks for blocks in self.segments.values() if any(b is block for b in blocks))
        if block["size"] > size:
            place = next(i for i, b in enumerate(blocks) if b is block)
            blocks.insert(
                place + 1,
                {"address": block["address"] + size, "size": block["size"] - size, "state": "inactive"},
            )
            block["size"] = size
        frames = [{"filename": FILES[category], "line": 1, "name": "f"}] if category in FILES else []
        block |= {"state": "active_allocated", "requested_size": size, "frames": frames}
        self.living[block["address"]] = size, category
        self.event("alloc", block["address"], size, category)
        self.parts[category] += size
        if sum(self.parts.values()) > self.peak:
            self.peak, self.at_peak = sum(self.parts.values()), {k: v for k, v in self.parts.items() if v}
        return int(block["address"])

    def _take(self, size: int) -> dict[str, Any] | None:
        if self.reserved() + size > self.room:
            freed = [
                at for at, blocks in self.segments.items() if all(b["state"] == "inactive" for b in blocks)
            ]
            for at in freed:
                self.event("segment_free", at, sum(b["size"] for b in self.segments.pop(at)))
                self.gives += 1
            if self.reserved() + size > self.room:
                return None
            self.retries += bool(freed)
        self.top += 1 << 32
        self.event("segment_alloc", self.top, size)
        self.takes += 1
        self.segments[self.top] = [{"address": self.top, "size": size, "state": "inactive"}]
        self.peak_reserved = max(self.peak_reserved, self.reserved())
        return self.segments[self.top][0]

    def free(self, address: int) -> None:
        """Give a block back to the cache."""
        size, category = self.living.pop(address)
        self.parts[category] -= size
        for action in ("free_requested", "free_completed"):
            self.event(action, address, size, category)
        block = next(b for blocks in self.segments.values() for b in blocks if b["address"] == address)
        block["state"] = "inactive"

    def snapshot(self) -> dict[str, Any]:
        """As the docstring of `torch.cuda.memory._snapshot` has it."""
        segments = [
            {
                "device": 0,
                "address": at,
                "total_size": sum(b["size"] for b in blocks),
                "stream": 0,
                "segment_type": "large",
                "segment_pool_id": (0, 0),
                "allocated_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
                "active_size": sum(b["size"] for b in blocks if b["state"] == "active_allocated"),
                "blocks": blocks,
            }
            for at, blocks in self.segments.items()
        ]
        return {"segments": segments, "device_traces": [self.trace]}


def step(allocator: Allocator, draw: random.Random) -> None:
    """A training step: activations kept for backward, gradients, states in the first step, all but states freed."""
    sizes = [draw.randint(1, 40) * MIB for _ in range(draw.randint(2, 8))]
    kept = [allocator.alloc(size, "activations") for size in sizes]
    gradients = []
    for activation, size in zip(reversed(kept), reversed(sizes), strict=True):
        gradients.append(allocator.alloc(size // 2, "gradients"))
        if activation is not None:
            allocator.free(activation)
    for size in sizes[: 2 if not allocator.parts["optimizer states"] else 0]:
        allocator.alloc(size, "optimizer states")
    for gradient in gradients:
        if gradient is not None:
            allocator.free(gradient)


def test_a_step_is_counted_as_its_allocator_counts(tmp_path: Path) -> None:
    """Peaks, categories, reserved, fragmented, calls of cudaMalloc and cudaFree, retries, failures."""
    seen = defaultdict(int)
    for seed in range(tries(40, 500)):
        draw = random.Random(seed)
        allocator = Allocator(room=draw.choice((GIB, 300 * MIB, 200 * MIB)))
        for _ in range(3):
            step(allocator, draw)
        path = tmp_path / "snapshot_rank5.pickle"
        path.write_bytes(pickle.dumps(allocator.snapshot()))
        (memory,) = snapshot_memory(read_pickle(path), str(path))
        assert (memory.rank, memory.peak_bytes, memory.at_peak) == (5, allocator.peak, allocator.at_peak)
        assert memory.allocated_bytes == sum(allocator.parts.values())
        assert (memory.reserved_bytes, memory.peak_reserved_bytes) == (
            allocator.reserved(),
            allocator.peak_reserved,
        )
        assert memory.fragmented_bytes == allocator.reserved() - sum(allocator.parts.values())
        assert (memory.takes, memory.gives, memory.retries) == (
            allocator.takes,
            allocator.gives,
            allocator.retries,
        )
        assert len(memory.failures) == sum(event["action"] == "oom" for event in allocator.trace)
        seen["retries"] += memory.retries
        seen["failures"] += len(memory.failures)
    assert min(seen["retries"], seen["failures"]) > 0


def test_a_snapshot_that_torch_made_of_a_profile_agrees_with_its_timeline(tmp_path: Path) -> None:
    """The oracle is torch: its snapshot of a profiled step, and its own timeline of the same."""
    torch = pytest.importorskip("torch")
    from torch.cuda._memory_viz import _profile_to_snapshot
    from torch.profiler import ProfilerActivity, profile
    from torch.profiler._memory_profiler import MemoryProfileTimeline, TensorKey

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as recorded:
        for _ in range(2):
            model(torch.randn(16, 64)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    times, sizes = MemoryProfileTimeline(recorded._memory_profile())._coalesce_timeline("cpu")
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(_profile_to_snapshot(recorded)))
    memory = snapshot_memory(read_pickle(path), str(path))[-1]
    timeline = tmp_path / "timeline.json"
    timeline.write_text(json.dumps([times, sizes]))
    known = read_memory_timeline(timeline)
    assert known.allocated_bytes == sum(sizes[-1])
    assert known.peak_bytes == max(map(sum, sizes))
    now = peak = 0  # a snapshot knows tensors alone; scratch memory without a tensor is in the timeline too
    for _, action, (key, _), size in recorded._memory_profile().timeline:
        if isinstance(key, TensorKey):
            now += {"PREEXISTING": size, "CREATE": size, "DESTROY": -size}.get(action.name, 0)
            peak = max(peak, now)
    assert (memory.peak_bytes, memory.allocated_bytes) == (peak, now)


def test_the_recorded_timeline_has_the_counted_weights_and_states(shared_dir: Path) -> None:
    """`traces/expected.csv`: weights 8,409,088 B, gradients as much, AdamW's moments twice as much, within 0.5 %."""
    folder = shared_dir / "traces/cpu/memory_cpu"
    raw, by_moment = (
        read_memory_timeline(folder / f"memory_timeline{kind}.json.gz") for kind in (".raw", "")
    )
    assert (raw.peak_bytes, raw.at_peak, raw.allocated_bytes) == (
        by_moment.peak_bytes,
        by_moment.at_peak,
        by_moment.allocated_bytes,
    )
    moments = list(memory_moments(folder / "memory_timeline.raw.json.gz"))
    last = dict(zip(CATEGORIES, moments[-1], strict=True))
    assert last["weights"] == 8_409_088
    assert last["optimizer states"] == pytest.approx(16_818_176, rel=5e-3)
    assert max(moment[CATEGORIES.index("gradients")] for moment in moments) == pytest.approx(
        8_409_088, rel=5e-3
    )


def test_the_timeline_of_hta_has_the_sizes_that_its_test_has(shared_dir: Path) -> None:
    """Its row 744 counts the start as a row of its own."""
    moments = list(memory_moments(shared_dir / "traces/hta/memory_timeline.raw.gz"))
    assert moments[743] == [102440608, 102228128, 19395584, 0, 2618160128, 58417152, 41811968, 25494440]


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ([], "is no memory snapshot"),
        ({"segments": 3, "device_traces": []}, "segments is 3"),
        ({"segments": [3], "device_traces": []}, "segments is list"),
        ({"segments": [], "device_traces": 3}, "device_traces is 3"),
        ({"segments": [], "device_traces": [[3]]}, "device_traces is list"),
        ({"segments": [{"total_size": "x"}], "device_traces": []}, "total_size is 'x'"),
        ({"segments": [{"total_size": -1}], "device_traces": []}, "total_size is -1"),
        ({"segments": [{"device": 2.5}], "device_traces": []}, "device is 2.5"),
        ({"segments": [{"total_size": 1, "blocks": {}}], "device_traces": []}, "blocks is dict"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "size": 2**70}]]}, "size is"),
    ],
)
def test_what_is_no_snapshot_is_answered_in_three_lines(document: object, what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        snapshot_memory(document, "s.pickle")
    assert len(str(error.value).splitlines()) == 3


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "3",
        "[[1, 2, 3]]",
        "[[1, 9, 3, 0]]",
        "[[1, 2, 3, 8]]",
        "[[1], [[0, 1]]]",
        '[["a", 2, 3, 0]]',
        "[[1], [[0, 1, 2, 3, 4, 5, 6, 7, true, null]]]",
        "[[1e400, 2, 3, 0]]",
        "[[1,2,3,0]",
        "[[[[]]]]",
        f"[[{2**64}, 2, 3, 0]]",
    ],
)
def test_what_is_no_timeline_is_answered_in_three_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "timeline.json.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InputError) as error:
        read_memory_timeline(path)
    assert len(str(error.value).splitlines()) == 3


def test_a_hostile_snapshot_is_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(b"\x80\x02cos\nmkdir\n(X\x03\x00\x00\x00/xytR.")
    with pytest.raises(InputError, match="GLOBAL builds no plain value"):
        read_pickle(path)
