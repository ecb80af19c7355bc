"""Whether an engine captures whole decode steps as graphs, by the words of a server."""

from __future__ import annotations

import re

from planner.audit.read import Reading
from planner.formats.settings import Setting

_PIECES = ("PIECEWISE", "NONE")
"""Modes of vLLM's ``cudagraph_mode`` in which no graph holds a whole step (config/compilation.py)."""
_LEVEL = re.compile(r"o[0-3]?|optimization_level")
_LOW = ("o0", "o1", "0", "1")
"""Levels of vLLM's ``-O`` that choose one of these (config/vllm.py of v0.20 to v0.33)."""


def captures_steps(reading: Reading) -> bool:
    """Whether graphs hold whole decode steps, as they do unless a word says otherwise."""
    mode = str(reading.facts.value("said.graph_mode") or "").upper().rpartition(".")[2]
    low = any({flag.path[0], str(flag.value)} & {*_LOW} for flag in reading.flags if is_level(flag))
    return not (reading.facts.truth("said.eager") or mode in _PIECES or low)


def is_level(flag: Setting) -> bool:
    """Whether a flag is vLLM's ``-O``, as ``-O1``, ``-O 1`` or in full."""
    return len(flag.path) == 1 and _LEVEL.fullmatch(flag.path[0]) is not None
