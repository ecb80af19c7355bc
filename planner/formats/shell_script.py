"""What a shell script comes to: commands that it would start, variables, what its scheduler is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.formats.shell_values import Text, Variables


@dataclass(frozen=True, slots=True)
class Started:
    """A command that a script would start.

    `assigned` are the variables before its first word; `sure` is false in a branch that may not be taken.
    """

    words: tuple[Text, ...]
    assigned: Mapping[str, Text]
    sure: bool
    line: int


@dataclass(slots=True)
class Script:
    """What a script comes to."""

    started: list[Started] = field(default_factory=list)
    names: Variables = field(default_factory=Variables)
    directives: dict[str, Text] = field(default_factory=dict)
    documents: list[Text] = field(default_factory=list)
    """Here-documents with their variables, and the line they begin on."""
    sourced: list[str] = field(default_factory=list)
    """Files it reads that were not given."""
    branches: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    """Lines where only a run can tell what is taken, and the variables that decide."""


def slurm_variables(directives: Mapping[str, Text]) -> dict[str, str]:
    """Variables that Slurm sets by a script's own directives."""
    found: dict[str, str] = {}
    nodes = directives.get("--nodes", directives.get("-N"))
    if nodes is not None and nodes.text.isdigit():
        found |= dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes.text)
    for flag, name in (
        ("--ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
        ("--gpus-per-node", "SLURM_GPUS_PER_NODE"),
    ):
        value = directives.get(flag)
        if value is not None and value.text.rpartition(":")[2].isdigit():
            found[name] = value.text.rpartition(":")[2]
    return found
