"""Makefiles as scripts: their variables, and the commands of their targets, each on its line."""

from __future__ import annotations

import re

_RULE = re.compile(r"^[A-Za-z.][\w./ -]*:(?!=)[^\n=]*\n(?:#[^\n]*\n)*\t", re.MULTILINE)
"""A target, its prerequisites, and the first line of its recipe."""
_ASSIGNED = re.compile(r"(?:export\s+|override\s+)?([A-Za-z_]\w*)\s*(\?|:{1,3}|\+)?=\s*(.*)")
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)")


def is_makefile(text: str) -> bool:
    r"""Whether a text has a target with a recipe.

    >>> is_makefile("run: data\n\ttorchrun train.py\n"), is_makefile("run:\n  torchrun train.py\n")
    (True, False)
    """
    return _RULE.search(text) is not None


def script_of_makefile(text: str) -> str:
    r"""The same lines as a shell has them, so that what is read of one stands where it stood.

    Conditions of make are passed over: where two branches set a variable, the last does.

    >>> script_of_makefile("TP ?= 8\nrun:\n\t@torchrun a.py --tp $(TP) --log $$HOME\n")
    'TP=${TP:-"8"}\n\ntorchrun a.py --tp ${TP} --log $HOME\n'
    """
    lines: list[str] = []
    goes_on = False
    for line in text.split("\n"):
        plain = _REFERENCE.sub(r"${\1}", line).replace("$$", "$")
        assigned = _ASSIGNED.match(plain)
        if goes_on:
            lines.append(plain.lstrip("\t"))
        elif line.startswith("\t"):
            lines.append(plain.lstrip("\t").lstrip("@-+"))
        elif assigned is not None:
            lines.append(_set(*assigned.groups()))
        else:
            lines.append("")  # a target, a comment, a condition
        goes_on = line.endswith("\\") and bool(lines[-1])
    return "\n".join(lines)


def _set(name: str, how: str | None, value: str) -> str:
    """An assignment of make as a shell's; a value that goes on has its quote closed where the line ends."""
    if value.endswith("\\"):
        return f"{name}={value}"
    text = value.partition(" #")[0].rstrip().replace('"', '\\"')
    if how == "?":
        return f'{name}=${{{name}:-"{text}"}}'
    return f'{name}="${{{name}}} {text}"' if how == "+" else f'{name}="{text}"'
