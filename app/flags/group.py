"""A group of command-line flags, declared once and received by a command as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Any, Final

NONE_LEFT: Final[Mapping[str, Any]] = MappingProxyType({})


def gathers(
    options: Mapping[str, Any],
    build: Callable[..., Any],
    *,
    defaults: Mapping[str, Any] = NONE_LEFT,
    after: str = "",
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command these flags; it receives `build(**flags)` as its first argument.

    The command's own arguments and options stay as they are; typer sees all of them in one signature. A flag
    that may be repeated arrives as a tuple.

    Args:
        options: The annotated option of every flag, in the order of the help.
        build: Called with what was written; None was left to us.
        defaults: What a flag is that nobody gives, None for those that are not in it.
        after: The command's own flag that they follow in the help; before all of them where there is none.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        def called(**given: Any) -> int:
            group = {name: given.pop(name, None) for name in options}
            group = {
                name: tuple(value) if isinstance(value, list) else value for name, value in group.items()
            }
            return command(build(**group), **given)

        taken = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=option)
            for name, option in options.items()
        ]
        _, *declared = signature(command, eval_str=True).parameters.values()
        first = [parameter for parameter in declared if parameter.kind is not Parameter.KEYWORD_ONLY]
        before = next((n for n, flag in enumerate(declared, 1) if flag.name == after), len(first))
        seen = [*declared[:before], *taken, *declared[before:]]
        called.__doc__, called.__name__ = command.__doc__, command.__name__
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in seen}
        called.__signature__ = Signature(seen)  # type: ignore[attr-defined]  # what typer reads
        return called

    return decorate
