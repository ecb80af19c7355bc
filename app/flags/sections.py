"""Headings under which a command's help lists its flags, and which flags only the full help lists."""

from __future__ import annotations

from typing import Final

QUESTION: Final = "Question"
CLUSTER: Final = "Cluster"
TRAINING: Final = "Training"
SERVING: Final = "Serving"
LIMITS: Final = "Limits"
OUTPUT: Final = "Output"
OPTIONS: Final = "Options"
"""Heading of a flag that names none."""
_FURTHER: Final = ", further"


def further(section: str) -> str:
    """The heading of a flag that few questions need: `--help` names it, `--help --full` explains it.

    >>> split(further("Cluster")), split("Cluster")
    (('Cluster', True), ('Cluster', False))
    """
    return f"{section}{_FURTHER}"


def split(heading: str | None) -> tuple[str, bool]:
    """A flag's section, and whether only the full help explains it."""
    heading = heading or OPTIONS
    return heading.removesuffix(_FURTHER), heading.endswith(_FURTHER)
