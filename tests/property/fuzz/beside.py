"""Files beside traces from outside: flight records, memory snapshots and timelines, samples of GPUs, timers of logs.

An input is JSON: the file's name, and its bytes in hexadecimal.
"""

from __future__ import annotations

import functools
import json
import pickle
from dataclasses import asdict
from random import Random
from typing import Any

from tests.property.fuzz.mutate import mutated_text, mutated_tree
from tests.property.fuzz.surface import Box
from tests.unit.planner.diagnose.test_devices import ODD, as_csv, as_metrics, as_xml, node
from tests.unit.planner.diagnose.test_serving import SLOW, metrics
from tests.unit.planner.traces.made_flights import Call, play
from tests.unit.planner.traces.test_memory_snapshots import Allocator, step
from topology.base.errors import InputError
from topology.base.units import MIB


@functools.cache
def _flight() -> dict[str, Any]:
    """A rank that waits, with messages."""
    calls = [Call("dp", "all_reduce", 8), Call("dp", "send", 4, (0, 1)), Call("dp", "all_reduce", 8)]
    return play({"dp": [[0, 1]]}, [calls, calls[:1]])[0]


@functools.cache
def _snapshot() -> dict[str, Any]:
    """Steps of a small device."""
    allocator = Allocator(room=100 * MIB)
    for _ in range(2):
        step(allocator, Random(1))
    return allocator.snapshot()


def _text(name: str, content: bytes) -> str:
    return json.dumps({"name": name, "bytes": content.hex()})


CORPUS = (
    _text("fr_rank0", b"\x80\x02cos\nmkdir\n(X\x06\x00\x00\x00CANARYtR."),
    _text("fr_rank0", b"\x80\x02]q\x00h\x00a."),
    _text("fr_rank0", b"\x80\x02" + b"}" * 100_000),
    _text("fr_rank0", b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"),
    _text("fr_rank0.json", b'{"entries": [' + b"[" * 100_000),
    _text("memory_timeline.raw.json", b"[" * 100_000),
    _text("memory_timeline.raw.json", b"[[1e999, 2, 3, 0]]"),
    _text("gpus.csv", b"index, clocks.sm [MHz]\n0, 1e999\n"),
    _text("gpus.xml", b'<!DOCTYPE a [<!ENTITY b "c">]><nvidia_smi_log><gpu>&b;</gpu></nvidia_smi_log>'),
    _text("job.parquet", b"PAR1" + b"\xff" * 400 + b"PAR1"),
    _text("run.log", b"times across ranks (ms):\n  forward-compute:\n     rank 9999999: 999999999999.9\n"),
)


def make_beside(random: Random, story: list[str]) -> str:
    """Change a value, a byte or the length of one of the forms."""
    name = random.choice(
        (
            "fr_rank0.pickle",
            "fr_rank0.json",
            "snapshot.pickle",
            "memory_timeline.raw.json",
            "gpus",
            "metrics.txt",
            "run.log",
        )
    )
    if name == "gpus":
        written = random.choice((as_xml, as_csv, as_metrics))
        content = mutated_text(written(node(**ODD["throttled clocks"])), random, story).encode(
            "utf-8", "replace"
        )
    elif name == "metrics.txt":
        text = metrics(dict.fromkeys(("request_queue_time_seconds", "request_decode_time_seconds"), SLOW))
        content = mutated_text(text, random, story).encode("utf-8", "replace")
    elif name == "run.log":
        text = "times across ranks (ms):\n  forward-compute:\n     rank  0: 1.50\n     rank  1: 2.50\n     rank  2: 1.50\n"
        content = mutated_text(text * 4, random, story).encode("utf-8", "replace")
    else:
        timeline = [
            [-1, 1, 4096, 0],
            [5000, 2, 100, 4],
            [6000, 3, -100, 4],
            [6000, 3, 100, 5],
            [9000, 4, -100, 5],
        ]
        tree = {"fr": _flight(), "sn": _snapshot(), "me": timeline}[name[:2]]
        changed = mutated_tree(tree, random, story)
        content = pickle.dumps(changed, 2) if name.endswith("pickle") else json.dumps(changed).encode()
    if random.random() < 0.3 and content:
        place = random.randrange(len(content))
        content = (
            content[:place] + random.randbytes(random.randint(0, 4)) + content[place + random.randint(0, 4) :]
        )
        story.append(f"bytes at {place}")
    return _text(name, content)


def read_beside(text: str, box: Box) -> object:
    """What the file explains; nothing where it is refused."""
    from planner.diagnose.beside import beside_traces
    from planner.diagnose.rank_timings import timing_findings
    from planner.traces.rank_timers import rank_timers

    given = json.loads(text)
    path = box.folder / given["name"]
    path.write_bytes(bytes.fromhex(given["bytes"]).replace(b"CANARY", str(box.folder / "canary").encode()))
    if given["name"] == "run.log":
        return [asdict(finding) for finding in timing_findings(rank_timers(path.read_text(errors="replace")))]
    try:
        beside = beside_traces([path], step_s=1.0)
    except InputError as error:
        if len(str(error).splitlines()) != 3:
            raise AssertionError(f"not three lines: {error}") from error
        raise
    return [asdict(finding) for finding in beside.findings] + [each.peak_bytes for each in beside.memory]
