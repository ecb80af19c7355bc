"""GPUs before compute capability 8.0: what sustains a matmul, and which attention runs on them."""

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.compute import gemm_time
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.switches.profile import with_switches
from costmodel.training.estimate import estimate
from costmodel.training.slowdowns import attention_slowdown
from topology.builders import default_cluster
from topology.catalog import gpu, gpus
from topology.hardware.datasheets import generation_of

CAL = load_calibration()


def test_a_t4_sustains_the_matmul_that_was_published() -> None:
    """24 Tflop/s of 4,096 cubed in sixteen bits at 70 W, of 65 (forums.developer.nvidia.com 264462)."""
    seconds = float(gemm_time(CAL, gpu("t4"), "fp16", 4096, 4096, 4096).seconds)
    assert 2 * 4096**3 / seconds / 1e12 == pytest.approx(24, rel=0.1)


@pytest.mark.parametrize("name", sorted(gpus()))
def test_flash_attention_2_needs_compute_capability_8(name: str) -> None:
    """Before it the memory-efficient kernel takes twice as long; what a stack has slower stays as slow."""
    generation = generation_of(gpu(name))
    older = generation.maker == "nvidia" and generation.capability < (8, 0)
    assert generation.fused_attention_slowdown == (2.0 if older else 1.0)
    if older:
        plain = stack("pytorch-plain").timing
        assert attention_slowdown(plain, generation) == 2.0
        slower = with_switches(stack("pytorch-plain"), {"attention_kernel": "triton"}).timing
        assert attention_slowdown(slower, generation) == 2.0


def step_s(card: str, precision: str, **switches: str) -> float:
    """Seconds of a step of a small Llama on one card."""
    job = TrainingJob(sequence_length=2048, global_batch_size=1, precision=precision)
    profile = with_switches(stack("pytorch-plain"), switches)
    case = Case(
        model=model("tinyllama-1.1b"), cluster=default_cluster(card, 1), job=job, stack=profile, cal=CAL
    )
    return estimate(case, ParallelLayout(recompute="full")).step_time_s


def test_chained_updates_and_casts_cost_what_they_move() -> None:
    """52 bytes of a parameter more in a chain; casts of weights and fp32 passes come with fp32 weights."""
    fused, chained = (
        step_s("t4", "fp16", update_kernel=each, weight_dtype="bf16", gradient_dtype="fp32")
        for each in ("fused", "foreach")
    )
    parameters, unscaled = 1.1e9, 8
    assert chained - fused == pytest.approx((52 + unscaled) * parameters / 320e9, rel=0.02)
    assert step_s("t4", "fp16", weight_dtype="fp32", compile="on") > step_s("t4", "fp16", compile="on")
    assert step_s("t4", "fp16", weight_dtype="fp32") > step_s("t4", "fp16", weight_dtype="fp32", compile="on")
