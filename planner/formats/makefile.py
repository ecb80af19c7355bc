"""Makefiles as scripts: their variables, and the commands of their targets, each on its line."""

from __future__ import annotations

import re

_NAME = re.compile(r"(?:GNU)?makefile(?:\.\w+)?|.*\.(?:mk|mak|make)", re.IGNORECASE)
_RECIPE = re.compile(r"^[A-Za-z.][\w./ -]*:(?!=)[^\n=]*\n(?:#[^\n]*\n)*\t", re.MULTILINE)
"""A target, its prerequisites, and the first line of its recipe."""
_OF_MAKE = re.compile(
    r"\s*$|\t|[ ]*(?:#"
    r"|-?include\b|sinclude\b|vpath\b|(?:un)?(?:define|export)\b|override\b|private\b"
    r"|(?:ifeq|ifneq|ifdef|ifndef|else|endif|endef)\b"
    r"|[\w.-]+\s*(?:\?|:{1,3}|\+|!)?="
    r"|(?!-)[\w.%/$(){}@~-]+(?:\s+(?!-)[\w.%/$(){}@~-]+)*\s*&?::?(?:\s|;|$))"
)
"""A line that make takes: blank, of a recipe, a comment, a directive, an assignment, a rule."""
_DEFINED = re.compile(r"^define\b.*?^endef\b", re.MULTILINE | re.DOTALL)
"""A variable of several lines, which may be any text."""
_ASSIGNED = re.compile(r"(?:export\s+|override\s+)?([A-Za-z_]\w*)\s*(\?|:{1,3}|\+)?=\s*(.*)")
_COMMENT = re.compile(r"(?:^|[ \t])#")
_REFERENCE = re.compile(r"\$\(([A-Za-z_]\w*)\)")


def is_named_makefile(name: str) -> bool:
    """Whether a file has a name that make looks for, or the ending of a part of one.

    >>> is_named_makefile("jobs/GNUmakefile"), is_named_makefile("sizes.mk"), is_named_makefile("make.sh")
    (True, True, False)
    """
    return _NAME.fullmatch(name.replace("\\", "/").rpartition("/")[2]) is not None


def is_makefile(text: str, name: str = "") -> bool:
    r"""Whether a text is a makefile: by its name, else by a recipe and no line that make would refuse.

    >>> is_makefile("run: data\n\ttorchrun train.py\n"), is_makefile("run:\n  torchrun train.py\n")
    (True, False)
    >>> is_makefile("run: data \\\n  sizes\n\ttorchrun train.py\n")
    True
    >>> is_makefile("cat <<E\nUsage:\n\trun.sh\nE\ntorchrun a.py\n"), is_makefile("TP = 8\n", "Makefile")
    (False, True)
    """
    if is_named_makefile(name):
        return True
    first = text.partition("\n")[0]
    if first.startswith("#!"):
        return re.search(r"\bmake\b", first) is not None
    read = _DEFINED.sub("", text.replace("\\\n", " "))
    if "<<" in text or _RECIPE.search(read) is None:
        return False
    return all(_OF_MAKE.match(line) for line in read.split("\n"))


def script_of_makefile(text: str) -> str:
    r"""The same lines as a shell has them, so that what is read of one stands where it stood.

    Conditions of make are passed over: where two branches set a variable, the last does.

    >>> script_of_makefile("TP ?= 8\nrun:\n\t@torchrun a.py --tp $(TP) --log $$HOME\n")
    'TP=${TP:-"8"}\n\ntorchrun a.py --tp ${TP} --log $HOME\n'
    >>> print(script_of_makefile("ARGS = --tp 8 \\\n  --pp 2\n"), end="")
    ARGS="--tp 8 \
      --pp 2"
    """
    lines: list[str] = []
    written = _REFERENCE.sub(r"${\1}", text).replace("$$", "$").split("\n")
    while written:
        count = next((at for at, line in enumerate(written, 1) if not line.endswith("\\")), len(written))
        whole, written = written[:count], written[count:]
        assigned = _ASSIGNED.match(whole[0].lstrip(" "))
        if whole[0].startswith("\t"):
            lines += [whole[0].lstrip("\t").lstrip("@-+"), *(line.lstrip("\t") for line in whole[1:])]
        elif assigned is not None:
            name, how, value = assigned.groups()
            lines += _set(name, how, "\n".join([value, *whole[1:]])).split("\n")
        else:
            lines += [""] * count  # a target, a comment, a condition
    return "\n".join(lines)


def _set(name: str, how: str | None, value: str) -> str:
    """An assignment of make as a shell's, on as many lines; a comment runs to the end of the last."""
    stated = _COMMENT.split(value, maxsplit=1)[0]
    text = stated.rstrip(" \t\r\\\n").replace('"', '\\"')
    after = "\n" * (value.count("\n") - text.count("\n"))
    if how == "?":
        return f'{name}=${{{name}:-"{text}"}}{after}'
    return (f'{name}="${{{name}}} {text}"' if how == "+" else f'{name}="{text}"') + after
