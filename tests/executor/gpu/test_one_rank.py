"""What only a GPU can show: one rank of a large plan, with random data and weights, beside its estimate.

``pytest -n 0 -m gpu tests/executor/gpu`` on a machine with one GPU, one after the other. None has run it yet.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout, num_microbatches
from costmodel.models.catalog import model
from planner.plan import Plan
from planner.problem import setting_of
from planner.search.verify import estimate_anew
from tests.executor.conftest import make_plan
from topology.builders import default_cluster
from topology.hardware.device_names import gpu_of_device

torch = pytest.importorskip("torch")

from executor.model.grouped import ends_of, multiply_groups
from executor.model.products.formats import EXPERTS_CAPABILITIES, FIRST_CAPABILITY, PRODUCTS, EightBits
from executor.parallel.affinity import bind
from executor.validation.validate import check_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]

MEMORY, TIME = 0.05, 0.10
LAYOUTS = {
    "ZeRO-3": ParallelLayout(dp=8, zero_stage=3),
    "tensor parallel": ParallelLayout(tp=4, dp=2, zero_stage=1, sequence_parallel=True),
    "recomputed": ParallelLayout(dp=8, zero_stage=3, recompute="full"),
}


def planned(gpu: str, name: str, layout: ParallelLayout) -> Plan:
    """A plan of eight such GPUs for a model, estimated by the cost model."""
    plan = make_plan(layout, spec=model(name), batch=64, sequence=4096)
    recomputed = (plan.layers_of_stage[0] * (layout.recompute == "full"),)
    request = replace(plan.request, cluster=default_cluster(gpu, 8).spec)
    plan = replace(plan, request=request, recompute_of_stage=recomputed)
    return estimate_anew(plan, setting_of(request), load_calibration())


def gpu_here() -> str:
    """The catalogue's name of this machine's GPU."""
    found = torch.cuda.get_device_properties(0)
    return gpu_of_device(found.name, float(found.total_memory))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_rank_allocates_and_takes_what_is_estimated(name: str) -> None:
    """Peak memory within 5 %; a microbatch forward and backward within 10 % of its computation."""
    plan = planned(gpu_here(), "llama-3.1-8b", LAYOUTS[name])
    check, (measured,) = check_gpu(plan)
    assert check.verdict == "holds", check.detail
    assert measured.estimated_bytes == pytest.approx(measured.peak_bytes, rel=MEMORY)
    time = plan.estimate.time
    each_s = (time.compute_s + time.recompute_s) / num_microbatches(plan.layout, plan.request.job)
    assert measured.forward_s + measured.backward_s == pytest.approx(each_s, rel=TIME)


@pytest.mark.parametrize("name", ["fp8", "mxfp8"])
def test_products_in_eight_bits_are_those_of_a_cpu(name: EightBits) -> None:
    """The same values are multiplied; sums of bf16 results may round otherwise."""
    if torch.cuda.get_device_capability() < FIRST_CAPABILITY[name]:
        pytest.skip(f"this GPU has no units for {name}")
    narrow = PRODUCTS[name]
    generator = torch.Generator().manual_seed(0)
    x, weight, gradient = (
        torch.randn(shape, generator=generator).bfloat16() for shape in ((256, 512), (384, 512), (256, 384))
    )
    for product, left, right in (
        (narrow.forward, x, weight),
        (narrow.of_input, gradient, weight),
        (narrow.of_weight, gradient, x),
    ):
        here, there = product(left, right), product(left.cuda(), right.cuda()).cpu()
        assert torch.allclose(here.float(), there.float(), rtol=2**-7, atol=1e-2 * float(here.abs().max()))


def test_experts_in_eight_bits_are_those_of_a_cpu() -> None:
    """The same, of groups that are no whole units, and without asking the device how long they are."""
    if torch.cuda.get_device_capability()[0] not in EXPERTS_CAPABILITIES:
        pytest.skip("torch has no kernel for experts in eight bits on this GPU")
    counts, generator, narrow = (
        torch.tensor([33, 0, 95, 128]),
        torch.Generator().manual_seed(0),
        PRODUCTS["fp8"],
    )
    rows, weight, gradient = (
        torch.randn(shape, generator=generator).bfloat16() for shape in ((256, 64), (4, 128, 64), (256, 128))
    )
    for product, left, right in (
        (narrow.of_groups, rows, weight),
        (narrow.of_group_rows, gradient, weight),
        (narrow.of_group_weights, gradient, rows),
    ):
        here, operands = (
            product(left, right, ends_of(counts)),
            (left.cuda(), right.cuda(), ends_of(counts.cuda())),
        )
        product(*operands)  # what is chosen at first may wait
        torch.cuda.set_sync_debug_mode("error")
        try:
            there = product(*operands)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.allclose(
            here.float(), there.cpu().float(), rtol=2**-7, atol=1e-2 * float(here.abs().max())
        )


def test_experts_multiply_without_waiting_for_the_host() -> None:
    """No row count is asked for: a synchronisation would be an error; equal to one product an expert."""
    counts = torch.tensor([32, 0, 96, 128])
    rows = torch.randn(256, 64, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(4, 128, 64, device="cuda", dtype=torch.bfloat16)
    ends = ends_of(counts.cuda())
    multiply_groups(rows, weight, ends, None)  # what is chosen at first may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = multiply_groups(rows, weight, ends, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    parts = rows.split(counts.tolist())
    expected = torch.cat([part @ matrix.t() for part, matrix in zip(parts, weight, strict=True)])
    assert torch.allclose(
        found.float(), expected.float(), rtol=2**-7, atol=1e-2 * float(expected.abs().max())
    )


def test_a_rank_is_bound_or_says_why_not() -> None:
    """Linux knows the address that torch gives."""
    assert bind(torch.device("cuda", 0)).endswith(("not bound", "nodes"))
