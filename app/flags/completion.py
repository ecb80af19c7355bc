"""What a shell completes: names of the catalogs after the flags that take them.

A shell asks in variables, without saying which command is meant where none is typed: the default command is.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable
from typing import Final

from app.flags.program import COMMANDS, DEFAULT_COMMAND

ASKED: Final = "_PLAN_COMPLETE"
_LINES: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
"""Where bash, then zsh and fish put the command line."""
_WORD: Final = "COMP_CWORD"
"""Which word bash completes."""
Completion = Callable[[str], list[str]]


def completed_command() -> str:
    """The command of the line that a shell completes, "" for none; the default is written in."""
    name = next((name for name in _LINES if name in os.environ), None)
    if name is None:
        return ""
    line = os.environ[name]
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # a quote that is still open
        return ""
    if words and words[0].startswith("-"):
        os.environ[name] = line.replace(" ", f" {DEFAULT_COMMAND} ", 1)
        os.environ[_WORD] = str(int(os.environ.get(_WORD, "0")) + 1)
        return DEFAULT_COMMAND
    return words[0] if words and words[0] in COMMANDS else ""


def beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    """Names that begin as typed, in any case.

    >>> beginning("H1", ["h100-sxm", "h200-sxm"])
    ['h100-sxm']
    """
    return [name for name in names if name.lower().startswith(incomplete.lower())]


def model_completion(incomplete: str) -> list[str]:
    """Models of the catalog, and their short names."""
    from costmodel.models.catalog import model_aliases, model_names

    return beginning(incomplete, (*model_names(), *model_aliases()))


def gpu_completion(incomplete: str) -> list[str]:
    """GPUs of the catalog."""
    from topology.catalog import gpus

    return beginning(incomplete, gpus())


def cluster_completion(incomplete: str) -> list[str]:
    """Machines of the catalog."""
    from topology.catalog import cluster_names

    return beginning(incomplete, cluster_names())


def stack_completion(incomplete: str) -> list[str]:
    """Presets of engines."""
    from costmodel.stack import stacks

    return beginning(incomplete, stacks())


def engine_completion(incomplete: str) -> list[str]:
    """Engines that a plan can be for."""
    from planner.engines.contracts import CONTRACTS

    return beginning(incomplete, CONTRACTS)


def preset_completion(incomplete: str) -> list[str]:
    """Engines and their presets."""
    return [*engine_completion(incomplete), *stack_completion(incomplete)]


def server_completion(incomplete: str) -> list[str]:
    """Engines that serve."""
    from costmodel.serving.engine import serving_stacks

    return beginning(incomplete, serving_stacks())


def rule_completion(incomplete: str) -> list[str]:
    """Rules, limits of engines and bounds."""
    from planner.rules.meanings import meanings

    return beginning(incomplete, meanings())
