"""Commands whose flags are read as they are, where there is nothing to convert.

Typer converts values with pydantic, which takes a tenth of a second to import and to prepare: as long as the
whole of `plan --help`. A flag that was not given, and text, need no conversion.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    """A command that leaves to typer only what has to be converted or refused."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its flags."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """The program itself, as plain as its commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Its flags."""
        return _plain(super().get_params(ctx))


def _plain(parameters: list[Any]) -> list[Any]:
    """The same flags, which convert what they are given only where they must."""
    for parameter in parameters:
        parameter.process_value = partial(_processed, parameter)
    return parameters


def _processed(parameter: Any, context: Any, value: Any) -> Any:
    """The value as typer returns it."""
    if not _is_plain(parameter, value):
        return type(parameter).process_value(parameter, context, value)
    if parameter.multiple or parameter.nargs == -1:
        value = [*value] if value else ()
    return parameter.callback(context, parameter, value) if parameter.callback else value


def _is_plain(parameter: Any, value: Any) -> bool:
    """Whether conversion changes nothing; texts beyond ASCII are left to typer, which may refuse them."""
    if value is None:
        return not parameter.required
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if annotation is str:
        return isinstance(value, str) and value.isascii()
    listed = annotation == list[str] and isinstance(value, list | tuple) and bool(value)
    return listed and all(isinstance(each, str) and each.isascii() for each in value)
