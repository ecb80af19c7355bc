"""Numbers that flags give a run: those of nothing given, and which mean nothing or end it at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from executor.training.option import options_of

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
    text = resolve(name, choices, "learning-rate schedule")
    return next(choice for choice in choices if choice == text)


def check_rates(run: RunSettings) -> None:
    """Refuse numbers of the optimizer that are none it can step with."""
    from topology.base.errors import InputError

    numbers = [
        (option.flag, getattr(run, name), option.range.holds(getattr(run, name)), option.range.words())
        for name, option in options_of(type(run)).items()
        if option.range is not None
    ]
    least = 0.0 if run.min_lr is None else run.min_lr
    in_range = 0 <= least <= run.learning_rate and math.isfinite(least)
    for flag, value, holds, words in (
        *numbers,
        ("--min-lr", least, in_range, f"0 to --learning-rate, {run.learning_rate:g}"),
    ):
        if not holds:
            raise InputError(
                what=f"{flag} is no number that an optimizer steps with",
                cause=f"{value:g}",
                fix=f"give {words}",
            )


def check_meant(run: RunSettings, min_gpus: int | None, num_gpus: int) -> None:
    """Refuse flags that can have no effect on this run, or not the one they are given for."""
    from topology.base.errors import InputError

    decays = run.rate_shape == "wsd" and run.decay_steps > max(run.steps, default_decay_steps(run.steps))
    steps = f"the run has {run.steps} steps"
    for holds, what, cause, fix in (
        (
            run.warmup_steps <= run.steps,
            "--warmup-steps is longer than the run",
            f"{run.warmup_steps} steps of warm-up, {steps}",
            f"give at most {run.steps}",
        ),
        (
            not decays,
            "--decay-steps is longer than the run",
            f"{run.decay_steps} steps of decay, {steps}",
            f"give at most {run.steps}",
        ),
        (
            run.profile_step is None or run.profile_step <= run.steps,
            "--profile-step is a step that does not come",
            f"step {run.profile_step}, {steps}",
            f"give 1 to {run.steps}",
        ),
        (
            min_gpus is None or min_gpus <= num_gpus,
            "--min-gpus is more than the plan has",
            f"at least {min_gpus} GPUs, the plan has {num_gpus}",
            f"give at most {num_gpus}, or leave it out",
        ),
        (
            run.min_lr is None or run.rate_shape != "constant",
            "--min-lr has no effect with --lr-schedule constant",
            f"that stays at {run.learning_rate:g}, it does not end at {run.min_lr}",
            "leave --min-lr out, or give --lr-schedule cosine, linear or wsd",
        ),
    ):
        if not holds:
            raise InputError(what=what, cause=cause, fix=fix)


def refuse_large_counts(run: RunSettings) -> None:
    """Refuse whole numbers that no rank could read or count to."""
    from topology.base.errors import InputError, shown

    for name, option in options_of(type(run)).items():
        value = getattr(run, name)
        if type(value) is int and value > MOST_COUNTED:
            raise InputError(
                what=f"{option.flag} is more than any run counts",
                cause=shown(value),
                fix=f"give at most {MOST_COUNTED:,}",
            )
