"""How help is laid out: what the command does, examples, then its flags under headings, no line over 80.

A flag's heading is declared with the flag (`app.flags.sections`). Flags that few questions need are named in
one paragraph; `--help --full` explains them, too.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from app.flags.sections import OUTPUT, split

WIDTH: Final = 80
_WIDEST_NAME: Final = 27
"""Characters of a flag with its values; a wider one has a line of its own."""


def command_help(name: str, command: Any, context: Any, *, full: bool) -> str:
    """The whole help of one command.

    Args:
        name: As it is typed behind `plan`.
        command: The command as typer built it; its docstring is its help.
        context: Of its call.
        full: Also explain the flags that few questions need.
    """
    from app.flags.examples import EXAMPLES

    parameters = command.get_params(context)
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    usage = " ".join((f"Usage: plan {name}", *(argument_name(each) for each in arguments), "[OPTIONS]"))
    blocks = [[usage], [*paragraphs(command.help or "")], ["Examples:", *(f"  {x}" for x in EXAMPLES[name])]]
    if arguments:
        rows = [(argument_name(each).strip("[]"), each.help or "") for each in arguments]
        blocks.append(["Arguments:", *columns(rows)])
    sections: dict[str, list[tuple[str, str]]] = {}
    folded: list[str] = []
    for each in parameters:
        if each.param_type_name != "option" or each.hidden:
            continue
        section, is_further = split(getattr(each, "rich_help_panel", None) or _OF_HELP.get(each.name))
        if is_further and not full:
            folded.append(each.opts[0])
        else:
            sections.setdefault(section, []).append((option_name(each, full=full), option_text(each)))
    last = sections.pop(OUTPUT, None)
    for section, rows in (*sections.items(), *([(OUTPUT, last)] if last else [])):
        blocks.append([f"{section}:", *columns(rows)])
    if folded:
        text = f"More, which plan {name} --help --full explains: {', '.join(folded)}"
        blocks.append(textwrap.wrap(text, WIDTH, break_on_hyphens=False, break_long_words=False))
    return "\n\n".join("\n".join(block) for block in blocks)


_OF_HELP: Final[Mapping[str, str]] = {"help": OUTPUT}


def program_help(
    about: str, examples: Sequence[str], groups: Mapping[str, Mapping[str, str]], rest: str
) -> str:
    """The help of the program: what it does, examples, its commands in groups."""
    widest = max(len(name) for commands in groups.values() for name in commands)
    lists = [
        [f"{group}:", *(f"  {name:<{widest}}  {text}" for name, text in commands.items())]
        for group, commands in groups.items()
    ]
    blocks = [
        ["Usage: plan [COMMAND] [OPTIONS]"],
        [*paragraphs(about)],
        [*examples],
        *lists,
        [*paragraphs(rest)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def paragraphs(text: str) -> Iterator[str]:
    """Lines of a docstring, wrapped; paragraphs stay apart."""
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    for number, part in enumerate(parts):
        if number:
            yield ""
        yield from textwrap.wrap(
            part,
            WIDTH,
            initial_indent="  ",
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )


def argument_name(argument: Any) -> str:
    """An argument as usage has it: in brackets where it may be left out."""
    name: str = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def option_name(option: Any, *, full: bool) -> str:
    """A flag with the value that it takes; of several long forms the shortest, unless in full."""
    brief, long = (
        [flag for flag in option.opts if len(flag) == 2],
        [flag for flag in option.opts if len(flag) > 2],
    )
    text = ", ".join((*brief, *(long if full else [min(long, key=len)])))
    if option.secondary_opts:
        return f"{text}/{option.secondary_opts[0]}"
    return text if option.is_flag or option.count else f"{text} {option.metavar or _value_name(option)}"


def _value_name(option: Any) -> str:
    """What stands for the value of a flag that declares no name of it."""
    kind = getattr(getattr(option, "type_descriptor", None), "annotation", str)
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "VALUE")


def option_text(option: Any) -> str:
    """The text of a flag, with its default where it is a value of its own and the text does not say it."""
    text = option.help or ("Show this help." if option.name == "help" else "")
    if option.required:
        return f"{text} Required."
    default = option.default
    is_value = default not in (None, False, True) and not callable(default)
    return f"{text} Default: {default}." if is_value and "efault" not in text else text


def columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Names on the left, texts beside them, wrapped."""
    names = [len(name) for name, _ in rows if len(name) <= _WIDEST_NAME]
    start = 2 + max(names, default=_WIDEST_NAME) + 2
    for name, text in rows:
        lines = textwrap.wrap(text, WIDTH - start, break_on_hyphens=False, break_long_words=False) or [""]
        if len(name) + 4 > start:
            yield f"  {name}"
        else:
            yield f"  {name:<{start - 4}}  {lines.pop(0)}".rstrip()
        yield from (" " * start + line for line in lines)
