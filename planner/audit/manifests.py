"""Commands in manifests: what a pod, a task or a service of a YAML file starts, as the lines of a script."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.formats.settings import Setting

_STARTS = ("command", "args", "arguments", "run", "entrypoint")
"""Keys whose text or list is a command, or the rest of one."""
_RESTS = ("args", "arguments")
"""Those that go on what the key before them began; so does ``command`` after a service's ``entrypoint``."""
_FLAG = re.compile(r"(?:^|\s)(?:--?[A-Za-z]|[+~]*\w+(?:\.\w+)+=)")


def script_of(settings: Sequence[Setting]) -> str:
    r"""The commands of a file, each on the line on which it stands; empty if there is none.

    >>> told = (("a.command", "x.py"), ("a.args", "-n 8"))
    >>> script_of([Setting(name=name, value=value, line=1) for name, value in told])
    'x.py -n 8'
    """
    commands: list[tuple[int, str, str]] = []
    begins = ""
    for setting in settings:
        outer, _, key = setting.name.rpartition(".")
        if key.removesuffix("[]") not in _STARTS or not isinstance(setting.value, str):
            continue
        if (
            commands
            and commands[-1][1] == outer
            and (key.startswith(_RESTS) or begins == f"{outer}.entrypoint")
        ):
            line, _, before = commands.pop()
            commands.append((line, outer, f"{before} {setting.value}"))
        else:
            commands.append((setting.line, outer, setting.value))
            begins = setting.name.removesuffix("[]")
    text = ""
    for line, _, command in commands:
        if _FLAG.search(command):
            text += "\n" * max(1 if text else 0, line - 1 - text.count("\n")) + command
    return text
