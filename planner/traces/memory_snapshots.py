"""Memory of a rank as torch recorded it: snapshots of the caching allocator, and timelines by category.

A snapshot is the pickle of `torch.cuda.memory._dump_snapshot`; its structure is the docstring of
`torch.cuda.memory._snapshot`: segments from cudaMalloc with their blocks, and each device's trace of
allocations. A timeline is what `export_memory_timeline` of the profiler writes: `[times, sizes]`, or the
events of a `.raw.json.gz`.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from planner.traces.flight_records import rank_of_name
from planner.traces.json_stream import walk_json
from topology.base.errors import InputError, shortened, shown
from topology.base.files import LONGEST_PATH

CATEGORIES: Final = (
    "weights",
    "optimizer states",
    "inputs",
    "temporary",
    "activations",
    "gradients",
    "autograd",
    "unknown",
)
"""Of a timeline, in the order of its columns: `_CATEGORY_TO_INDEX` of torch/profiler/_memory_profiler.py."""
NAMED: Final[Mapping[str, str]] = {
    "parameter": "weights", "optimizer_state": "optimizer states", "input": "inputs",
    "temporary": "temporary", "activation": "activations", "gradient": "gradients",
    "autograd_detail": "autograd",
}  # fmt: skip
"""What a snapshot made of a profile calls its categories."""
FRAMES: Final[Sequence[tuple[str, re.Pattern[str], re.Pattern[str]]]] = tuple(
    (category, re.compile(file), re.compile(function))
    for category, file, function in (
        ("optimizer states", r"torch/optim/", ""),
        (
            "buffers",
            r"torch/distributed/|torch/nn/parallel/|megatron/core/distributed/|deepspeed/runtime/",
            "",
        ),
        ("logits", r"torch/nn/functional\.py|cross_entropy|loss", r"cross_entropy|log_softmax|nll_loss|loss"),
        ("weights", r"torch/nn/modules/module\.py", r"^(?:_apply|convert|to|cuda|to_empty|<lambda>)$"),
        ("weights", r"torch/nn/modules/", r"^(?:__init__|reset_parameters)$"),
        ("weights", r"torch/nn/(?:init|parameter)\.py", ""),
        ("gradients", r"torch/autograd/", ""),
        ("activations", r"torch/nn/", ""),
    )
)
"""Where the frame lies that allocated, and its function, of snapshots that name no category; the innermost
frame that is known decides."""
OUTSIDE: Final = ("segment_alloc", "segment_map")
"""Actions that take memory of the device: cudaMalloc, or a page of an expandable segment."""
INSIDE: Final = ("segment_free", "segment_unmap")
MAX_BYTES: Final = 2**50
_ACTIONS: Final = (1, 2, 3, 4)
"""Of a raw timeline: there before, created, changed in place, destroyed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """An allocation for which the device had no memory."""

    size_bytes: int
    free_bytes: int
    """What the device still had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMemory:
    """The memory of one device of one rank over what was recorded."""

    source: str
    rank: int | None
    device: int = 0
    peak_bytes: int
    """Largest sum of allocated blocks."""
    at_peak: Mapping[str, int]
    """Bytes by category at that moment."""
    allocated_bytes: int
    """At the end."""
    reserved_bytes: int | None = None
    """Segments that the allocator holds at the end; None of a timeline, which does not say."""
    peak_reserved_bytes: int | None = None
    fragmented_bytes: int | None = None
    """Reserved less allocated at the end: cached blocks that no tensor uses."""
    largest_free_bytes: int | None = None
    """The largest of those blocks: a larger tensor needs a cudaMalloc."""
    takes: int = 0
    """How often memory was taken from the device while recording: cudaMalloc."""
    gives: int = 0
    """How often it was given back: cudaFree."""
    retries: int = 0
    """How often it was given back in order to take more: each waits for the device."""
    failures: tuple[FailedAllocation, ...] = ()


# ── snapshots ─────────────────────────────────────────────────────────────────────────────────────────────


def is_snapshot(document: object) -> bool:
    """Whether a document has the keys of a snapshot."""
    return isinstance(document, dict) and {"segments", "device_traces"} <= document.keys()


def snapshot_memory(document: object, source: str) -> tuple[RecordedMemory, ...]:
    """The memory of each device of a snapshot that was read.

    Raises:
        InputError: It is no snapshot, or is beyond the bounds.
    """
    if not isinstance(document, dict) or not is_snapshot(document):
        fix = "pass the pickle that torch.cuda.memory._dump_snapshot wrote"
        raise InputError(f"{source} is no memory snapshot", "it has no `segments` and `device_traces`", fix)
    segments = _rows(document["segments"], "segments", source)
    traces = document["device_traces"]
    if not isinstance(traces, list | tuple):
        raise _unlike(source, "device_traces", traces)
    devices = {_size(segment.get("device", 0), "device", source) for segment in segments}
    recorded = []
    for device in sorted(devices | {place for place, trace in enumerate(traces) if trace}):
        mine = [segment for segment in segments if segment.get("device", 0) == device]
        events = _rows(traces[device] if device < len(traces) else [], "device_traces", source)
        recorded.append(_device(mine, events, device, source))
    return tuple(recorded)


def _device(
    segments: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]], device: int, source: str
) -> RecordedMemory:
    """The memory of one device: its last state from segments, all before by going back through its trace."""
    blocks = [block for segment in segments for block in _rows(segment.get("blocks", []), "blocks", source)]
    used = [block for block in blocks if block.get("state") == "active_allocated"]
    free = [_size(b.get("size"), "size", source) for b in blocks if b.get("state") == "inactive"]
    allocated = sum(_size(block.get("size"), "size", source) for block in used)
    reserved = sum(_size(segment.get("total_size"), "total_size", source) for segment in segments)
    parts = defaultdict[str, int](int)
    for block in used:
        parts[_category(block)] += _size(block.get("size"), "size", source)
    peak, peak_reserved, at_peak = allocated, reserved, dict(parts)
    now, held = allocated, reserved
    owners = _owners(events)
    for place in reversed(range(len(events))):
        event = events[place]
        action, size = event.get("action"), _size(event.get("size", 0), "size", source)
        if action == "alloc":
            now, change = now - size, -size
        elif action == "free_requested":
            now, change = now + size, size
        else:
            change = 0
            held += size * ((action in INSIDE) - (action in OUTSIDE))
        if change:
            parts[owners[place]] += change
        if now >= peak:  # the first of equal ones, as this goes back
            peak, at_peak = now, dict(parts)
        peak_reserved = max(peak_reserved, held)
    actions = [str(event.get("action")) for event in events]
    return RecordedMemory(
        source=source,
        rank=rank_of_name(source),
        device=device,
        peak_bytes=peak,
        at_peak={name: size for name, size in at_peak.items() if size > 0},
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        peak_reserved_bytes=peak_reserved,
        fragmented_bytes=reserved - allocated,
        largest_free_bytes=max(free, default=0),
        takes=sum(action in OUTSIDE for action in actions),
        gives=sum(action in INSIDE for action in actions),
        retries=_retries(actions),
        failures=tuple(
            FailedAllocation(
                size_bytes=_size(event.get("size", 0), "size", source),
                free_bytes=_size(event.get("device_free", 0), "device_free", source),
            )
            for event in events
            if event.get("action") == "oom"
        ),
    )


def _retries(actions: Sequence[str]) -> int:
    """How often segments were given back and the next thing taken from the device was another one."""
    count, gave = 0, False
    for action in actions:
        if action in INSIDE:
            gave = True
        elif action in OUTSIDE:
            count, gave = count + gave, False
        elif action in ("alloc", "oom", "snapshot"):
            gave = False
    return count


def _owners(events: Sequence[dict[str, Any]]) -> list[str]:
    """The category of each event: a free is of what was allocated at its address."""
    living, owners = dict[Any, str](), list[str]()
    for event in events:
        address = event.get("addr") if isinstance(event.get("addr"), int) else None
        if event.get("action") == "alloc":
            living[address] = _category(event)
            owners.append(living[address])
        else:
            owners.append(living.get(address) or _category(event))
    return owners


def _category(row: Mapping[str, Any]) -> str:
    """What a block is for: as the row says, else by the code that allocated it."""
    if isinstance(row.get("category"), str):
        return NAMED.get(row["category"], "unknown")
    frames = row.get("frames")
    for frame in frames if isinstance(frames, list | tuple) else ():
        file, name = (frame.get("filename"), frame.get("name")) if isinstance(frame, dict) else (None, None)
        category = _of_frame(file, name if isinstance(name, str) else "") if isinstance(file, str) else ""
        if category:
            return category
    return "unknown"


@functools.lru_cache(maxsize=10_000)
def _of_frame(file: str, function: str) -> str:
    """The category of what a line of code allocates; empty where that is not known."""
    file, name = file[:LONGEST_PATH], function[:LONGEST_PATH]
    return next((c for c, in_file, in_name in FRAMES if in_file.search(file) and in_name.search(name)), "")


def _rows(value: object, name: str, source: str) -> list[dict[str, Any]]:
    """A list of dictionaries."""
    if not isinstance(value, list | tuple) or not all(isinstance(row, dict) for row in value):
        raise _unlike(source, name, value)
    return list(value)


def _size(value: object, name: str, source: str) -> int:
    """A number of bytes, or of a device."""
    if not isinstance(value, int) or not 0 <= value <= MAX_BYTES:
        raise _unlike(source, name, value)
    return int(value)


def _unlike(source: str, name: str, value: object) -> InputError:
    """What is said of a value that is not as the docstring has it."""
    have = type(value).__name__ if isinstance(value, dict | list | tuple | set | frozenset) else shown(value)
    fix = "pass the unchanged pickle that torch.cuda.memory._dump_snapshot wrote"
    return InputError(f"{source} is no memory snapshot", f"{name} is {have}", fix)


# ── timelines ─────────────────────────────────────────────────────────────────────────────────────────────


def read_memory_timeline(path: str | Path) -> RecordedMemory:
    """The memory of what `export_memory_timeline` wrote, raw or by moments, packed or not.

    Raises:
        InputError: It is no timeline, or is beyond the bounds.
        OSError: There is none, or it may not be read.
    """
    source = shortened(str(path), LONGEST_PATH)
    peak, at_peak, last = -1, list[int](), [0] * len(CATEGORIES)
    for last in memory_moments(path):
        if sum(last) > peak:
            peak, at_peak = sum(last), last
    if peak < 0:
        raise _no_timeline(source, "it has no moment")
    return RecordedMemory(
        source=source,
        rank=rank_of_name(source),
        peak_bytes=peak,
        at_peak={name: size for name, size in zip(CATEGORIES, at_peak, strict=True) if size},
        allocated_bytes=sum(last),
    )


def memory_moments(path: str | Path) -> Iterator[list[int]]:
    """Bytes by category, moment by moment; of a raw timeline a moment is a microsecond, as torch has it.

    Raises InputError as `read_memory_timeline`.
    """
    source = shortened(str(path), LONGEST_PATH)
    numbers, has_rows = array("q"), False
    for place, value in walk_json(path, ((), ("*",))):
        if isinstance(value, int) and abs(value) < 2**63 and len(place) == 2 and not has_rows:
            numbers.append(value)  # of a raw timeline all there is; else the times, which come first
        elif isinstance(value, list) and len(value) == len(CATEGORIES) + 1 and len(place) == 2:
            has_rows = True
            yield [_whole(size, source) for size in value[1:]]
        elif value != []:
            raise _no_timeline(
                source, f"it holds {shown(value) if not isinstance(value, dict | list) else 'other'}"
            )
    if not has_rows:
        yield from _played(numbers, source)


def _played(numbers: Sequence[int], source: str) -> Iterator[list[int]]:
    """Moments of the events of a raw timeline: time in ns, action, change in bytes, place of the category."""
    if len(numbers) % 4:
        raise _no_timeline(source, f"{len(numbers)} numbers are no events of four")
    sizes, moment = [0] * len(CATEGORIES), None
    for time, action, size, category in zip(*(numbers[part::4] for part in range(4)), strict=True):
        if action not in _ACTIONS or not 0 <= category < len(CATEGORIES) or abs(size) > MAX_BYTES:
            raise _no_timeline(source, f"an event is [{time}, {action}, {size}, {category}]")
        at = int(time / 1000) if time >= 0 else time  # in floats, as torch rounds it
        if moment is not None and at != moment:
            yield list(sizes)
        moment = at
        sizes[category] += size
    if moment is not None:
        yield sizes


def _whole(value: object, source: str) -> int:
    """A number of bytes."""
    if not isinstance(value, int) or abs(value) > MAX_BYTES:
        raise _no_timeline(source, "a size is no number of bytes")
    return value


def _no_timeline(source: str, cause: str) -> InputError:
    """What is said of a file that is no timeline."""
    fix = "pass what export_memory_timeline wrote to a .json.gz, with profile_memory=True"
    return InputError(f"{source} is no memory timeline", cause, fix)
