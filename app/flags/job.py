"""The flags that describe a job, declared once: a command names those it takes and is called with `Flags`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from typing import Annotated, Any, Final, get_args

from app.flags import shared as options
from app.flags.group import gathers
from app.flags.sections import further, split
from planner.questions.flags import Flags

FLAGS: Final[Mapping[str, Any]] = {
    "model": options.ModelFlag,
    "gpus": options.Gpus,
    "gpu": options.GpuName,
    "cluster": options.ClusterName,
    "without": options.WithoutHosts,
    "degraded": options.DegradedHosts,
    "sequence_length": options.SequenceLength,
    "global_batch_size": options.GlobalBatchSize,
    "precision": options.PrecisionFlag,
    "adapter": options.AdapterFlag,
    "expert_load": options.ExpertLoadFlag,
    "recompute_modules": options.RecomputeModules,
    "offload": options.OffloadFlag,
    "stack": options.Stack,
    "engine": options.ForFlag,
    "objective": options.ObjectiveFlag,
    "tokens": options.Tokens,
    "deadline": options.Deadline,
    "budget": options.Budget,
    "settings": options.Settings,
    "anchor": options.AnchorFlag,
    "memory_headroom": options.MemoryHeadroom,
    "top": options.Top,
}
"""Option of every field of `Flags`, in the order of the help."""
SIZE: Final = ("model", "gpus", "gpu", "cluster")
"""What most say of a job whose files or plan say the rest."""
SEARCH_ONLY: Final = ("objective", "memory_headroom", "top")
"""Flags that choose among layouts; without a choice they mean nothing."""
RANGES: Final[Mapping[str, str]] = {
    "gpus": "; ..576: up to so many.",
    "global_batch_size": "; 256..1024 takes the best.",
}
"""Flags of which a search takes a range, and how the help says it."""


def takes_job(
    *left_out: str, common: Collection[str] = FLAGS, ranges: bool = False
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command every flag of a job but these; it receives them as one `Flags`, first.

    Args:
        left_out: Fields of `Flags` whose flags it does not take.
        common: Fields whose flags its short help explains; it only names the others.
        ranges: It takes a range of GPUs or of batches.
    """
    options_of = {
        name: _of_ranges(option, RANGES[name]) if ranges and name in RANGES else option
        for name, option in FLAGS.items()
    }
    taken = {
        name: option if name in common else _further(option)
        for name, option in options_of.items()
        if name not in left_out
    }
    return gathers(taken, _flags)


def _of_ranges(option: Any, words: str) -> Any:
    """The same flag, whose help says that it takes a range."""
    kind, declared = get_args(option)
    declared = copy(declared)
    declared.help = declared.help.removesuffix(".") + words
    return Annotated[kind, declared]


def _further(option: Any) -> Any:
    """The same flag, which only the full help explains."""
    kind, declared = get_args(option)
    declared = copy(declared)
    declared.rich_help_panel = further(split(declared.rich_help_panel)[0])
    return Annotated[kind, declared]


def flags_of(given: Mapping[str, Any]) -> Flags:
    """The `Flags` of what a command would be called with."""
    taken = {name: value for name, value in given.items() if name in FLAGS and name != "settings"}
    return _flags(settings=tuple(given.get("settings") or ()), **taken)


def _flags(*, settings: tuple[str, ...] | None = None, **given: str | None) -> Flags:
    """What was written, without settings where there are none."""
    return Flags(settings=settings or (), **given)
