"""Prompts at the clocks that a GPU's design power sustains: energy of products against power."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.kernels.precisions import PRECISIONS
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout, Weights
from costmodel.serving.engine import serving_stack
from costmodel.serving.ops import linear_joules, linear_s
from costmodel.training.constants import default_constants
from topology.builders import default_cluster
from topology.catalog import gpu

CAL = load_calibration()
TOKENS = np.array([2048.0])
E = default_constants().picojoule_per_flop * 1e-12


def deployment(part: str, name: str = "qwen3-32b", weights: Weights = "bf16", tp: int = 1) -> Deployment:
    """A model on one machine, whole or tensor-parallel."""
    return Deployment(
        model=model(name),
        hierarchy=default_cluster(part, 8).hierarchy,
        layout=ServingLayout(tp=tp),
        stack=serving_stack("vllm"),
        weights=weights,
    )


def test_products_take_the_energy_of_every_parameter_that_a_token_passes() -> None:
    """2 operations a parameter of the layers: 31.2 of Qwen3-32B's 32.8 billion are in them; halves on two GPUs."""
    matrices = 64 * (5120 * 128 * (64 + 2 * 8) + 64 * 128 * 5120 + 3 * 5120 * 25600)
    joules = linear_joules(deployment("h100-sxm"), TOKENS)
    assert joules == pytest.approx(2 * E * matrices * TOKENS)
    assert linear_joules(deployment("h100-sxm", tp=2), TOKENS) == pytest.approx(joules / 2)


def test_experts_count_as_many_as_a_token_chooses() -> None:
    """Four of gpt-oss-120b's 128, in bf16 where no four bits are multiplied; on B200 by the width of both."""
    layer = 3 * 2880 * 2880 * 4
    hopper, blackwell = (
        linear_joules(deployment(part, "gpt-oss-120b", "fp4"), TOKENS) for part in ("h100-sxm", "b200-sxm")
    )
    narrow = PRECISIONS["fp4"].activation_bytes / 2
    assert hopper - blackwell == pytest.approx((1 - narrow) * 2 * E * 36 * layer * TOKENS, rel=1e-6)


@pytest.mark.parametrize(
    ("part", "weights", "tp", "slower"),
    [
        ("h100-sxm", "bf16", 1, True),  # 790 TFLOP/s at 1.22 pJ are 960 W of 700
        ("h100-sxm", "fp8", 1, False),  # half as much
        ("h100-sxm", "bf16", 8, False),  # reductions leave time to cool
        ("rtx-pro-6000", "bf16", 1, False),  # 340 TFLOP/s, 410 W of 600
    ],
)
def test_only_prompts_that_draw_more_than_design_power_are_slower(
    part: str, weights: Weights, tp: int, slower: bool
) -> None:
    """As in training: seconds at full clocks times (joules/(seconds·watts))^h."""
    asked = deployment(part, weights=weights, tp=tp)
    full, sustained = (linear_s(CAL, asked, TOKENS, captured=captured) for captured in (True, False))
    draw = linear_joules(asked, TOKENS) / full / gpu(part).tdp_w
    assert (draw > 1) == slower
    assert sustained == pytest.approx(full * np.maximum(1, draw) ** default_constants().clock_exponent)
