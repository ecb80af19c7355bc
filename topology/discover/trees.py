"""JSON and YAML dumps as plain dicts, lists and strings: nothing is constructed, no alias is followed.

YAML scalars stay text and JSON's keep their type; `word`, `small_whole` and `yes_no` read both.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topology.base.decode import MAX_JSON_BYTES, json_value
from topology.base.errors import InputError, shown
from topology.base.names import YES_NO
from topology.base.units import MIB

Tree = Any
"""A dict, a list, a string, or nothing."""
MOST_YAML = 4 * MIB
"""Characters; ten thousand hosts of a Slurm topology take half of one."""
MOST_NESTED = 40
MOST_VALUES = 1_000_000


def trees_of(text: str, where: str) -> list[Tree]:
    """Return the documents of a JSON or YAML text."""
    if len(text) <= MAX_JSON_BYTES and text.lstrip()[:1] in ("{", "["):
        try:
            return [json_value(text)]
        except (ValueError, RecursionError) as error:
            if len(text) > MIB // 8:  # YAML's flow form reads what Python prints, which is never long
                raise _unreadable(where, "JSON", str(error)) from None
    return _yaml_documents(text, where)


def _yaml_documents(text: str, where: str) -> list[Tree]:
    import yaml

    if len(text) > MOST_YAML:
        raise _unreadable(where, "YAML", f"it has more than {MOST_YAML:,} characters")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _built(yaml.parse(text, Loader=loader), where)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _unreadable(where, "YAML", " ".join(str(error).split())[:200]) from None


def _built(events: Iterator[Any], where: str) -> list[Tree]:
    """Build documents from events; a key that is written twice is refused."""
    documents: list[Tree] = []
    stack: list[tuple[Tree, list[str]]] = []
    for number, event in enumerate(events):
        kind = type(event).__name__
        if number > MOST_VALUES or len(stack) > MOST_NESTED:
            raise _unreadable(where, "YAML", "it is nested too deeply, or too long")
        if kind == "AliasEvent":
            raise _unreadable(where, "YAML", f"it has an alias, *{event.anchor}")
        if kind in ("MappingEndEvent", "SequenceEndEvent"):
            stack.pop()
            continue
        if kind not in ("ScalarEvent", "MappingStartEvent", "SequenceStartEvent"):
            continue
        value: Tree = _scalar(event) if kind == "ScalarEvent" else {} if kind[0] == "M" else []
        _put(value, documents, stack, where)
        if kind != "ScalarEvent":
            stack.append((value, []))
    return documents


def _scalar(event: Any) -> str | None:
    """Return the text of a scalar; one that is left out, or a plain null, is nothing."""
    plain = event.style is None or event.style == ""
    return None if plain and event.value in ("", "~", "null") else str(event.value)


def _put(value: Tree, documents: list[Tree], stack: list[tuple[Tree, list[str]]], where: str) -> None:
    """Put a value where the stack stands."""
    if not stack:
        documents.append(value)
        return
    container, keys = stack[-1]
    if isinstance(container, list):
        container.append(value)
    elif not keys:
        if isinstance(value, dict | list):
            raise _unreadable(where, "YAML", "a key is a table or a list")
        keys.append(str(value))
    else:
        key = keys.pop()
        if key in container:
            raise _unreadable(where, "YAML", f"key {shown(key)} is written twice")
        container[key] = value


def table_in(value: Tree) -> Mapping[str, Tree]:
    """Return a value as a table, an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def tables_in(value: Tree) -> Sequence[Mapping[str, Tree]]:
    """Return the tables of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def word(value: Tree) -> str:
    """Return a scalar as text, "" for nothing and for what is no scalar."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).strip() if isinstance(value, str | int | float) else ""


def small_whole(value: Tree) -> int | None:
    """Return a small whole number, None where it is none."""
    text = word(value)
    text = text.removesuffix(".0")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def yes_no(value: Tree) -> bool | None:
    """Return a yes or no, None where it is neither."""
    return YES_NO.get(word(value).lower())


def _unreadable(where: str, form: str, cause: str) -> InputError:
    return InputError(f"{where} is no {form} that can be read", cause, "give the tool's unchanged output")
