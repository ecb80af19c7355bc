"""What a file is: a script, a page with commands, a configuration, a log; by its content."""

from __future__ import annotations

import re
from typing import Literal

from planner.formats.justfile import is_named_justfile
from planner.formats.logs import LEAST_STEPS, MOST_HEAD, is_like_log, is_log, is_named_log, lines_like_steps
from planner.formats.makefile import is_named_makefile
from planner.formats.server_lines import is_server_log
from planner.formats.systemd import is_unit

Kind = Literal["shell", "page", "python", "json", "toml", "yaml", "log"]
_SHELL = re.compile(
    r"^#!.*\b(?:ba|z|k)?sh\b|^#SBATCH|^[ \t]*(?:export\s+)?[A-Za-z_]\w*="
    r"|^[ \t]*(?:torchrun|srun|python3?|deepspeed|source)\s",
    re.MULTILINE,
)
_TOML = re.compile(r"^[ \t]*\[[\w.\"-]+\]\s*(?:#.*)?$", re.MULTILINE)
_PYTHON = re.compile(r"^(?:import|from)\s+[\w.]+|^def\s+\w+\(", re.MULTILINE)


UPSTREAM = re.compile(r"^[ \t]*upstream\s+[\w.-]+\s*\{([^{}]*)\}", re.MULTILINE)
"""The places of a router, in the configuration of nginx."""


def _shows_steps(text: str) -> bool:
    """Whether several lines of a text look like those of steps, of whatever program."""
    return len(lines_like_steps(text[:MOST_HEAD])) >= LEAST_STEPS


def kind_of(text: str, name: str) -> Kind:
    r"""What a file is, by its content; its name decides only between what the content allows.

    >>> kind_of("#!/bin/bash\\nTP=1", "x.txt"), kind_of("a: 1\\nb: [2]", "x"), kind_of('{"a": 1}', "x.conf")
    ('shell', 'yaml', 'json')
    """
    suffix = name.lower().rpartition(".")[2]
    script = text.startswith("#!") or bool(re.search(r"^#SBATCH", text, re.MULTILINE))
    if is_log(text) or (is_named_log(name) and not script):
        return "log"
    configured = suffix in ("json", "toml", "yaml", "yml", "py", "sh", "sbatch", "slurm", "md")
    if (
        not configured
        and not script
        and (is_like_log(text) or _shows_steps(text) or is_server_log(text[:MOST_HEAD]))
    ):
        return "log"
    routes = UPSTREAM.search(text[:MOST_HEAD])  # words and values up to a semicolon, as commands are
    if routes or is_named_makefile(name) or is_named_justfile(name) or is_unit(text):
        return "shell"
    if text.lstrip()[:1] in "{[" and suffix not in ("toml", "yaml", "yml") and not _TOML.search(text[:5000]):
        return "json"
    if script or suffix in ("sh", "sbatch", "slurm", "bash", "env"):
        return "shell"
    if re.search(r"^[ \t]*```", text, re.MULTILINE):
        return "page"
    for known, suffixes in (("toml", ("toml",)), ("yaml", ("yaml", "yml")), ("python", ("py",))):
        if suffix in suffixes:
            return known  # type: ignore[return-value]  # a literal of the table
    if _PYTHON.search(text):
        return "python"
    if _TOML.search(text) and "=" in text:
        return "toml"
    return "shell" if _SHELL.search(text) or "--" in text else "yaml"
