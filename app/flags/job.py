"""The flags that describe a job, declared once: a command names those it takes and is called with `Flags`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.flags import shared as options
from app.flags.group import gathers, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What was written on the command line or chosen in the dashboard, in the order of the help.

    None was left to us.
    """

    model: options.Model = None
    gpus: options.Gpus = None
    gpu: options.GpuName = None
    cluster: options.ClusterName = None
    sequence_length: options.SequenceLength = None
    global_batch_size: options.GlobalBatchSize = None
    precision: options.Precision = None
    stack: options.Stack = None
    objective: options.Objective = None
    tokens: options.Tokens = None
    deadline: options.Deadline = None
    settings: tuple[str, ...] = ()
    anchor: options.Anchor = None
    memory_headroom: options.MemoryHeadroom = None
    top: options.Top = None


FLAGS: Final = options_of(Flags)
SEARCH_ONLY: Final = ("objective", "memory_headroom", "top")
"""Flags that choose among layouts; without a choice they mean nothing."""


def takes_job(*left_out: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command every flag of a job but these; it receives them as one `Flags`, first."""
    taken = {name: option for name, option in FLAGS.items() if name not in left_out}
    return gathers(taken, _flags)


def _flags(*, settings: tuple[str, ...] | None = None, **given: str | None) -> Flags:
    """What was written, without settings where there are none."""
    return Flags(settings=settings or (), **given)
