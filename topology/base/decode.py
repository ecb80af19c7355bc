"""Texts become typed values: TOML and JSON, and every mistake is listed with its path.

A number must fit a float, text must be Unicode, and a list of a million mistakes is answered with the first
few.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from topology.base.converter import MOST_MISTAKES, converter
from topology.base.errors import InputError, shortened
from topology.base.files import LONGEST_INTEGER, read_text
from topology.base.units import MIB

T = TypeVar("T")

MAX_JSON_BYTES = 16 * MIB
"""The plan of a million GPUs, one number for each rank, has about 10 MB."""
MAX_TOML_BYTES = MIB
"""A thousand named switches; the parser, written in Python, reads about 1 MB a second."""
MOST_LINES = 1_000_000
"""Lines of a dump; the fabric of a hundred thousand GPUs has about 600,000."""
MOST_KEY_PARTS = 100
"""Dots on one line of TOML; the parser takes the square of a dotted key's parts."""


def structure(data: object, as_type: type[T], where: str) -> T:
    """Return `data` (from TOML or JSON) as `as_type`; unknown keys and wrong types are all reported.

    Args:
        data: plain dicts, lists, strings, numbers.
        as_type: a dataclass of the project.
        where: what is being read, for the message: a file name or "the request".
    """
    from cattrs import BaseValidationError

    try:
        return converter().structure(data, as_type)
    except (BaseValidationError, ValueError, TypeError, KeyError, OverflowError, InputError) as error:
        problems = problems_of(error)
        number = f"{len(problems)} problems" if len(problems) < MOST_MISTAKES else "many problems"
        cause = problems[0] if len(problems) == 1 else f"{number}: " + "; ".join(problems[:MOST_MISTAKES])
        fix = "correct these keys and values; numbers are SI base units or text with a unit"
        raise InputError(f"{where} does not describe a {_in_words(as_type)}", cause, fix) from None


SERVING_COMMAND = "plan serve --json"
_OF_SERVING = ("request", "mode", "decode")
"""Keys of a document that `SERVING_COMMAND` writes, and no other command."""


def is_serving_document(data: object) -> bool:
    """Whether a JSON document is a plan of servers."""
    return isinstance(data, dict) and data.keys() >= {*_OF_SERVING}


