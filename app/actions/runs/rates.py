"""What flags say of a run's optimizer: how its rate goes, and numbers that would make it diverge at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from executor.training.settings import RunSettings


MOST_COUNTED = 10**12
"""Of steps, seeds and the like: far beyond any run, and a number that ranks can read."""


def default_decay_steps(steps: int) -> int:
    """Steps of wsd's decay: a tenth of a run, and two at least, as the first of them has the full rate.

    >>> [default_decay_steps(steps) for steps in (5, 19, 1000)]
    [2, 2, 100]
    """
    return max(2, steps // 10)


def rate_shape_named(name: str) -> Literal["cosine", "linear", "constant", "wsd"]:
    """Check the name of a learning-rate schedule."""
    from topology.base.names import resolve

    choices: tuple[Literal["cosine", "linear", "constant", "wsd"], ...]
    choices = ("cosine", "linear", "constant", "wsd")
    found = resolve(name, choices, "learning-rate schedule")
    return next(choice for choice in choices if choice == found)


def check_rates(run: RunSettings) -> None:
    """Refuse numbers of the optimizer that are none it can step with."""
    from topology.base.errors import InputError

    least = 0.0 if run.min_lr is None else run.min_lr
    for flag, value, holds, range_ in (
        ("--learning-rate", run.learning_rate, run.learning_rate > 0, "above 0"),
        ("--min-lr", least, 0 <= least <= run.learning_rate, f"0 to --learning-rate, {run.learning_rate:g}"),
        ("--weight-decay", run.weight_decay, run.weight_decay >= 0, "0 or more"),
        ("--adam-beta1", run.adam_beta1, 0 <= run.adam_beta1 < 1, "0 to below 1"),
        ("--adam-beta2", run.adam_beta2, 0 <= run.adam_beta2 < 1, "0 to below 1"),
        ("--adam-eps", run.adam_eps, run.adam_eps >= 0, "0 or more"),
        ("--clip-norm", run.clip_norm, run.clip_norm > 0, "above 0; a very large one clips nothing"),
    ):
        if not (holds and math.isfinite(value)):
            raise InputError(
                what=f"{flag} is no number that an optimizer steps with",
                cause=f"{value:g}",
                fix=f"give {range_}",
            )


def check_counts(run: RunSettings) -> None:
    """Refuse whole numbers that no rank could read or count to."""
    from dataclasses import asdict

    from topology.base.errors import InputError, shown

    for name, value in asdict(run).items():
        if type(value) is int and value > MOST_COUNTED:
            raise InputError(
                what=f"--{name.replace('_', '-')} is more than any run counts",
                cause=shown(value),
                fix=f"give at most {MOST_COUNTED:,}",
            )
