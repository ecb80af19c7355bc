"""Pickles are read as plain values, equal to Python's own reading; whatever would be executed is refused."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import pickletools
import random
import struct
import time
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.traces import pickles
from planner.traces.pickles import MAX_BUILT_BYTES, REFUSED, is_pickle, parse_pickle, read_pickle
from tests.counts import tries
from topology.base.errors import InputError

KEYS = st.one_of(
    st.text(max_size=20), st.integers(-(2**63), 2**63), st.booleans(), st.none(), st.floats(allow_nan=False)
)
SCALARS = st.one_of(KEYS, st.integers(-(2**300), 2**300))
PLAIN = st.recursive(
    SCALARS,
    lambda parts: st.one_of(
        st.lists(parts, max_size=5),
        st.lists(parts, max_size=5).map(tuple),
        st.dictionaries(KEYS, parts, max_size=5),
    ),
    max_leaves=40,
)
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


@given(PLAIN, st.sampled_from(PROTOCOLS))
@settings(max_examples=tries(300, 5000), deadline=None)
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    """Of every protocol."""
    assert parse_pickle(pickle.dumps(value, protocol)) == value


@given(PLAIN, st.binary(max_size=300), st.sets(KEYS, max_size=9), st.sampled_from((4, 5)))
@settings(max_examples=tries(100, 2000), deadline=None)
def test_bytes_and_sets_come_back(value: Any, content: bytes, members: set[Any], protocol: int) -> None:
    """Of the protocols that need no call for them."""
    whole = (content, members, frozenset(members), value)
    assert parse_pickle(pickle.dumps(whole, protocol)) == whole


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_and_text_come_back_exactly(protocol: int) -> None:
    value = [
        True,
        False,
        None,
        0,
        -1,
        255,
        256,
        65535,
        65536,
        2**31 - 1,
        -(2**31),
        2**2000,
        1e-310,
        -0.0,
        math.inf,
        "",
        "é\n\\u0041\udc80€😀",
        "x" * 70_000,
    ]
    back = parse_pickle(pickle.dumps(value, protocol))
    assert back == value
    assert list(map(type, back)) == list(map(type, value))
    assert math.isnan(parse_pickle(pickle.dumps(math.nan, protocol)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_parts_stay_shared(protocol: int) -> None:
    """Stacks of a memory snapshot stand once in the file, and once in memory."""
    part = [{"line": 3}]
    first, second, nested = parse_pickle(pickle.dumps([part, part, (part, {"k": part})], protocol))
    assert first is second is nested[0] is nested[1]["k"]


def test_long_containers_come_back() -> None:
    """Python writes them in batches."""
    value = [{str(k): [k] for k in range(3500)}, list(range(5000))]
    assert parse_pickle(pickle.dumps(value)) == value


class _Calls:
    """What calls the system when Python reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_executed(tmp_path: Path, protocol: int) -> None:
    """Python's own reader would have made the folder."""
    hostile = pickle.dumps({"entries": [_Calls(tmp_path / "called")]}, protocol)
    with pytest.raises(InputError, match="GLOBAL builds no plain value"):
        parse_pickle(hostile)
    assert not (tmp_path / "called").exists()
    pickle.loads(hostile)  # noqa: S301 - the oracle: it is hostile
    assert (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "value",
    [Fraction(1, 3), OrderedDict(a=1), {1, 2}, bytearray(b"a"), len, InputError, Ellipsis, 1j, range(3)],
)
def test_what_needs_a_call_is_refused(value: Any) -> None:
    """Sets too, in the protocol that has no opcode for them."""
    with pytest.raises(InputError, match="builds no plain value"):
        parse_pickle(pickle.dumps(value, 2))


def test_every_opcode_is_read_or_refused() -> None:
    """Those of the standard library's table, no more and no fewer."""
    known = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
    read = set(pickles._HANDLERS) | {ord(".")}
    assert read | set(REFUSED) == set(known)
    assert not read & set(REFUSED)
    assert {code: known[code] for code in REFUSED} == dict(REFUSED)


def _deep(levels: int) -> bytes:
    return b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b"."


