"""Units of systemd: what a service starts, with its variables, as the lines of a script."""

from __future__ import annotations

import re

_LINE = re.compile(r"^[ \t]{0,40}(?P<key>ExecStart|Environment)=[ \t]{0,40}[-@:+!|]{0,3}(?P<value>.*)$")
_SECTION = re.compile(r"^\[Service\]", re.MULTILINE)
_STARTS = re.compile(r"^[ \t]{0,40}ExecStart=", re.MULTILINE)


def is_unit(text: str) -> bool:
    """Whether a text is a unit that starts something."""
    return _SECTION.search(text) is not None and _STARTS.search(text) is not None


def script_of_unit(text: str) -> str:
    r"""The same lines as a shell has them; what starts nothing is empty, and a line that goes on does so.

    >>> script_of_unit("[Service]\nEnvironment=TP=2\nExecStart=vllm serve a/b \\\n -tp $TP\nRestart=no\n")
    '\nexport TP=2\nvllm serve a/b \\\n -tp $TP\n\n'
    """
    lines, goes_on = [], False
    for line in text.split("\n"):
        match = _LINE.match(line)
        if goes_on:
            lines.append(line)
        elif match is None:
            lines.append("")
        else:
            lines.append(match["value"] if match["key"] == "ExecStart" else f"export {match['value']}")
        goes_on = line.endswith("\\") and (goes_on or match is not None)
    return "\n".join(lines)
