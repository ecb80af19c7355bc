"""Commands whose flags are read as they are, where there is nothing to convert.

Typer converts values with pydantic, which takes a tenth of a second to import and to prepare: as long as the
whole of `plan --help`. A flag that was not given, and text, need no conversion.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

FULL: Final = "--full"
"""Beside `--help` every flag is explained; of an answer, all that it says."""


class PlainCommand(TyperCommand):
    """A command that leaves to typer only what has to be converted or refused."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read its words; beside `--help`, `--full` asks for the whole of it."""
        if "--help" in args and FULL in args:
            ctx.meta[FULL] = True
            args = [word for word in args if word != FULL]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Its help, in groups."""
        from app.flags.help import command_help

        formatter.write(command_help(self.name or "", self, ctx, full=FULL in ctx.meta) + "\n")

    def get_params(self, ctx: Any) -> list[Any]:
        """Its flags."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """The program itself, as plain as its commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as click calls it
        """What it does, and its commands in groups."""
        formatter.write((self.help or "") + "\n")

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