def _laughs(levels: int) -> bytes:
    """Every list holds the one before it ten times."""
    body = b"]q\x00K\x01a"
    for level in range(levels):
        body += b"]q" + bytes([level + 1]) + b"(" + (b"h" + bytes([level])) * 10 + b"e"
    return b"\x80\x02(" + body + b"l."


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "ends before its STOP"),
        (b"\x80\x09N.", "protocol 9 is newer"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff", "bytes and has 0"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx.", "bytes and has 2"),
        (b"\x80\x02X\xff\xff\xff\xffa.", "bytes and has 2"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f" + b"1" * 900 + b".", "an integer has"),
        (b"I" + b"9" * 5000 + b"\n.", "too long"),
        (b"I_1\n.", "too long, or is none"),
        (b"L1e5L\n.", "too long, or is none"),
        (b"Fone\n.", "number of protocol 0"),
        (b"Vabc", "no end"),
        (b"V\\u12\n.", "wrong escape"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "not UTF-8"),
        (b"N.N", "bytes follow"),
        (b"NN.", "2 values"),
        (b"(N.", "1 marks"),
        (b".", "0 values"),
        (b"e", "no MARK"),
        (b"a", "stack is empty"),
        (b"q\x00.", "stack is empty"),
        (b"h\x07.", "never set"),
        (b"g-1\n.", "never set"),
        (b"Np-1\n.", "negative"),
        (b"}(N]e.", "added to a dict"),
        (b"}(Ne.", "added to a dict"),
        (b"NN\x90.", "no MARK"),
        (b"](NNu.", "added to a list"),
        (b"}(Nu.", "no value"),
        (b"}]Ns.", "a list is a key"),
        (b"}(N\x85Nu.", "a tuple is a key"),
        (b"}\x8a\x0a" + b"\xff" * 9 + b"\x7f" + b"Ns.", "more than 64 bits"),
        (b"]q\x00h\x00a.", "changed that is part"),
        (b"]q\x00(h\x00e.", "changed that is part"),
        (b"}q\x00Nh\x00s.", "changed that is part"),
        (b"]q\x00\x85h\x00Na0.", "changed that is part"),
        (b"](h\x00t.", "never set"),
        (_deep(100), "within each other"),
        (b"(" * 1000 + b"t" * 1000 + b".", "within each other"),
        (_laughs(12), "shared parts"),
        (b"\x80\x02cposix\nsystem\n(X\x02\x00\x00\x00lstR.", "GLOBAL"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"Pname\n.", "PERSID"),
        (b"\xff.", "0xff"),
    ],
)
def test_a_hostile_pickle_is_answered_in_three_lines(content: bytes, cause: str) -> None:
    with pytest.raises(InputError) as error:
        parse_pickle(content, "dump.pickle")
    what, why, fix = str(error.value).splitlines()
    assert what == "error: dump.pickle is not read"
    assert cause in why
    assert "plain values" in fix


@pytest.mark.parametrize(
    "repeated",
    [b"}", b"]", b"N", b"(t", b"\x80\x02", b"\x95" + bytes(8), b"\x94", b"K\x01", b"}\x94", b"h\x00"],
)
def test_a_bomb_is_bounded_in_time_and_memory(monkeypatch: pytest.MonkeyPatch, repeated: bytes) -> None:
    """Each opcode spends of the room that there is; here a sixteenth of it."""
    room = MAX_BUILT_BYTES // 16
    monkeypatch.setattr(pickles, "MAX_BUILT_BYTES", room)
    start = time.process_time()
    with pytest.raises(InputError, match="bytes of memory"):
        parse_pickle(b"Nq\x00" + repeated * (room // 64))
    assert time.process_time() - start < 10


def test_mutated_pickles_never_break_it() -> None:
    """They are read as Python reads them, or refused in three lines; nothing else is raised."""
    draw = random.Random(42)
    value = {
        "entries": [
            {"pg": ("0", "dp"), "sizes": [[1, 2]], "t": 1.5, "n": None, "ok": True, "s": {1, 2}}
            for _ in range(3)
        ]
    }
    sources = [
        pickle.dumps(value if protocol > 3 else [*"abc", 1, 2.5, {"k": (None, True)}], protocol)
        for protocol in PROTOCOLS
    ]
    executing = frozenset(REFUSED)
    read = 0
    for _ in range(tries(4000, 200_000)):
        content = bytearray(draw.choice(sources))
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(content))
            match draw.randrange(4):
                case 0:
                    content[place] = draw.randrange(256)
                case 1:
                    del content[place : place + draw.randint(1, 5)]
                case 2:
                    content[place:place] = bytes(
                        draw.choice((*pickles._HANDLERS, *executing)) for _ in range(draw.randint(1, 3))
                    )
                case _:
                    content[place:place] = struct.pack("<I", draw.choice((0, 1, 255, 2**31, 2**32 - 1)))
            if not content:
                break
        try:
            parsed = parse_pickle(bytes(content))
        except InputError:
            continue
        expected = None
        with contextlib.suppress(pickle.UnpicklingError):  # of frames, which matter to a stream alone
            expected = (pickle._loads(bytes(content)),)
        if expected is not None:
            read += 1
            assert repr((parsed,)) == repr(expected)
    assert read > 50


def test_a_file_is_known_and_read(tmp_path: Path) -> None:
    path = tmp_path / "fr_rank0"
    path.write_bytes(pickle.dumps({"version": "2.10"}, 2))
    assert is_pickle(path.read_bytes())
    assert read_pickle(path) == {"version": "2.10"}
    with pytest.raises(InputError, match="is a directory"):
        read_pickle(tmp_path)
