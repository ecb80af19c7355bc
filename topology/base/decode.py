"""The one door for files: TOML and JSON become typed values, and every mistake is listed with its path."""

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from topology.base.errors import InputError
from topology.base.units import MIB, parse_quantity

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")

MAX_FILE_BYTES = 64 * MIB
"""A description of a model, cluster or plan is far smaller; a larger file is the wrong file."""


def structure(data: object, as_type: type[T], where: str) -> T:
    """Return `data` (from TOML or JSON) as `as_type`; unknown keys and wrong types are all reported.

    Args:
        data: plain dicts, lists, strings, numbers.
        as_type: a dataclass of the project.
        where: what is being read, for the message: a file name or "the request".
    """
    from cattrs import BaseValidationError

    try:
        return _converter().structure(data, as_type)
    except (BaseValidationError, ValueError, TypeError, KeyError, InputError) as error:
        problems = problems_of(error)
        cause = problems[0] if len(problems) == 1 else f"{len(problems)} problems: " + "; ".join(problems)
        fix = "correct these keys and values; numbers are SI base units or text with a unit"
        raise InputError(f"{where} does not describe a {_in_words(as_type)}", cause, fix) from None


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
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as broken:
        fix = f"pass a file written by `{command}`"
        raise InputError(f"{where} is not a JSON document", str(broken), fix) from broken
    found = data.get("schema_version") if isinstance(data, dict) else None
    if not isinstance(data, dict) or found is None:
        raise InputError(
            what=f"{where} was not written by `{command}`",
            cause="it has no schema_version",
            fix=f"pass a file written by `{command}`",
        )
    if isinstance(found, int) and found in (upgrades or {}):
        return {**(upgrades or {})[found](data), "schema_version": version}
    if found != version:
        raise InputError(
            what=f"{where} cannot be read by this version",
            cause=f"schema_version is {found!r}, expected {version}",
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
    return _converter().unstructure(value)


def problems_of(error: BaseException, path: str = "") -> list[str]:
    """Return every mistake in a decoding error, each with the path to it."""
    from cattrs import BaseValidationError, ForbiddenExtraKeysError

    if isinstance(error, BaseValidationError):
        return [line for sub in error.exceptions for line in problems_of(sub, path + _step(sub))]
    at = path.lstrip(".") or "top level"
    if isinstance(error, ForbiddenExtraKeysError):
        prefix = f"{path.lstrip('.')}." if path else ""
        known = _field_names(error.cl)
        return [f"unknown key {prefix}{key}{_near(key, known)}" for key in sorted(error.extra_fields)]
    if isinstance(error, KeyError):
        return [f"missing key {path.lstrip('.') or error.args[0]}"]
    if isinstance(error, InputError):
        return [f"{at}: {error.what}"]
    return [f"{at}: {error}"]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML", str(error), "correct the syntax at that line") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise InputError(f"{path} is not valid TOML", str(error), "write a smaller number") from None


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file; NaN and infinities are refused."""
    text = read_text(path)
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        fix = "the file may be truncated: correct it at that place"
        raise InputError(f"{path} is not valid JSON", str(error), fix) from None


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file, or say in three lines why it cannot be read."""
    file = Path(path)
    try:
        if file.is_dir():
            raise InputError(f"{path} is a directory", "a file was expected", "name a file inside it")
        size = file.stat().st_size
        if size > MAX_FILE_BYTES:
            cause = f"it has {size} bytes, more than the {MAX_FILE_BYTES} such a description can have"
            raise InputError(f"{path} is too large", cause, "name the file that describes it")
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist", "no such file", "check the path") from None
    except UnicodeDecodeError as error:
        cause = f"byte {error.start} is not UTF-8"
        raise InputError(f"{path} is not a text file", cause, "save it as UTF-8") from None
    except (OSError, ValueError) as error:
        fix = "check the path and its permissions"
        raise InputError(f"{path} cannot be read", str(error), fix) from None


@lru_cache(maxsize=1)
def _converter() -> "Converter":
    """Return the strict converter: no extra keys, no silent rounding, only finite numbers."""
    from cattrs import Converter
    from cattrs.cols import homogenous_tuple_structure_factory
    from cattrs.gen import make_dict_structure_fn

    converter = Converter(forbid_extra_keys=True)
    for kind, check in _CHECKS.items():
        converter.register_structure_hook(kind, _ignoring_type(check))
        converter.register_structure_hook(kind | None, _ignoring_type(_or_none(check)))
    converter.register_structure_hook_factory(
        _is_list_like, lambda t, c: _only(list | tuple, "a list", homogenous_tuple_structure_factory(t, c))
    )
    converter.register_structure_hook_factory(
        is_dataclass,
        lambda t, c: _only(Mapping, "a table", make_dict_structure_fn(t, c, _cattrs_forbid_extra_keys=True)),
    )
    return converter


def _is_list_like(as_type: object) -> bool:
    return get_origin(as_type) is tuple and get_args(as_type)[1:] == (...,)


def _only(kinds: Any, name: str, hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a hook that refuses anything but `kinds`, so that text is never taken apart letter by letter."""

    def checked(value: Any, as_type: Any) -> Any:
        if not isinstance(value, kinds):
            raise TypeError(f"{value!r} is not {name}")
        return hook(value, as_type)

    return checked


def _or_none(check: Callable[[object], object]) -> Callable[[object], object]:
    return lambda value: None if value is None else check(value)


def _ignoring_type(check: Callable[[object], object]) -> Callable[[object, type], object]:
    return lambda value, _: check(value)


def _integer(value: object) -> int:
    """Return a whole number; 8.0 is one, 7.5, true and "8" are not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        raise TypeError(f"{value!r} is not a whole number")
    if abs(value) > 2**62:
        raise ValueError(f"{value!r} is too large")
    return int(value)


def _number(value: object) -> float:
    """Return a finite number; a string may carry a unit ("400 Gbit/s")."""
    if isinstance(value, str):
        return parse_quantity(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    if not math.isfinite(value) or abs(value) > 1e30:
        raise ValueError(f"{value!r} is not a finite number of sensible size")
    return float(value)


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


_CHECKS: Mapping[type, Callable[[object], object]] = {
    int: _integer,
    float: _number,
    str: _string,
    bool: _boolean,
}


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


def _near(key: str, known: list[str]) -> str:
    from topology.base.names import suggest

    close = suggest(key, known, count=1)
    return f" (did you mean {close[0]}?)" if close else ""


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number JSON allows")
