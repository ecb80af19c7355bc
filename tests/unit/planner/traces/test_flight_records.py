"""Flight records are read from pickles and JSON alike, and what is none is answered in three lines."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from planner.traces.flight_records import FlightDump, flight_dump, read_flight_dump
from tests.counts import tries
from tests.unit.planner.traces.made_flights import Call, play
from topology.base.errors import InputError


def example() -> dict[str, Any]:
    calls = [Call("dp", "all_reduce", 8), Call("dp", "send", 4, (0, 1))]
    return play({"dp": [[0, 1]]}, [calls, calls[:1]])[0]


def test_a_pickle_and_json_are_read_alike(tmp_path: Path) -> None:
    """JSON of torch writes statuses as text and tuples as lists."""
    dump = example()
    (tmp_path / "nccl_trace_rank_3").write_bytes(pickle.dumps(dump, 2))
    dump["pg_status"] = {
        k: {name: str(last) for name, last in s.items()} for k, s in dump["pg_status"].items()
    }
    (tmp_path / "fr_rank3.json").write_text(json.dumps(dump))
    first, second = (
        read_flight_dump(tmp_path / "nccl_trace_rank_3"),
        read_flight_dump(tmp_path / "fr_rank3.json"),
    )
    assert (first.records, first.status, first.group_ranks, first.rank) == (
        second.records,
        second.status,
        second.group_ranks,
        3,
    )
    reduced, sent = first.records
    assert (reduced.operation, reduced.sequence, reduced.input_sizes, reduced.is_over) == (
        "all_reduce",
        1,
        ((8,),),
        True,
    )
    assert (sent.operation, sent.pair, sent.is_over, sent.timeout_s) == ("send", (0, 1), False, 600.0)
    assert sent.caller == "step at train.py:44"
    assert first.status["0", "dp"].completed == 1
    assert first.group_ranks == {"0": (0, 1)}


def test_real_dumps_of_both_forms_say_the_same(shared_dir: Path) -> None:
    for path in sorted((shared_dir / "traces/cpu").glob("*/fr_rank*.pickle")):
        packed, written = read_flight_dump(path), read_flight_dump(path.with_suffix(".json"))
        assert _without_callers(packed) == _without_callers(written)
        assert packed.rank == int(path.stem[-1])
        assert all(record.caller for record in packed.records)


def _without_callers(dump: FlightDump) -> list[tuple[Any, ...]]:
    """JSON has no frames, and was written later: a wait may have ended since."""
    return [
        (
            r.number,
            r.group,
            r.description,
            r.operation,
            r.sequence,
            r.input_sizes,
            r.dtypes,
            r.created_ns,
            r.timeout_s,
        )
        for r in dump.records
    ]


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ([], "is no flight record"),
        ({"entries": 3, "pg_config": {}}, "is no flight record"),
        ({"entries": [3], "pg_config": {}}, "record 0 holds 3"),
        ({"entries": [{"process_group": "dp"}], "pg_config": {}}, "a name and a description"),
        ({"entries": [{"collective_seq_id": "3"}], "pg_config": {}}, "an integer"),
        ({"entries": [{"collective_seq_id": 2**70}], "pg_config": {}}, "an integer"),
        ({"entries": [{"input_sizes": [[1.5]]}], "pg_config": {}}, "a list of shapes"),
        ({"entries": [{"input_sizes": 4}], "pg_config": {}}, "a list of shapes"),
        ({"entries": [{"profiling_name": 4}], "pg_config": {}}, "text"),
    ],
)
def test_what_is_no_flight_record_is_answered_in_three_lines(document: object, what: str) -> None:
    with pytest.raises(InputError, match=what) as error:
        flight_dump(document, "fr_rank0.json")
    assert len(str(error.value).splitlines()) == 3


def test_a_file_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(pickle.dumps({"entries": [], "pg_config": {}}, 2))
    assert read_flight_dump(path, rank=5).rank == 5
    with pytest.raises(InputError, match="does not say its rank"):
        flight_dump({"entries": [], "pg_config": {}}, "dump")
    path.write_bytes(b"\xffabc")
    with pytest.raises(InputError, match="neither a pickle nor JSON"):
        read_flight_dump(path)


def test_mutated_dumps_never_break_it() -> None:
    """Any value may be anything."""
    draw = random.Random(7)
    strange = (
        None,
        -1,
        2**80,
        1.5,
        "",
        "x" * 500,
        [],
        [[]],
        {},
        [None],
        True,
        ("a",),
        "[0, 99999999999]",
        [{"a": 1}],
    )
    for _ in range(tries(2000, 50_000)):
        dump = example()
        for _ in range(draw.randint(1, 3)):
            target = draw.choice(
                [dump, *dump["entries"], *dump["pg_config"].values(), *dump["pg_status"].values()]
            )
            target[draw.choice(list(target))] = draw.choice(strange)
            if (
                not isinstance(dump["entries"], list)
                or not isinstance(dump["pg_config"], dict)
                or not isinstance(dump["pg_status"], dict)
                or not all(
                    isinstance(x, dict)
                    for x in (*dump["entries"], *dump["pg_config"].values(), *dump["pg_status"].values())
                )
            ):
                break
        with contextlib.suppress(InputError):
            flight_dump(dump, "fr_rank0")
