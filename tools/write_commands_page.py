"""Write docs/reference/commands.md from the parsers: `python tools/write_commands_page.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from app.flags.examples import EXAMPLES
from app.flags.help import argument_name, option_name, option_text
from app.flags.program import GROUPS, loaded, parameters_of
from app.flags.sections import OUTPUT, split

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"
HEAD: Final = """\
# Commands

Every command with its arguments and flags, written from the parsers by `tools/write_commands_page.py`. A test
holds the page to them. `plan COMMAND --help` says the same at a terminal; `plan [FLAGS]` is
`plan train [FLAGS]`.
"""


def page() -> str:
    """The whole page."""
    blocks = [HEAD.rstrip("\n")]
    for group, commands in GROUPS.items():
        blocks.append(f"## {group}")
        for name, summary in commands.items():
            blocks += section(name, summary)
    return "\n\n".join(blocks) + "\n"


def section(name: str, summary: str) -> Iterator[str]:
    """A command: what it does, examples, its arguments and flags."""
    parameters = [each for each in parameters_of(name) if not getattr(each, "hidden", False)]
    arguments = [each for each in parameters if each.param_type_name == "argument"]
    yield f"### plan {name}"
    yield cell(inspect.getdoc(loaded(name)) or summary)
    yield "\n".join(["```bash", *EXAMPLES[name], "```"])
    rows = [(f"`{argument_name(each).strip('[]')}`", "argument", each.help or "") for each in arguments]
    rows += [
        (f"`{option_name(each, full=True)}`", heading(each), option_text(each))
        for each in parameters
        if each.param_type_name == "option"
    ]
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    yield "\n".join(["| name | of | means |", "|---|---|---|", *lines])


def heading(option: Any) -> str:
    """What a flag is about."""
    return split(getattr(option, "rich_help_panel", None) or OUTPUT)[0].lower()


def cell(text: str) -> str:
    r"""Text on one line, with what a table would read as its own escaped.

    >>> cell("a|b\n  c")
    'a\\|b c'
    """
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
