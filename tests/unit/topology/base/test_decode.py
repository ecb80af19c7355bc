"""The one door for files: strict, and complete about what is wrong."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from topology.base.decode import MAX_FILE_BYTES, read_json, read_toml, structure, unstructure
from topology.base.errors import InputError


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


@pytest.mark.parametrize("content", ["{", '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, "9" * 5000])
def test_bad_json_is_answered_in_three_lines(tmp_path: Path, content: str) -> None:
    """NaN is not JSON; a truncated file says where it ends."""
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not valid JSON"):
        read_json(path)


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
