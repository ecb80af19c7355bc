"""The head of a model in a step: what it multiplies in, and the passes of its loss over the logits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.ops.layer import head_dtype
from costmodel.stack import SoftwareStack, stack, stacks
from costmodel.switches.profile import with_switches
from costmodel.training.constants import default_constants
from costmodel.training.estimate import estimate
from costmodel.training.priced import price_layouts
from topology.builders import default_cluster

CAL, CONSTANTS, CORE = load_calibration(), default_constants(), stack("megatron-core")
JOB = TrainingJob(sequence_length=4096, global_batch_size=64, precision="mxfp8")


def profile(**timing: float | bool) -> SoftwareStack:
    """Megatron-Core's with these properties."""
    return replace(CORE, timing=replace(CORE.timing, **timing))  # type: ignore[arg-type]


def head_s(used: SoftwareStack, gpu: str = "b200-sxm", job: TrainingJob = JOB) -> float:
    """Seconds of a microbatch of the head of DeepSeek-V3 on the last of two stages."""
    table = LayoutTable.from_rows([ParallelLayout(pp=2, dp=4, ep=4)])
    costs = price_layouts(
        Case(model=model("deepseek-v3"), cluster=default_cluster(gpu, 8), job=job, stack=used, cal=CAL),
        table,
        constants=CONSTANTS,
    ).costs
    return float(costs.last_s[0])


@pytest.mark.parametrize(
    ("precision", "told", "dtype"),
    [("mxfp8", True, "training_fp8"), ("mxfp8", False, "bf16"), ("fp8", True, "bf16"), ("bf16", True, "bf16"),
     ("nvfp4", True, "bf16")],
)  # fmt: skip
def test_the_head_multiplies_in_eight_bits_where_mxfp8_is_told_so(
    precision: str, told: bool, dtype: str
) -> None:
    """``fp8_output_proj`` of Megatron-Core, which takes no other recipe."""
    job = replace(JOB, precision=precision)  # type: ignore[arg-type]
    assert head_dtype(job, profile(narrow_head=told)) == dtype


def test_a_head_in_eight_bits_takes_about_half() -> None:
    """Units of twice the rate; the loss stays as it is, and clocks throttle less."""
    narrow, wide = head_s(profile(narrow_head=True)), head_s(profile())
    assert 0.4 * wide < narrow < 0.6 * wide


def test_no_shipped_profile_says_so_of_itself() -> None:
    """Recipes of single runs do."""
    assert not any(one.timing.narrow_head for one in stacks().values())


def test_the_loss_takes_what_its_kernels_move() -> None:
    """In proportion to the bytes of both directions, where clocks are not throttled."""
    job = replace(JOB, precision="bf16")
    none, once, twice = (
        head_s(profile(loss_forward_bytes=6 * n, loss_backward_bytes=4 * n), "a100-sxm-80gb", job)
        for n in (1e-6, 1, 2)
    )
    assert twice - once == pytest.approx(once - none, rel=1e-4)
    logits = 4096 * model("deepseek-v3").vocab_size
    bandwidth = default_cluster("a100-sxm-80gb", 8).gpu.memory_bandwidth_bytes_per_s
    assert 1.0 < (once - none) / (10 * logits / bandwidth) < 1.3


def test_a_backward_that_nobody_counted_moves_what_megatrons_moves() -> None:
    """Its softmax times the gradient 8, to sixteen bits 6 (megatron core tensor_parallel/cross_entropy.py)."""
    counted = profile(loss_forward_bytes=10.0, loss_backward_bytes=14.0)
    assert head_s(profile(loss_forward_bytes=10.0)) == pytest.approx(head_s(counted))


def test_transformer_engines_loss_passes_over_logits_five_times() -> None:
    """Two reads and the gradient in place forward, then the gradient of the loss times it, of sixteen bits."""
    timing = stack("megatron-bridge").timing
    assert (timing.loss_forward_bytes, timing.loss_backward_bytes) == (3 * 2, 2 * 2)


def test_a_vocabulary_that_is_no_multiple_of_eight_slows_the_products_of_an_unpadded_head() -> None:
    """GPT-2 124M of rasbt on one A100, compiled: 64.3 ms with 50,304 words, 73.1 with 50,257 (printed tokens/s).

    A stack that pads has multiples of 128 whatever the tokenizer has.
    """
    job = TrainingJob(sequence_length=1024, global_batch_size=8)
    layout = ParallelLayout(microbatch_size=8)

    def ratio(profile: str) -> float:
        plain = with_switches(stack(profile), {"compile": "on"})
        cluster = default_cluster("a100-sxm-40gb", 1)
        even, odd = (
            estimate(Case(model=spec, cluster=cluster, job=job, stack=plain, cal=CAL), layout).step_time_s
            for spec in (replace(model("gpt2"), vocab_size=words) for words in (50304, 50257))
        )
        return odd / even

    assert ratio("pytorch-plain") == pytest.approx(73.11 / 64.33, rel=0.03)
    assert ratio("megatron-core") == pytest.approx(1.0, abs=0.002)
