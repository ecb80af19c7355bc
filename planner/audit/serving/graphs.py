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


_WORDS = (("compilation_config", "cudagraph_mode"), ("cc", "cudagraph_mode"))
"""Paths of vLLM's word for which steps are captured, of which `facts` keep no "none"."""


def captures_steps(reading: Reading) -> bool:
    """Whether graphs hold whole decode steps, as they do unless a word says otherwise."""
    low = bool(_levels(reading) & {*_LOW})
    return not (reading.facts.truth("said.eager") or _mode(reading) in _PIECES or low)


def graph_batch(reading: Reading, drafts: int, assumed: list[str]) -> int | None:
    """Most requests of a decode step that graphs hold: 0 where they are off, None where nothing limits them.

    Engines limit the tokens of a step, of which a request that is drafted for has one more than drafts.
    """
    facts, mode = reading.facts, _mode(reading)
    off = any(switches_graphs_off(setting) for setting in (*reading.options, *reading.settings))
    if facts.truth("said.eager") or mode == "NONE" or off or _levels(reading) & {"o0", "0"}:
        return 0
    if mode == "PIECEWISE":
        assumed.append(
            "graphs hold whole steps: of cudagraph_mode PIECEWISE, launches between are not priced"
        )
    most = facts.count("said.graph_batch")
    return None if most is None else most // (1 + drafts)


def switches_graphs_off(setting: Setting) -> bool:
    """Whether an option gives TensorRT-LLM no graphs: one of its own table that is null."""
    return setting.path[-1] == "cuda_graph_config" and setting.value is None


def _mode(reading: Reading) -> str:
    """The word for which steps are captured, in capitals; "" where none is said."""
    words = (*reading.flags, *reading.settings)
    named = next((str(word.value).upper() for word in words if word.path[-2:] in _WORDS), "")
    return named.rpartition(".")[2]


def _levels(reading: Reading) -> set[str]:
    """Names and values of flags that say vLLM's level of optimisation."""
    return {word for flag in reading.flags if is_level(flag) for word in (flag.path[0], str(flag.value))}


def is_level(flag: Setting) -> bool:
    """Whether a flag is vLLM's ``-O``, as ``-O1``, ``-O 1`` or in full."""
    return len(flag.path) == 1 and _LEVEL.fullmatch(flag.path[0]) is not None
