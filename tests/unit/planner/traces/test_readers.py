"""What readers of traces take, leave out and refuse."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from planner.traces.events import Events, TraceEvent
from planner.traces.json_stream import BLOCK_BYTES, walk_json
from planner.traces.kineto import read_kineto
from planner.traces.read import format_of, read_traces
from tests.unit.planner.traces.micro import host, kernel, write
from topology.base.errors import InputError


def test_a_packed_trace_is_the_plain_one(tmp_path: Path) -> None:
    events = (kernel("gemm", 10.0, 30.0, 1), host("ProfilerStep#4", 0.0, 40.0))
    plain, packed = (read_kineto(write(tmp_path / name, *events)) for name in ("a.json", "a.json.gz"))
    assert [*plain.events.rows()] == [*packed.events.rows()]
    assert [(each.number, each.seconds) for each in plain.windows] == [(4, pytest.approx(40e-6))]


def test_kernels_whose_launch_is_not_recorded_are_left_out(tmp_path: Path) -> None:
    orphan = kernel("gemm", 100.0, 130.0, 9)[1:]
    trace = read_kineto(write(tmp_path / "a.json", kernel("gemm", 10.0, 30.0, 1), orphan))
    assert int(trace.events.of("kernel").sum()) == 1
    assert "1 GPU events whose launch is not recorded" in trace.notes[0]


def test_where_no_launch_is_recorded_nothing_is_left_out(tmp_path: Path) -> None:
    trace = read_kineto(write(tmp_path / "a.json", kernel("gemm", 10.0, 30.0, 1)[1:]))
    assert int(trace.events.of("kernel").sum()) == 1


def test_an_event_across_two_blocks_is_whole(tmp_path: Path) -> None:
    """Names as long as a block move every boundary into an event."""
    path = tmp_path / "a.json"
    names = [letter * (BLOCK_BYTES * 2 // 3) for letter in "abcdef"]
    path.write_text(json.dumps({"traceEvents": [{"name": name} for name in names], "rank": 7}))
    values = list(walk_json(path, {(), ("traceEvents",)}))
    assert [value["name"] for place, value in values if place[-1] == "*"] == names
    assert values[-1] == (("rank",), 7)


@pytest.mark.parametrize(
    "text", ['{"traceEvents": [', '{"traceEvents": [{"ph": "X"}', '{"a" 1}', "[1,]", '{"a": 1']
)
def test_a_file_that_was_cut_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match="cause: "):
        read_traces([path])


@pytest.mark.parametrize("packed", [True, False])
def test_what_is_cut_off_says_where(tmp_path: Path, packed: bool) -> None:
    """The place is that of the file's end, however its text was read: blocks are let go."""
    name = "a.json.gz" if packed else "a.json"
    path = write(tmp_path / name, *(host(f"step {n}", n, n + 1.0) for n in range(20_000)))
    size = path.stat().st_size * 2 // 3
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"a\.json\S* is cut off") as error:
        read_traces([path])
    unit = "bytes" if packed else "characters"
    assert f"{size:,} {unit}" in str(error.value)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"{" + b" " * (600 * BLOCK_BYTES)))
    with pytest.raises(InputError, match="too large"):
        read_traces([path])


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [' + "[" * 200_000)
    with pytest.raises(InputError, match="cause: "):
        read_traces([path])


def test_events_without_a_time_are_counted(tmp_path: Path) -> None:
    bad = [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": "soon", "dur": 1},
        {"ph": "X", "cat": "kernel", "ts": 1e308, "name": "k"},
    ]
    trace = read_kineto(write(tmp_path / "a.json", kernel("gemm", 10.0, 30.0, 1), bad))
    assert trace.notes == ("2 events without a time were left out",)


def test_ranks_come_from_the_file_or_its_name(tmp_path: Path) -> None:
    first = write(tmp_path / "x.json", kernel("gemm", 10.0, 30.0, 1), rank=5, world=8)
    second = tmp_path / "rank-3.json"
    second.write_text(json.dumps({"traceEvents": kernel("gemm", 10.0, 30.0, 1)}))
    assert [trace.rank for trace in read_traces([first, second])] == [3, 5]


def test_one_rank_twice_is_of_two_jobs_where_files_say_ranks(tmp_path: Path) -> None:
    """Two jobs were one with ranks that neither has; files that say none are told apart."""
    paths = [write(tmp_path / f"{n}.json", kernel("gemm", 10.0, 30.0, 1), rank=2, world=4) for n in (1, 2)]
    with pytest.raises(InputError, match="both rank 2, of 4 and 4 ranks"):
        read_traces(paths)
    single = [write(tmp_path / f"one{n}.json", kernel("gemm", 10.0, 30.0, 1)) for n in (1, 2)]
    assert [trace.rank for trace in read_traces(single)] == [0, 1]


def test_sqlite_views_and_other_databases_are_no_export(tmp_path: Path) -> None:
    """A view runs whatever its author wrote."""
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as base:
        base.execute("create table StringIds (id integer, value text)")
        base.execute("create view CUPTI_ACTIVITY_KIND_KERNEL as select 1 as start, 2 as end")
        base.commit()
    assert format_of(path) == "nsys"
    with pytest.raises(InputError, match="no export of Nsight Systems"):
        read_traces([path])


def test_columns_give_back_their_rows() -> None:
    rows = [
        TraceEvent(
            name="a",
            category="kernel",
            start_s=0.0,
            duration_s=1.0,
            stream=7,
            correlation=3,
            args={"bytes": 4.0},
        ),
        TraceEvent(name="b", category="annotation", start_s=1.0, duration_s=2.0, thread=9),
    ]
    events = Events.of_rows(rows)
    assert [*events.rows()] == rows
    assert [*events.rows(np.array([False, True]))] == rows[1:]


@pytest.mark.parametrize("ranks", ["[0, 1]", [0, 1], [[8, 8], 0, "b", 1]])
def test_what_a_message_says_is_of_its_kind(tmp_path: Path, ranks: object) -> None:
    """Ranks are whole numbers however they are written, and a size that is none is left out."""
    said = {"Collective name": "allreduce", "Process Group Ranks": ranks, "In msg nelems": 10**400}
    event = {"ph": "X", "cat": "cpu_op", "name": "gloo:all_reduce", "ts": 0.0, "dur": 1.0, "args": said}
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    row = read_kineto(path).events.row(0)
    assert (row.args["ranks"], row.args["elements_in"]) == ((0, 1), None)
