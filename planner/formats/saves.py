"""How long checkpoints held a running job up: of `plan run`, Megatron-LM and torchtitan."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from planner.formats.logs import LONGEST_LINE

MOST_SAVES = 100_000
LONGEST_SAVE_S = 86_400.0
_MEGATRON = re.compile(r"\bsave-checkpoint(?:-non-persistent)? \.{2,}: \(([\d.]{1,20}), ([\d.]{1,20})\)")
_TORCHTITAN = re.compile(r"\bFinished saving the checkpoint .{0,80}?in ([\d.]{1,20}) seconds")


def held_by_saves(lines: Iterable[str]) -> Iterator[float]:
    """Seconds that steps waited for each checkpoint, in the order of the lines; the slowest rank's.

    Megatron-LM's timer covers the whole of a synchronous save and the staging of an asynchronous one, as
    torchtitan's does.
    """
    for _, value in zip(range(MOST_SAVES), filter(None, map(_held_s, lines)), strict=False):
        yield value


def _held_s(line: str) -> float | None:
    """Seconds of one line, None where it is of something else.

    >>> _held_s("    save-checkpoint ................................: (4512.31, 4500.00)")
    4.5
    >>> _held_s("Finished saving the checkpoint (or staging if async is enabled)in 1.50 seconds.")
    1.5
    >>> _held_s('{"step": 10, "held_s": 0.25, "at_s": 1.0}')
    0.25
    """
    plain = line[:LONGEST_LINE]
    try:
        if plain.startswith("{"):
            data: Any = json.loads(plain)
            seconds = float(data["held_s"])
        elif megatron := _MEGATRON.search(plain):
            seconds = float(megatron[2]) / 1e3
        elif titan := _TORCHTITAN.search(plain):
            seconds = float(titan[1])
        else:
            return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return seconds if 0 < seconds < LONGEST_SAVE_S else None