def document_of(
    text: str,
    where: str,
    *,
    version: int,
    command: str,
    upgrades: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """Read a JSON document that one of our commands wrote, in the version that is read here.

    Args:
        text: the document.
        where: what is being read, for the message.
        version: its `schema_version`.
        command: what writes such documents, as `plan --json`.
        upgrades: what turns a document of an earlier version into one of this version.
    """
    try:
        data = json_value(text)
    except (ValueError, RecursionError) as broken:
        fix = f"pass a file written by `{command}`"
        raise InputError(f"{where} is not a JSON document", str(broken), fix) from broken
    document = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(data, dict) or document is None:
        raise InputError(
            what=f"{where} was not written by `{command}`",
            cause="it has no schema_version",
            fix=f"pass a file written by `{command}`",
        )
    if command != SERVING_COMMAND and is_serving_document(data):
        raise InputError(
            what=f"{where} is a plan of plan serve, not of training",
            cause=f"it has {', '.join(_OF_SERVING)}, which `{SERVING_COMMAND}` writes",
            fix=f"see what it does under a load: `plan serve --predict {where}`",
        )
    if isinstance(document, int) and document in (upgrades or {}):
        return {**(upgrades or {})[document](data), "schema_version": version}
    if document != version:
        raise InputError(
            what=f"{where} cannot be read by this version",
            cause=f"schema_version is {document!r}, expected {version}",
            fix=f"write it again with `{command}`",
        )
    return data


def _in_words(kind: type) -> str:
    """Name of a type as its users know it.

    >>> class NodeSpec: pass
    >>> class ServingPlan: pass
    >>> _in_words(NodeSpec), _in_words(ServingPlan)
    ('node', 'serving plan')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__.removesuffix("Spec")).lower()


def unstructure(value: object) -> Any:
    """Return a typed value as plain dicts, lists, strings and numbers."""
    return converter().unstructure(value)


def problems_of(error: BaseException, path: str = "") -> list[str]:
    """Return every mistake in a decoding error, each with the path to it."""
    from cattrs import BaseValidationError, ForbiddenExtraKeysError

    if isinstance(error, BaseValidationError):
        return [line for sub in error.exceptions for line in problems_of(sub, path + _step(sub))]
    at = path.lstrip(".") or "top level"
    if isinstance(error, ForbiddenExtraKeysError):
        prefix = f"{path.lstrip('.')}." if path else ""
        known = _field_names(error.cl)
        extra = sorted(error.extra_fields)[:MOST_MISTAKES]
        return [f"unknown key {prefix}{shortened(key)}{_did_you_mean(key, known)}" for key in extra]
    if isinstance(error, KeyError):
        return [f"missing key {path.lstrip('.') or error.args[0]}"]
    if isinstance(error, InputError):
        return [f"{at}: {error.what}: {error.cause}"]
    return [f"{at}: {error}"]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    return toml_value(read_text(path, MAX_TOML_BYTES), str(path))


def toml_value(text: str, where: str) -> dict[str, Any]:
    """Return the content of a TOML text."""
    dotted = next((n for n, line in enumerate(text.split("\n"), 1) if line.count(".") > MOST_KEY_PARTS), 0)
    if dotted:
        cause = f"line {dotted} has more than {MOST_KEY_PARTS} dots"
        raise InputError(f"{where} is not valid TOML", cause, "write one table or value a line")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"{where} is not valid TOML", str(error), "correct the syntax at that line"
        ) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise InputError(f"{where} is not valid TOML", str(error), "write a smaller number") from None


def toml_tables(text: str) -> dict[str, str]:
    r"""Return the texts of the tables of a TOML text by their headers: one can be parsed without the others.

    A line that starts with a bracket is taken for a header, so no value over several lines may have one.

    >>> toml_tables('[a]\nx = 1\n[b."c d"]\ny = 2\n')
    {'a': '[a]\nx = 1\n', 'b."c d"': '[b."c d"]\ny = 2\n'}
    """
    tables = re.split(r"(?m)^(?=\[)", text)[1:]
    return {table[1 : table.index("]")]: table for table in tables}


def read_json(path: str | Path, *, named_constants: bool = False) -> Any:
    """Return the content of a JSON file; NaN and infinities are refused, or kept as their names, no numbers.

    Python writes ``Infinity``, which JSON has not: published configurations of Mamba-2 hold one.
    """
    text = read_text(path, MAX_JSON_BYTES)
    try:
        return json_value(text, named_constants=named_constants)
    except (ValueError, RecursionError) as error:
        fix = "the file may be truncated: correct it at that place"
        raise InputError(f"{path} is not valid JSON", str(error), fix) from None


def json_value(text: str, *, named_constants: bool = False) -> Any:
    """Return the value of a JSON text.

    Raises ValueError for what is not JSON, a number that no float holds, or half of a surrogate pair;
    RecursionError for what is nested too deeply.
    """
    constant = str if named_constants else _refuse_constant
    value = json.loads(text, parse_constant=constant, parse_int=_whole, parse_float=_finite)
    if _SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def lines_of(text: str, where: str) -> Iterator[str]:
    """Yield the lines of a dump that are not empty, one at a time; refuse more than any tool writes."""
    for number, line in enumerate(re.finditer(r"[^\r\n]+", text)):
        if number == MOST_LINES:
            fix = "give the unchanged output of the tool"
            raise InputError(f"{where} is too long", f"it has more than {MOST_LINES:,} lines", fix)
        yield line.group()


def as_text(name: str) -> str:
    r"""Return the name of a file as text that can be written: a name may hold bytes that are no UTF-8.

    >>> as_text("caf\udce9.toml")
    'caf?.toml'
    """
    return name.encode("utf-8", "replace").decode("utf-8")


def _step(error: BaseException) -> str:
    """Return the last step of the path to an error, from the notes the converter leaves on it."""
    for note in getattr(error, "__notes__", ()):
        name = getattr(note, "name", None)
        if name is not None:
            return f".{name}"
        index = getattr(note, "index", None)
        if index is not None:
            return f"[{index}]" if isinstance(index, int) else f".{index}"
    return ""


def _field_names(as_type: object) -> list[str]:
    return list(getattr(as_type, "__dataclass_fields__", {}))


def _did_you_mean(key: str, known: list[str]) -> str:
    from topology.base.names import suggest

    close = suggest(key, known, count=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number JSON allows")


def _whole(text: str) -> int:
    """Return an integer of JSON that a float can hold too."""
    if len(text) > LONGEST_INTEGER:
        raise ValueError(f"an integer of {len(text)} digits is larger than any number that is computed with")
    return int(text)


def _finite(text: str) -> float:
    """Return a number of JSON; 1e999 would be infinite."""
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{shortened(text)} is larger than any number that is computed with")
    return value
