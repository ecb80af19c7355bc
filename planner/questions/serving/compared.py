"""What a serving question compares when it names neither precisions nor modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from costmodel.accuracy.checkpoint_names import WEIGHTS_OF_NAME
from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import WEIGHTS, Weights, published_weights, weight_bytes
from costmodel.serving.engine import serving_stack
from planner.questions.flags import ServeFlags
from planner.serving.infeasible import serves_weights
from planner.serving.plan import Mode
from topology.base.errors import InputError
from topology.hardware.gpu import Gpu

NARROWER: Mapping[Weights, tuple[Weights, ...]] = {"bf16": ("fp8", "int4", "fp4"), "fp8": ("int4", "fp4")}
"""Precisions compared beside that of a checkpoint. Eight-bit integers cost what fp8 costs, or more."""

T = TypeVar("T", bound=str)


def compared_weights(flags: ServeFlags, model: ModelSpec, gpu: Gpu) -> tuple[Weights, ...]:
    """Precisions to compare: those named, or the checkpoint's own and the narrower ones the GPU can run."""
    if flags.weights is not None:
        return tuple(dict.fromkeys(_named(name.strip()) for name in flags.weights.split(",")))
    published = _published(model)
    engine = serving_stack(flags.engine or "vllm")
    narrower = [
        item
        for item in NARROWER.get(published, ())
        if serves_weights(engine, gpu, item, model) and (item != "fp4" or "fp4" in gpu.peak_flop_per_s)
    ]
    return (published, *narrower)


def _named(word: str) -> Weights:
    """A precision by its name, or by the word of a format in a checkpoint's: mxfp4 and nvfp4 are fp4."""
    stated = WEIGHTS_OF_NAME.get(word.lower())
    return stated if stated is not None else one_of(word, WEIGHTS, "--weights")


def weights_note(flags: ServeFlags) -> tuple[str, ...]:
    """What the words of formats among the precisions stand for."""
    words = [word.strip().lower() for word in (flags.weights or "").split(",") if word.strip()]
    other = {word: _named(word) for word in words if word not in WEIGHTS}
    return tuple(f"--weights {word} is {stated}" for word, stated in other.items())


def _published(model: ModelSpec) -> Weights:
    """The precision that the checkpoint is published in."""
    published = published_weights(model)
    if published is None:
        raise InputError(
            what=f"the checkpoint of {model.name} is quantised in a way that is not known",
            cause="quantization_config of its config.json",
            fix="add --weights fp8, int8, int4 or fp4, whichever is nearest",
        )
    return published


def shown_only_of(flags: ServeFlags, model: ModelSpec) -> frozenset[Weights]:
    """Precisions that are compared and not proposed: those that the checkpoint itself does not serve.

    Engines make eight bits of bf16 as they load it; four bits are another checkpoint, with a loss of its own.
    """
    if flags.weights is not None:
        return frozenset()
    return frozenset(item for item in NARROWER.get(_published(model), ()) if weight_bytes(item) < 1)


def compared_modes(flags: ServeFlags) -> tuple[Mode, ...]:
    """Which modes are compared: those named, else both where pools are simulated in little time."""
    text = flags.mode
    if text is None:
        alone = flags.concurrency or flags.trace or (flags.gpus or "").strip() == "1"
        return ("aggregated",) if alone else ("aggregated", "disaggregated")
    if text == "aggregated":
        return ("aggregated",)
    if text == "disaggregated":
        return ("disaggregated",)
    if text == "auto":
        return ("aggregated", "disaggregated")
    raise InputError(
        what=f"unknown mode {text!r}",
        cause="--mode",
        fix="use aggregated, disaggregated or auto (both are tried)",
    )


def one_of(text: str, choices: tuple[T, ...], flag: str) -> T:
    """One of the known words."""
    for choice in choices:
        if text.lower() == choice:
            return choice
    raise InputError(
        what=f"unknown {flag} {text!r}", cause=f"known are {', '.join(choices)}", fix="use one of these"
    )
