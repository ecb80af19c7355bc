"""Learning-rate schedules give known answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from app.actions.runs.numbers import check_rates, default_decay_steps, rate_shape_named
from executor.training.optimizer import OptimizerSettings, RateShape, learning_rate
from executor.training.settings import RunSettings
from executor.training.trainer import optimizer_settings
from topology.base.errors import InputError

KNOWN: dict[RateShape, list[float]] = {
    "linear": [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2],
    "constant": [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
    "wsd": [0.5, 1.0, 1.0, 1.0, 1.0, 0.6, 0.2, 0.2],
    "cosine": [0.5, 1.0, 1.0, 0.882843, 0.6, 0.317157, 0.2, 0.2],
}


@pytest.mark.parametrize("shape", KNOWN)
def test_rates_are_those_computed_by_hand(shape: RateShape) -> None:
    """Two steps of warm-up, four of the shape (wsd: two of them stable), then a fifth of the peak."""
    settings = OptimizerSettings(
        learning_rate=1.0, warmup_steps=2, total_steps=6, final_fraction=0.2, shape=shape, decay_steps=2
    )
    assert [learning_rate(settings, step) for step in range(8)] == pytest.approx(KNOWN[shape], abs=1e-6)


def test_an_unknown_schedule_is_refused() -> None:
    """The names that there are belong to the answer."""
    with pytest.raises(InputError, match="learning-rate schedule"):
        rate_shape_named("stepwise")


@pytest.mark.parametrize("steps", [2, 5, 9, 10, 19, 40])
def test_the_default_decay_lowers_the_last_rate_of_a_short_run(steps: int) -> None:
    """However short the run, its last step has a lower rate than the one before."""
    settings = OptimizerSettings(
        learning_rate=1.0,
        warmup_steps=0,
        total_steps=steps,
        shape="wsd",
        decay_steps=default_decay_steps(steps),
    )
    assert learning_rate(settings, steps - 1) < learning_rate(settings, steps - 2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0.0), ("learning_rate", float("nan")), ("min_lr", 1.0), ("min_lr", -1e-5),
        ("weight_decay", -0.1), ("adam_beta1", 1.0), ("adam_beta2", -0.1), ("adam_eps", -1e-8), ("clip_norm", 0.0),
    ],
)  # fmt: skip
def test_numbers_that_no_optimizer_steps_with_are_refused(field: str, value: float) -> None:
    """By the name of their flag; those that are said when nothing is given are not."""
    settings = RunSettings(folder="", plan_file="", steps=1)
    check_rates(settings)
    with pytest.raises(InputError, match=f"--{field.replace('_', '-')} is"):
        check_rates(replace(settings, **{field: value}))  # type: ignore[arg-type]


def test_the_flags_of_adam_reach_it() -> None:
    """And the rate ends where it was told to, a tenth of the peak where it was not."""
    settings = RunSettings(
        folder="", plan_file="", steps=4, learning_rate=1.0, min_lr=0.25, adam_beta1=0.8, adam_beta2=0.9,
        adam_eps=1e-6, rate_shape="linear",
    )  # fmt: skip
    told, untold = optimizer_settings(settings), optimizer_settings(replace(settings, min_lr=None))
    assert (told.betas, told.epsilon) == ((0.8, 0.9), 1e-6)
    assert [learning_rate(one, 4) for one in (told, untold)] == pytest.approx([0.25, 0.1])
