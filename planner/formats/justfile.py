"""Files of the command runner just as scripts: their variables, and the lines of their recipes."""

from __future__ import annotations

import re

_NAME = re.compile(r"\.?justfile|.*\.just", re.IGNORECASE)
_ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_][\w-]*)\s*:=\s*(.*)")
_OF_ENVIRONMENT = re.compile(
    r"env(?:_var_or_default|_var)?\(\s*['\"](\w+)['\"]\s*(?:,\s*['\"]([^'\"]*)['\"]\s*)?\)"
)
_HEAD = re.compile(r"@?[A-Za-z_][\w-]*((?:\s+[+*$]?[A-Za-z_][\w-]*(?:=\S+)?)*)\s*:(?!=)")
_PARAMETER = re.compile(r"([A-Za-z_][\w-]*)=(['\"]?)([^'\"\s]*)\2")
_REFERENCE = re.compile(r"\{\{\s*([A-Za-z_][\w-]*)\s*\}\}")


def is_named_justfile(name: str) -> bool:
    """Whether a file has a name that just looks for.

    >>> is_named_justfile("jobs/justfile"), is_named_justfile("train.just"), is_named_justfile("just.sh")
    (True, True, False)
    """
    return _NAME.fullmatch(name.replace("\\", "/").rpartition("/")[2]) is not None


def script_of_justfile(text: str) -> str:
    r"""The same lines as a shell has them, so that what is read of one stands where it stood.

    >>> script_of_justfile('tp := "8"\nrun bs="4":\n    @torchrun a.py --tp {{tp}} --bs {{ bs }}\n')
    'tp="8"\nbs=${bs:-"4"}\ntorchrun a.py --tp ${tp} --bs ${bs}\n'
    """
    lines: list[str] = []
    whole = False  # whether a recipe is a script, whose lines have no marks of just
    for line in text.split("\n"):
        assigned, head = _ASSIGNED.match(line), _HEAD.match(line)
        if line[:1].isspace():
            command, continues = line.lstrip(), bool(lines) and lines[-1].endswith("\\")
            whole = whole or command.startswith("#!")
            lines.append(command if whole or continues else command.lstrip("@-"))
        elif assigned is not None:
            lines.append(_set(assigned[1], assigned[2]))
        elif head is not None:
            whole = False
            given = _PARAMETER.findall(head[1])
            lines.append(
                "; ".join(f'{_plain(name)}=${{{_plain(name)}:-"{value}"}}' for name, _, value in given)
            )
        else:
            lines.append("")
    return _REFERENCE.sub(lambda match: f"${{{_plain(match[1])}}}", "\n".join(lines))


def _plain(name: str) -> str:
    """A name as a shell takes it."""
    return name.replace("-", "_")


def _set(name: str, value: str) -> str:
    """An assignment of just as a shell's; of what it computes nothing is known."""
    variable = _OF_ENVIRONMENT.match(value)
    if variable is not None:
        default = "" if variable[2] is None else f':-"{variable[2]}"'
        return f"{_plain(name)}=${{{variable[1]}{default}}}"
    quoted = re.fullmatch(r"(['\"])(.*)\1\s*(?:#.*)?", value.strip())
    return f'{_plain(name)}="{quoted[2]}"' if quoted else ""
