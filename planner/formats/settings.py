"""Settings as a file has them: a dotted name, a value, the line, and how it came to be known."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from topology.base.names import YES_NO

Scalar: TypeAlias = str | int | float | bool | None

NOT_KNOWN = "\x00"
"""The value of a setting that only a run knows."""
MOST_SETTINGS = 5_000
"""Of one file; the longest configuration published has some five hundred."""
LONGEST_KEPT: Final = 200
"""Characters of a name whose spelling is kept: hostile files alone have longer ones."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DEFAULT = re.compile(r"\$\{(?:oc\.env:)?([A-Za-z_]\w*)[:,]-?\s*([^${}]*)\}")
_NUMBER = re.compile(r"[-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting.

    Attributes:
        name: As written, dots between tables.
        value: Text, number or truth; a list as the text of its parts with commas.
        line: Where it stands.
        how: What was taken for granted to know it; empty where it is plainly written.
        more: Words after the value, of an option that may have several.
        file: Where it stands, once files are put together.
        is_override: Whether it is written as a word ``name=value`` behind a command, as Hydra has it.
    """

    name: str
    value: Scalar
    line: int
    how: str = ""
    more: tuple[str, ...] = ()
    file: str = ""
    is_override: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        """Its name in one spelling: parts in small letters with underscores.

        >>> Setting(name="vllmConfig.tensorParallelSize", value=1, line=1).path
        ('vllm_config', 'tensor_parallel_size')
        """
        return _kept_path(self.name) if len(self.name) <= LONGEST_KEPT else _path(self.name)


def _path(name: str) -> tuple[str, ...]:
    """Parts of a name in one spelling."""
    return tuple(snake_case(part) for part in name.split("."))


_kept_path = functools.lru_cache(maxsize=4096)(_path)
"""The same, kept: an audit asks for the names of its files thousands of times."""


def snake_case(part: str) -> str:
    """One part of a name, in small letters with underscores."""
    part = part.strip().lstrip("-+~")
    return _CAMEL.sub("_", part).replace("-", "_").lower() if not part.isupper() else part.lower()


def number(value: Scalar) -> float | None:
    """A value as a number, None if it is none.

    >>> number("9_765_625"), number("8"), number("auto"), number(True)
    (9765625.0, 8.0, None, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        text = value.strip().strip("'\"")
        if not _NUMBER.fullmatch(text) or len(text) > 40:
            return None
        value = float(text.replace("_", ""))
    return float(value) if abs(value) < 1e30 else None


def whole_or_none(value: Scalar) -> int | None:
    """A value as a whole number of a size that exists, None if it is none."""
    result = number(value)
    return int(result) if result is not None and result == result // 1 and abs(result) < 1e15 else None


def truth_of(value: Scalar) -> bool | None:
    """A value as yes or no, None if it is neither.

    >>> truth_of("True"), truth_of(0), truth_of("auto")
    (True, False, None)
    """
    return YES_NO.get(str(value).strip().strip("'\"").lower())


def with_defaults(settings: Iterable[Setting]) -> list[Setting]:
    """Settings whose value has variables with a default, with their defaults.

    >>> with_defaults([Setting(name="tp", value="${PRIMUS_TP:1}", line=3)])[0].value
    '1'
    >>> with_defaults([Setting(name="model", value="${PRIMUS_MODEL:kimi_k2}.yaml", line=4)])[0].value
    'kimi_k2.yaml'
    """
    result: list[Setting] = []
    for setting in settings:
        named = list(_DEFAULT.finditer(setting.value)) if isinstance(setting.value, str) else []
        if named:
            value = _DEFAULT.sub(r"\2", str(setting.value).strip())
            how = ", ".join(f"{match[1]} is not set, so its default {match[2]} holds" for match in named)
            setting = Setting(name=setting.name, value=value, line=setting.line, how=how)  # noqa: PLW2901
        result.append(setting)
    return result
