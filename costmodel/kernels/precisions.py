"""Number formats: one record for the operands of a GEMM, one for a training job that multiplies in them.

A new training precision is its name and its record here; operands of a new width are a row of `PRECISIONS`
as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

TrainingPrecision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
HalfPrecision = Literal["bf16", "fp16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Operands of a GEMM.

    Attributes:
        table: GEMM table it is read from.
        moe_table: Table of fused expert kernels it is read from.
        peak: Units it runs on, a key of a GPU's peaks.
        weight_bytes: Bytes of a weight, scales included.
        activation_bytes: Bytes of an activation, scales included.
    """

    table: str
    moe_table: str
    peak: str
    weight_bytes: float
    activation_bytes: float


_BF16 = Precision(table="bf16", moe_table="bf16", peak="bf16", weight_bytes=2, activation_bytes=2)
_FP32 = Precision(table="bf16", moe_table="fp32", peak="fp32", weight_bytes=4, activation_bytes=4)
_TF32 = Precision(table="bf16", moe_table="tf32", peak="tf32", weight_bytes=4, activation_bytes=4)
_FP8 = Precision(table="fp8", moe_table="fp8", peak="fp8", weight_bytes=1, activation_bytes=1)
_FP4 = Precision(
    table="fp8", moe_table="fp4", peak="fp4", weight_bytes=0.5 + 1 / 16, activation_bytes=0.5 + 1 / 16
)
_TRAINING_FP8 = Precision(table="bf16", moe_table="fp8", peak="fp8", weight_bytes=1, activation_bytes=1)
_TRAINING_FP4 = replace(_FP4, table="bf16")
INT8 = Precision(table="bf16", moe_table="int8", peak="bf16", weight_bytes=1, activation_bytes=2)
INT4 = Precision(table="bf16", moe_table="int4", peak="bf16", weight_bytes=0.5 + 2 / 128, activation_bytes=2)
PRECISIONS: Mapping[str, Precision] = {
    "bf16": _BF16,
    "fp16": _BF16,
    "fp32": _FP32,
    "tf32": _TF32,
    "fp8": _FP8,
    "mxfp8": _FP8,
    "fp4": _FP4,
    "training_fp8": _TRAINING_FP8,
    "training_fp4": _TRAINING_FP4,
    "nvfp4": _FP4,
    "mxfp4": _FP4,
    "int8": INT8,
    "int4": INT4,
}
"""By dtype. int8 and int4 are weight-only: bf16 arithmetic on narrow weights with a scale per group.

Training multiplies in eight and four bits with other kernels than serving, of which there are no tables: they
are taken to reach the share of their peak that sixteen bits reach.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecord:
    """What is to know about one training precision.

    Attributes:
        linear: What linear layers multiply in, a key of `PRECISIONS`.
        peak: Units they run on, a key of a GPU's peaks.
        half: Sixteen-bit format of everything else.
        trait: What its units must do beside multiplying at that width, a field of a GPU's generation.
        engine_words: Words of the command line beside those of `half`, by export target.
        config_words: Words for it in configuration files of engines, where they stand inside a text.
        run_names: Names in files of measured runs.
    """

    linear: str
    peak: str
    half: HalfPrecision = "bf16"
    trait: Literal["nvfp4", "mxfp8"] | None = None
    engine_words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    config_words: tuple[str, ...] = ()
    run_names: tuple[str, ...] = ()

    @property
    def is_low(self) -> bool:
        """Whether linear layers multiply in fewer than sixteen bits."""
        return PRECISIONS[self.linear].activation_bytes < PRECISIONS[self.half].activation_bytes


TRAINING: Mapping[TrainingPrecision, TrainingRecord] = {
    "bf16": TrainingRecord(
        linear="bf16", peak="bf16", config_words=("bf16", "bfloat16"), run_names=("", "bf16", "amp")
    ),
    "fp16": TrainingRecord(
        linear="bf16",
        peak="fp16",
        half="fp16",
        config_words=("fp16", "float16", "half", "16-mixed"),
        run_names=("fp16",),
    ),
    "fp8": TrainingRecord(
        linear="training_fp8",
        peak="fp8",
        engine_words={"megatron": ("--fp8-format", "hybrid")},
        config_words=("fp8", "float8"),
        run_names=("fp8",),
    ),
    "mxfp8": TrainingRecord(
        linear="training_fp8",
        peak="fp8",
        trait="mxfp8",  # Hopper and Ada have eight-bit units without scales of blocks
        engine_words={"megatron": ("--fp8-format", "e4m3", "--fp8-recipe", "mxfp8")},
        config_words=("mxfp8", "fp8_mx"),
        run_names=("mxfp8",),
    ),
    "nvfp4": TrainingRecord(
        linear="training_fp4",
        peak="fp4",
        trait="nvfp4",  # CDNA 4 has MXFP4, not NVFP4
        engine_words={"megatron": ("--fp4-format", "e2m1", "--fp4-recipe", "nvfp4")},
        config_words=("nvfp4", "fp4"),
        run_names=("nvfp4", "fp4"),
    ),
}


def config_words() -> tuple[tuple[str, TrainingPrecision], ...]:
    """Return words of configurations with what each means, in the order to look for them in a text.

    Fewer bits come first, which stand beside sixteen; of those longer words, which hold shorter ones.
    """
    words = [(word, name) for name, record in TRAINING.items() for word in record.config_words]
    low = sorted((pair for pair in words if TRAINING[pair[1]].is_low), key=lambda pair: -len(pair[0]))
    return (*low, *(pair for pair in words if not TRAINING[pair[1]].is_low))


def precision_in(text: str) -> TrainingPrecision | None:
    """Return the training precision that a text of a configuration names; None where it names none.

    >>> precision_in("bf16_with_fp8_mx"), precision_in("bfloat16"), precision_in("16-mixed")
    ('mxfp8', 'bf16', 'fp16')
    """
    lowered = text.lower()
    return next((name for word, name in config_words() if word in lowered), None)
