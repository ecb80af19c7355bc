"""How a user says an option of a run: its flag, what it means, and which values it may have.

An option is declared once, as a field with a `RunOption`. Flags of `plan run`, keys of `settings.toml`,
what a resumed run may change and which numbers are refused are read from there.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final

_KEY: Final = "option"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Numbers that a setting may be; each bound is None for none.

    >>> Range(least=0, below=1).words(), Range(above=0).words(), Range(least=0).words()
    ('0 to below 1', 'above 0', '0 or more')
    >>> Range(above=0).holds(0.0), Range(least=0, below=1).holds(0.5)
    (False, True)
    """

    least: float | None = None
    above: float | None = None
    below: float | None = None
    remark: str = ""

    def holds(self, value: float) -> bool:
        """Whether a number is one of them; none that is infinite or not a number is."""
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def words(self) -> str:
        """The range, as advice gives it."""
        first = f"above {self.above:g}" if self.above is not None else f"{self.least or 0:g} or more"
        if self.below is not None:
            first = f"{self.least or 0:g} to below {self.below:g}"
        return first + (f"; {self.remark}" if self.remark else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOption:
    """A setting as a user says it.

    Attributes:
        flag: Of `plan run`; its name is the setting's key in `settings.toml`.
        help: One sentence.
        group: Heading of the help under which it stands.
        metavar: What stands for a value in the help, empty for that of its type.
        least: Smallest number that the command line takes, None for any.
        range: Numbers that a run can use, None where all are.
        asked: Type and default in which a user gives it, None for those of the field.
        resumable: Whether a run that goes on may have another value than it began with; it is told.
        common: Whether most runs set it: the short help lists these alone.
    """

    flag: str
    help: str
    group: str
    metavar: str = ""
    least: float | None = None
    range: Range | None = None
    asked: tuple[Any, Any] | None = None
    resumable: bool = False
    common: bool = False

    @property
    def key(self) -> str:
        """The name in a file of settings, and of the parameter of `plan run`.

        >>> RunOption(flag="--preflight/--no-preflight", help="", group="").key
        'preflight'
        """
        return self.flag.partition("/")[0].removeprefix("--").replace("-", "_")


def says(
    flag: str,
    help: str,  # noqa: A002 - the word of every command-line library
    group: str,
    **more: Any,
) -> Mapping[str, RunOption]:
    """The metadata of a field that a user may set."""
    return {_KEY: RunOption(flag=flag, help=help, group=group, **more)}


def options_of(*records: type) -> dict[str, RunOption]:
    """Every setting of some records of settings by the name of its field, in the order of their fields."""
    return {
        field.name: field.metadata[_KEY]
        for record in records
        for field in fields(record)
        if _KEY in field.metadata
    }


def asked_form(record: type, name: str) -> tuple[Any, Any]:
    """Type and default of one setting as a user gives it."""
    field: Field[Any] = next(field for field in fields(record) if field.name == name)
    option: RunOption = field.metadata[_KEY]
    if option.asked is not None:
        return option.asked
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return typing.get_type_hints(record)[name], default
