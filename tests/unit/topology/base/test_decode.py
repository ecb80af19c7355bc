"""The one door for files: strict, and complete about what is wrong."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from topology.base.converter import MOST_KEYS, MOST_MISTAKES
from topology.base.decode import (
    MAX_JSON_BYTES,
    MAX_TOML_BYTES,
    document_of,
    read_json,
    read_toml,
    structure,
    unstructure,
)
from topology.base.errors import InputError
from topology.base.files import MAX_FILE_BYTES, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A nested value."""

    count: int
    rate_bytes_per_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A value with parts."""

    name: str
    parts: tuple[Part, ...] = ()
    ready: bool = False
    limit: float | None = None
    pair: tuple[str, int] = ("a", 1)
    rates: Mapping[str, float] = field(default_factory=dict)


def cause(data: object) -> str:
    """The cause of the error that decoding ends in."""
    with pytest.raises(InputError) as caught:
        structure(data, Whole, "file.toml")
    return caught.value.cause


def test_a_value_comes_back_from_json_as_it_was() -> None:
    """Structure undoes unstructure, through real JSON text."""
    value = Whole(
        name="x", parts=(Part(count=2), Part(count=3, rate_bytes_per_s=0.5)), ready=True, limit=1e-9
    )
    assert structure(json.loads(json.dumps(unstructure(value))), Whole, "json") == value


def test_numbers_may_carry_units() -> None:
    """A rate may be written as people write it."""
    read = structure({"name": "x", "parts": [{"count": 8.0, "rate_bytes_per_s": "400 Gbit/s"}]}, Whole, "x")
    assert read.parts[0] == Part(count=8, rate_bytes_per_s=50e9)


def test_every_mistake_is_listed_with_its_path() -> None:
    """Unknown keys, missing keys and wrong types are all found in one go."""
    found = cause(
        {"nam": "x", "parts": [{"count": 1}, {"count": 1.5, "cuont": 2, "rate_bytes_per_s": float("nan")}]}
    )
    for mistake in (
        "missing key name",
        "unknown key nam (did you mean name?)",
        "unknown key parts[1].cuont (did you mean count?)",
        "parts[1].count: 1.5 is not a whole number",
        "parts[1].rate_bytes_per_s: nan is not a finite number",
    ):
        assert mistake in found


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "top level: [] is not a table"),
        ({"name": 3}, "name: 3 is not text"),
        ({"name": "x", "parts": "ab"}, "parts: 'ab' is not a list"),
        ({"name": "x", "parts": [3]}, "parts[0]: 3 is not a table"),
        ({"name": "x", "ready": 1}, "ready: 1 is neither true nor false"),
        ({"name": "x", "parts": [{"count": True}]}, "parts[0].count: True is not a whole number"),
        ({"name": "x", "parts": [{"count": "8"}]}, "parts[0].count: '8' is not a whole number"),
        ({"name": "x", "parts": [{"count": 10**30}]}, "is too large"),
        ({"name": "x", "limit": 1e300}, "limit: 1e+300 is not a finite number of sensible size"),
        ({"name": "x", "limit": 10**400}, "is not a finite number of sensible size"),
        ({"name": "x", "parts": [{"count": 10**400}]}, "is too large"),
        ({"name": "x", "parts": [{"count": float("inf")}]}, "inf is not a whole number"),
        ({"name": "\ud800"}, "surrogates not allowed"),
        ({"name": "x", "rates": []}, "rates: [] is not a table"),
        ({"name": "x", "rates": {"a": "fast"}}, "rates.a: "),
    ],
    ids=str,
)
def test_nothing_is_converted_silently(data: object, said: str) -> None:
    """Text is not a list of letters, true is not 1, 7.5 is not 7."""
    assert said in cause(data)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a = [1,", "not valid TOML"),
        (b"\xff\xfe", "not a text file"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
    ],
)
def test_bad_toml_is_answered_in_three_lines(tmp_path: Path, content: bytes, said: str) -> None:
    """Truncated, binary, huge and deeply nested files end in a sentence, not a traceback."""
    path = tmp_path / "cluster.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_toml(path)


@pytest.mark.parametrize(
    "content", ["{", '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, "9" * 5000, "9" * 400, "1e999", '"\\ud800"', '{"\\uDFFF": 1}'],
    ids=lambda text: text[:8],
)  # fmt: skip
def test_bad_json_is_answered_in_three_lines(tmp_path: Path, content: str) -> None:
    """NaN is not JSON; a truncated file says where it ends; what no float or text can hold is not read."""
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not valid JSON"):
        read_json(path)
    with pytest.raises(InputError, match="not a JSON document"):
        document_of(content, "plan.json", version=1, command="plan --json")


def test_a_pair_of_surrogates_is_one_letter(tmp_path: Path) -> None:
    """JSON writes letters beyond the first plane as two escapes."""
    (tmp_path / "config.json").write_text('"\\ud83d\\ude00"')
    assert read_json(tmp_path / "config.json") == "\N{GRINNING FACE}"


@pytest.mark.parametrize("key", ["a." * 20_000 + "a = 1", "[" + "a." * 20_000 + "a]"], ids=["key", "header"])
def test_a_key_of_many_parts_is_refused_before_the_parser_squares_it(tmp_path: Path, key: str) -> None:
    """40 kB of dots took the parser eight seconds, and twice as many four times that."""
    path = tmp_path / "cluster.toml"
    path.write_text(f"ok = 1\n{key}\n")
    begun = time.process_time()
    with pytest.raises(InputError, match="not valid TOML") as caught:
        read_toml(path)
    assert "line 2" in caught.value.cause
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    "data", [{"parts": [0] * 200_000}, {f"k{i}": 0 for i in range(200_000)}], ids=["list", "keys"]
)
def test_a_file_of_mistakes_is_answered_with_the_first_few(data: dict[str, object]) -> None:
    """Hundreds of thousands of wrong entries took gigabytes, and every unknown key a search for its like."""
    begun = time.process_time()
    found = cause({"name": "x", **data})
    assert found.startswith("many problems")
    assert found.count(";") < MOST_MISTAKES
    assert time.process_time() - begun < 2
    assert f"more than {MOST_KEYS:,}" in cause(
        {"name": "x", "rates": dict.fromkeys(map(str, range(MOST_KEYS + 1)), 1)}
    )


def test_a_long_value_is_repeated_in_part() -> None:
    """Three lines stay three lines of reading."""
    assert len(cause({"name": ["x" * 10**6]})) < 200
    assert len(cause({"name": "x", "x" * 10**6: 1})) < 200


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A device has no end, a pipe without a writer never answers, and neither has a size that tells."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path in (Path("/dev/zero"), Path("/dev/full"), tmp_path / "pipe", tmp_path / "socket"):
            with pytest.raises(InputError, match="is not a regular file"):
                read_text(path)


@pytest.mark.parametrize(("read", "most"), [(read_json, MAX_JSON_BYTES), (read_toml, MAX_TOML_BYTES)])
def test_what_is_parsed_may_be_smaller_than_what_is_read(
    tmp_path: Path, read: Callable[[Path], object], most: int
) -> None:
    """A parsed file takes many times its size of memory."""
    path = tmp_path / "large"
    path.write_text(" " * (most + 1))
    with pytest.raises(InputError, match="too large"):
        read(path)


def test_a_path_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, a directory, too large, impossible: each has its own sentence."""
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    for path, said in (
        (tmp_path / "none.toml", "does not exist"),
        (tmp_path, "is a directory"),
        (large, "is too large"),
        (tmp_path / ("x" * 300), "cannot be read"),
        ("nul\0.toml", "cannot be read"),
    ):
        with pytest.raises(InputError, match=said):
            read_toml(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser reads everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """A file without read permission is reported as such."""
    path = tmp_path / "secret.toml"
    path.write_text("a = 1")
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be read"):
        read_toml(path)
