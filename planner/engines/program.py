"""What a training program of the user's own must take from a plan: what no file of the engine decides.

Five engines wrap a program whose loop is the user's: DeepSpeed, Accelerate, Colossal-AI, Horovod,
tf.distribute. Beside their own files a plan is written as ``program.json``; a bundle runs the program through
`planned.py` (`planner.launch.programs`), which stops it unless it says that it uses these.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planner.engines.fields import Facts
from planner.engines.setting import EngineSetting, Word, value

FILE, _P = "program.json", "program."
ATTENTION = {True: "fused", False: "unfused"}
"""Whether the scores of attention are never stored; which kernel does it is the program's choice."""


def _steps(facts: Facts) -> Mapping[str, Any]:
    """Microbatches of a rank before the optimizer steps."""
    each = facts["layout.dp"] * facts["layout.microbatch_size"]
    return {f"{_P}accumulation_steps": facts["job.global_batch_size"] // each}


def _recomputes(facts: Facts) -> Mapping[str, Any]:
    """Every layer or none."""
    recomputes = facts["layout.recompute"] == "full" and any(facts["split.recompute"])
    return {f"{_P}recompute": "full" if recomputes else "none"}


PROGRAM: tuple[EngineSetting, ...] = (
    value(f"{_P}sequence_length", "job.sequence_length"),
    value(f"{_P}attention", "stack.flash_attention", "text", names=ATTENTION),
    value(f"{_P}microbatch_size", "layout.microbatch_size"),
    EngineSetting(
        words=(Word(name=f"{_P}accumulation_steps", kind="int"),), fields=(), write=_steps, read=lambda _: {}
    ),
    value(f"{_P}global_batch_size", "job.global_batch_size"),
    value(f"{_P}precision", "job.precision", "text"),
    value(f"{_P}optimizer", "job.optimizer", "text"),
    value(f"{_P}adapter", "job.adapter", "text"),
    EngineSetting(words=(Word(name=f"{_P}recompute"),), fields=(), write=_recomputes, read=lambda _: {}),
)
"""Words of ``program.json``."""


def of_engine(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of the engine's own files."""
    return {name: value for name, value in words.items() if not name.startswith(_P)}


def render(words: Mapping[str, Any]) -> dict[str, str]:
    """The file of the program."""
    given = {name.removeprefix(_P): value for name, value in words.items() if name.startswith(_P)}
    return {FILE: json.dumps(given, indent=2) + "\n"}


def parse(files: Mapping[str, str]) -> dict[str, Any]:
    """Its words."""
    return {f"{_P}{name}": value for name, value in json.loads(files[FILE]).items()}
