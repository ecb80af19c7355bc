"""An attention kernel of an older generation on a newer GPU, against published rates.

FlashAttention-3 (arXiv 2407.08608) figure 5: head size 128, causal, 16k tokens, H100: FlashAttention-2 370, 3 648
Tflop/s. FlashAttention-2 multiplies by instructions of a warp, which a multiprocessor of Hopper or Blackwell runs
at one rate a clock, as it runs fp32 (128 lanes in both): 67 Tflop/s of an H100, 80 of a B200 (data sheets).
"""

import pytest

from costmodel.kernels.attention import attention_prefill
from costmodel.kernels.stand_ins import achievable
from costmodel.kernels.tables import load_calibration
from costmodel.stack import stack
from costmodel.switches.profile import with_switches
from topology.catalog import gpu

CAL = load_calibration()
FA2, FA3 = 370.0, 648.0
LONG = 16384


def _native_seconds(name: str, tokens: int) -> float:
    """Seconds of the table's own kernel, forward."""
    return float(
        attention_prefill(
            CAL, gpu(name), batch=1, heads=32, kv_heads=8, query_tokens=tokens, kv_tokens=tokens, head_dim=128
        ).seconds
    )


def test_the_second_generation_on_hopper_is_slower_by_its_published_rates() -> None:
    """As the paper's figure has both."""
    timing = with_switches(stack("megatron-core"), {"attention_kernel": "fa2"}).timing
    assert timing.attention_slowdown_hopper == pytest.approx(FA3 / FA2, rel=0.01)


def test_the_second_generation_on_blackwell_gains_multiprocessors_and_clock_alone() -> None:
    """Its seconds on a B200 are those on an H100 over the ratio of fp32 rates."""
    timing = with_switches(stack("megatron-core"), {"attention_kernel": "fa2"}).timing
    on_hopper = _native_seconds("h100-sxm", LONG) * timing.attention_slowdown_hopper
    on_blackwell = _native_seconds("b200-sxm", LONG) * timing.attention_slowdown_blackwell
    clocks = gpu("b200-sxm").peak("fp32") / gpu("h100-sxm").peak("fp32")
    assert on_hopper / on_blackwell == pytest.approx(clocks, rel=0.02)


def test_twice_the_special_functions_halve_the_softmax_of_blackwell() -> None:
    """At d = 128 a softmax of 64 channels is a third of attention; half of it is gone on Blackwell Ultra.

    NVIDIA's blog on its softmax: twice the exponentials a clock, matrix units as before.
    """
    ratio = _native_seconds("b300-sxm", LONG) / _native_seconds("b200-sxm", LONG)
    matmul = gpu("b200-sxm").peak("bf16") * achievable(CAL, gpu("b200-sxm"))
    matmul /= gpu("b300-sxm").peak("bf16") * achievable(CAL, gpu("b300-sxm"))
    assert ratio / matmul == pytest.approx((128 + 32) / (128 + 64), rel=0.01)


def test_a_generation_with_half_the_matrix_rate_per_special_function_hides_half_the_softmax() -> None:
    """GA102 has half of GA100's products a clock and multiprocessor, and as many exponentials (white paper)."""
    ratio = _native_seconds("rtx-a6000", LONG) / _native_seconds("a100-sxm-80gb", LONG)
    matmul = gpu("a100-sxm-80gb").peak("bf16") / gpu("rtx-a6000").peak("bf16")
    assert ratio / matmul == pytest.approx((128 + 8) / (128 + 16), rel=0.01)
