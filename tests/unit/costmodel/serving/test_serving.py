"""Step times of a deployment, its memory, and what is deployed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import listed_model, model
from costmodel.models.parameters import parameter_count
from costmodel.models.spec import layer_runs
from costmodel.serving.breakdown import decode_parts_s
from costmodel.serving.deployment import (
    Deployment,
    ServingLayout,
    Weights,
    draft_of,
    stage_layers,
    stored_bytes,
    weight_bytes,
)
from costmodel.serving.engine import serving_stack, serving_stacks, without_overlap
from costmodel.serving.memory import (
    draft_weights_bytes,
    kv_bytes_per_token,
    kv_capacity_tokens,
    latent_copies_bytes,
    memory_breakdown,
    positions_bytes,
    weights_bytes,
)
from costmodel.serving.ops import (
    all_reduce_s,
    decode_attention_s,
    launches_s,
    linear_s,
    operations,
    projections_s,
    small_kernels,
)
from costmodel.serving.step import step_times
from topology.base.errors import InputError
from topology.builders import default_cluster
from topology.hardware.datasheets import allocatable_bytes

CAL = load_calibration()


def deployed(name: str = "70b", gpu: str = "h100-sxm", **layout: int) -> Deployment:
    return Deployment(
        model=model(name),
        hierarchy=default_cluster(gpu, 64).hierarchy,
        layout=ServingLayout(**layout),
        stack=serving_stack("vllm"),
    )


@pytest.mark.parametrize("name", ["8b", "70b", "mixtral-8x22b", "deepseek-v3", "gpt-oss-120b"])
def test_weights_on_one_gpu_are_the_parameters_of_the_model(name: str) -> None:
    """Unsplit, two bytes a parameter (norms and a router's bias apart: a thousandth).

    Beside them copies for latents, and tables of positions.
    """
    tied = model(name).tie_word_embeddings
    beside = model(name).num_layers * latent_copies_bytes(deployed(name)) + positions_bytes(model(name))
    expected = 2 * parameter_count(model(name)) + beside
    assert weights_bytes(deployed(name)) == pytest.approx(expected, rel=1e-3)
    assert not tied


def test_every_layout_holds_the_whole_model_at_least_once() -> None:
    """Weights over all GPUs are no fewer than the parameters."""
    for layout in ({"tp": 8}, {"tp": 2, "pp": 4}, {"attention_dp": 8, "ep": 8}, {"tp": 8, "ep": 8}):
        deployment = deployed("deepseek-v3", **layout)
        total = weights_bytes(deployment) * deployment.layout.num_gpus
        assert total >= 2 * parameter_count(deployment.model) * 0.999


def test_the_kv_cache_of_a_token_is_its_keys_and_values() -> None:
    """70B: 80 layers of 8 heads of 128, keys and values, two bytes: 320 KiB.

    Latent attention: 61·576 numbers.
    """
    assert kv_bytes_per_token(deployed("70b")) == 80 * 8 * 128 * 2 * 2
    assert kv_bytes_per_token(deployed("70b", tp=8)) == 80 * 1 * 128 * 2 * 2
    assert kv_bytes_per_token(deployed("deepseek-v3")) == 61 * 576 * 2
    assert kv_bytes_per_token(deployed("deepseek-v3", tp=8)) == 61 * 576 * 2


def test_sliding_layers_keep_only_their_window() -> None:
    """Half of gpt-oss's layers stop growing at 128 tokens."""
    full = kv_bytes_per_token(deployed("gpt-oss-120b"), context=128)
    long = kv_bytes_per_token(deployed("gpt-oss-120b"), context=128_000)
    assert long / full == pytest.approx(0.5, abs=0.01)


def test_memory_parts_sum_to_what_the_engine_may_use() -> None:
    """Weights, workspace and cache fill the engine's share of the GPU."""
    deployment = deployed("70b", tp=4)
    parts = memory_breakdown(deployment, token_budget=2048, max_batch=256)
    assert parts.total_bytes == pytest.approx(0.92 * allocatable_bytes(deployment.hierarchy.gpu))


def test_an_fp8_cache_holds_twice_the_tokens() -> None:
    """Half the bytes a token."""
    plain = deployed("70b", tp=4)
    small = replace(plain, kv_dtype="fp8")
    ratio = kv_capacity_tokens(small, token_budget=2048, max_batch=256, context=4096) / kv_capacity_tokens(
        plain, token_budget=2048, max_batch=256, context=4096
    )
    assert ratio == pytest.approx(2.0, rel=1e-3)


def test_stages_are_balanced_and_complete() -> None:
    """Layers of stages differ by one at most and sum to the model's."""
    for name in ("70b", "deepseek-v3", "405b"):
        for pp in (1, 2, 3, 4, 8):
            layers = stage_layers(model(name), pp)
            assert sum(layers) == model(name).num_layers
            assert max(layers) - min(layers) <= 1


def test_a_decode_step_is_never_faster_than_reading_the_weights() -> None:
    """70B on four H100: 35 GB a GPU at 3.35 TB/s take 10.5 ms."""
    deployment = deployed("70b", tp=4)
    times = step_times(CAL, deployment, max_batch=4, token_budget=2048, input_tokens=100, output_tokens=10)
    read_s = weights_bytes(deployment) / deployment.hierarchy.gpu.memory_bandwidth_bytes_per_s
    assert times.decode_s(1, 100) > read_s
    assert times.decode_s(1, 100) < 2 * read_s


def test_step_times_grow_with_the_batch_and_the_context() -> None:
    """More requests, longer caches and more prompt tokens never take less time."""
    times = step_times(
        CAL, deployed("70b", tp=8), max_batch=256, token_budget=4096, input_tokens=2000, output_tokens=500
    )
    by_batch = [times.decode_s(b, 2000 * b) for b in range(1, 257)]
    assert (np.diff(by_batch) >= -0.02 * np.array(by_batch[:-1])).all()
    assert times.decode_s(32, 32 * 4000) > times.decode_s(32, 32 * 1000)
    prefill = [times.prefill_s(tokens) for tokens in (256, 1024, 2048, 4096)]
    assert prefill == sorted(prefill)


def test_small_reductions_use_the_engines_own_kernel() -> None:
    """Below a few hundred KiB the one-shot kernel beats NCCL; far above it does not."""
    deployment = deployed("70b", tp=8)
    small, large = all_reduce_s(CAL, deployment, np.array([16e3, 64e6]))
    assert small < 20e-6
    assert large > 200e-6


@pytest.mark.parametrize(
    ("gpu", "tp", "has_kernel"),
    [("h100-sxm", 8, True), ("rtx-pro-6000", 2, True), ("rtx-pro-6000", 4, False), ("rtx-4090", 2, False)],
)
def test_over_pcie_the_engines_kernel_is_between_two_gpus_that_read_each_other(
    gpu: str, tp: int, *, has_kernel: bool
) -> None:
    """VLLM leaves more than two GPUs without NVLink to NCCL (issue 56128), as those without peer access."""
    deployment = deployed("8b", gpu, tp=tp)
    sizes = np.array([16e3, 256e3])
    nccl = collective_time(CAL, deployment.hierarchy, "all_reduce", sizes, tp, 1)
    assert bool((all_reduce_s(CAL, deployment, sizes) < nccl).any()) is has_kernel


def test_the_parts_of_a_decode_step_sum_to_the_step() -> None:
    """What a step is said to be bound by is what it is made of."""
    deployment = deployed("70b", tp=8)
    times = step_times(CAL, deployment, max_batch=64, token_budget=2048, input_tokens=2000, output_tokens=200)
    parts = decode_parts_s(CAL, deployment, 64, 2100.0)
    assert sum(parts.values()) == pytest.approx(times.decode_s(64, 64 * 2100.0), rel=0.05)


def test_a_pipeline_round_is_the_sum_of_its_stages() -> None:
    """One request sees every layer once, whatever the stages (plus the sends)."""
    one = step_times(
        CAL, deployed("70b", tp=4), max_batch=4, token_budget=512, input_tokens=1000, output_tokens=100
    )
    two = step_times(
        CAL, deployed("70b", tp=4, pp=2), max_batch=4, token_budget=512, input_tokens=1000, output_tokens=100
    )
    assert two.decode_s(1, 1000) == pytest.approx(one.decode_s(1, 1000), rel=0.05)
    assert two.prefill_s(512) == pytest.approx(one.prefill_s(512) / 2, rel=0.25)


def test_steps_without_a_graph_are_bound_by_their_launches() -> None:
    """A prompt of a small model costs the launches of its layers, unless its step is captured."""
    deployment = deployed("8b", tp=8)
    largest = deployment.stack.prompt_graph_tokens
    of_layer = operations(deployment, layer_runs(deployment.model)[0].kind)
    captured, eager = linear_s(CAL, deployment, [largest, largest + 1], captured=False)
    assert eager == pytest.approx(32 * of_layer * deployment.stack.launch_s)
    assert captured < eager


@pytest.mark.parametrize(
    ("name", "weights", "expected"),
    [
        # norms 2, core 1, products 4, activation 1 ("8b" in bf16); each product with its quantisation in fp8
        ("8b", "bf16", 2 + 1 + 4 + 1),
        ("8b", "fp8", 2 + 1 + 2 * 4 + 1),
        # latent attention: core 1, six more, four products, two streams; experts 5, shared 5, two streams
        ("deepseek-v3", "fp8", 2 + (1 + 6 + 2 * 4 + 4) + (4 + 1) + (2 * 2 + 1) + 4),
    ],
)  # fmt: skip
def test_operations_of_a_layer_are_what_the_host_launches(name: str, weights: Weights, expected: int) -> None:
    """The last layer's, counted by hand."""
    deployment = replace(deployed(name, tp=8), weights=weights)
    assert operations(deployment, layer_runs(deployment.model)[-1].kind) == expected


def test_experts_that_triton_unpacks_are_launched_in_more_operations() -> None:
    """TensorRT-LLM's MXFP4 on Hopper: nine from router to sum, twelve where ranks divide the experts."""
    whole = replace(
        deployed("gpt-oss-120b"), stack=serving_stack("trtllm"), weights="fp4", layout=ServingLayout()
    )
    divided = replace(whole, layout=ServingLayout(tp=8, ep=8))
    kind = layer_runs(whole.model)[-1].kind
    fused = operations(replace(whole, stack=serving_stack("vllm")), kind)
    assert [operations(each, kind) - fused for each in (whole, divided)] == [9 - 4, 12 - 4]


def test_a_host_that_is_told_how_many_tokens_come_launches_no_layer_ahead() -> None:
    """DeepEP's normal kernels: launches on top of the GPU's work, whatever the prompt; alone they are its floor."""
    served = replace(deployed("deepseek-v3"), weights="fp8", layout=ServingLayout(attention_dp=8, ep=8))
    told = replace(served, stack=replace(served.stack, counted_exchange=True))
    tokens = [4096.0, 16384.0]
    ahead, behind = (linear_s(CAL, each, tokens, captured=False) for each in (served, told))
    work = linear_s(CAL, served, tokens, captured=True)
    assert behind - ahead == pytest.approx(launches_s(served), rel=0.1)
    assert (behind > work).all()


def test_an_eight_bit_cache_takes_its_own_share_of_attention() -> None:
    """Kernels that turn or widen what they read; the latency of a launch is none of it."""
    deployment = replace(deployed("8b"), kv_dtype="fp8")
    at_once, slower = (
        decode_attention_s(
            CAL, replace(deployment, stack=replace(deployment.stack, eight_bit_share=share)), 64, 4000
        )
        for share in (1.0, 1.5)
    )
    launches = deployment.model.num_layers * deployment.stack.attention_s
    assert slower - launches == pytest.approx(1.5 * (at_once - launches))
    wide = replace(deployment, kv_dtype="bf16")
    assert decode_attention_s(CAL, wide, 64, 4000) == decode_attention_s(
        CAL, replace(wide, stack=replace(wide.stack, eight_bit_share=1.5)), 64, 4000
    )


def test_an_output_projection_of_four_bits_is_read_and_held_so() -> None:
    """DeepSeek-R1-0528's second fp4 checkpoint: 7,168 × 16,384 numbers of a layer in 0.53 bytes, not two."""
    first, second = (
        replace(deployed("deepseek-r1", "b200-sxm"), model=listed_model(name), weights="fp4")
        for name in ("nvidia/DeepSeek-R1-0528-FP4", "nvidia/DeepSeek-R1-0528-FP4-v2")
    )
    output = 7168 * 16384
    attention = first.model.attention.parameters
    saved = (stored_bytes(first, "attention") - stored_bytes(second, "attention")) * attention
    assert saved == pytest.approx(output * (2 - weight_bytes("fp4")), rel=1e-6)
    kind = layer_runs(first.model)[-1].kind
    assert projections_s(CAL, second, kind, np.array([1.0])) < projections_s(
        CAL, first, kind, np.array([1.0])
    )
    assert small_kernels(second, kind) == small_kernels(first, kind) + 1


def test_speculation_follows_the_acceptance_rate() -> None:
    """Three drafts accepted at 0.8 give (1 − 0.8⁴)/0.2 = 2.952 tokens a step."""
    deployment = replace(deployed("70b", tp=4), draft_tokens=3, acceptance=0.8)
    assert deployment.tokens_per_step == pytest.approx(2.952)
    assert deployed("70b").tokens_per_step == 1.0


@pytest.mark.parametrize(
    ("name", "drafter", "published"),
    [
        ("70b", "llama-3.2-1b", 2 * 1.2359e9),  # its 1.24 G parameters
        # the shapes of published heads: 3H to H, a Llama layer whose attention reads 2H, 32,000 outputs
        ("8b", "eagle3", 2 * (3 * 4096**2 + 2 * 4096 * 6144 + 4096**2 + 3 * 4096 * 14336 + 32000 * 4096)),
        ("70b", "eagle3", 2 * (3 * 8192**2 + 2 * 8192 * 10240 + 8192**2 + 3 * 8192 * 28672 + 32000 * 8192)),
    ],
)
def test_a_drafter_takes_the_memory_of_its_checkpoint(name: str, drafter: str, published: float) -> None:
    """Within a tenth of what is loaded; and its cache is that of its layers."""
    plain = deployed(name)
    drafted = replace(plain, draft_tokens=3, acceptance=0.7, drafter=drafter)
    assert weights_bytes(drafted) - weights_bytes(plain) == pytest.approx(published, rel=0.1)
    own = draft_of(drafted)
    assert own is not None
    assert kv_bytes_per_token(drafted) - kv_bytes_per_token(plain) == kv_bytes_per_token(own)


def test_the_module_that_deepseek_drafts_with_is_as_large_as_published() -> None:
    """DeepSeek-V3's README: 11.5 G parameters of the module that its checkpoint adds, without shared ones."""
    plain = replace(deployed("deepseek-v3", tp=8, ep=8), weights="fp8")
    drafted = replace(plain, draft_tokens=1, acceptance=0.85, drafter="mtp")
    added = 8 * (weights_bytes(drafted) - weights_bytes(plain))
    assert added == pytest.approx(11.5e9, rel=0.1)


@pytest.mark.parametrize("drafter", ["eagle3", "llama-3.2-1b"])
def test_drafts_take_time_in_every_step(drafter: str) -> None:
    """More for each draft, and more than reading the drafter's weights as often from memory."""
    sizes = {"max_batch": 8, "token_budget": 512, "input_tokens": 1000, "output_tokens": 200}
    plain = replace(deployed("70b", tp=4), draft_tokens=3, acceptance=0.7)
    free = step_times(CAL, plain, **sizes)
    drafted = replace(plain, drafter=drafter)
    more = step_times(CAL, drafted, **sizes)
    extra_s = more.decode_s(1, 1000) - free.decode_s(1, 1000)
    read_s = 3 * draft_weights_bytes(drafted) / plain.hierarchy.gpu.memory_bandwidth_bytes_per_s
    assert read_s * 0.8 < extra_s < 10 * read_s
    assert more.prefill_s(500) > free.prefill_s(500)
    parts = decode_parts_s(CAL, drafted, 1, 1000.0)
    assert parts["drafting"] == pytest.approx(extra_s, rel=0.05)
    assert more.tokens_per_step == free.tokens_per_step


def test_a_layout_whose_experts_do_not_divide_is_refused() -> None:
    """The degree ep must divide the GPUs of a stage."""
    with pytest.raises(InputError, match="the serving layout is not possible"):
        ServingLayout(tp=4, ep=3)


def test_every_engine_says_what_its_numbers_were_fitted_on() -> None:
    """No profile without a source and a date; all times are positive."""
    for stack in serving_stacks().values():
        assert stack.source
        assert stack.as_of
        assert min(stack.host_s, stack.kernel_s, stack.all_reduce_s, stack.response_s) > 0


SIZES = {"max_batch": 64, "token_budget": 2048, "input_tokens": 1000, "output_tokens": 200}


def decode_s(deployment: Deployment, batch: int = 64) -> float:
    """Seconds of a decode step in the middle of the outputs."""
    return step_times(CAL, deployment, **SIZES).decode_s(batch, batch * 1100)


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_a_step_beside_its_host_lasts_as_long_as_the_slower(engine: str) -> None:
    """The host's own work is waited for only where the GPU and what it cannot hide take less."""

    def with_loop(loop_s: float, each_s: float, host_s: float = 0.0) -> float:
        own: dict[str, Any] = {"loop_s": loop_s, "loop_s_per_request": each_s, "host_s": host_s}
        return decode_s(replace(deployed(tp=8), stack=replace(serving_stack(engine), **own)))

    gpu_s = with_loop(0.0, 0.0)
    assert with_loop(gpu_s / 2, 0.4 * gpu_s / 64) == pytest.approx(gpu_s)
    assert with_loop(gpu_s / 2, gpu_s / 64) == pytest.approx(1.5 * gpu_s)
    assert with_loop(gpu_s / 2, 0.0, host_s=1e-3) == pytest.approx(gpu_s + 1e-3)
    assert with_loop(gpu_s + 2e-3, 0.0, host_s=1e-3) == pytest.approx(gpu_s + 2e-3)


def test_a_host_that_works_between_steps_adds_to_each() -> None:
    """SGLang's work per request; all that an engine exposes where it cannot work ahead."""
    sglang = replace(deployed(tp=8), stack=replace(serving_stack("sglang"), host_s_per_request=0.0))
    slower = replace(sglang, stack=replace(sglang.stack, host_s_per_request=1e-5))
    assert decode_s(slower) == pytest.approx(decode_s(sglang) + 64e-5)
    stack = replace(serving_stack("vllm"), host_s=0.0, loop_s=2e-3, loop_s_per_request=1e-5)
    ahead, after = (decode_s(replace(deployed(tp=8), stack=each)) for each in (stack, without_overlap(stack)))
    assert after == pytest.approx(ahead + stack.exposed_share * (2e-3 + 64e-5))


@pytest.mark.parametrize("name", ["8b", "deepseek-v3"])
def test_a_step_that_no_graph_holds_lasts_as_long_as_its_launches(name: str) -> None:
    """Of few requests all of the launches, of many what the GPU takes; graphs of fewer hold fewer."""
    layout = {"tp": 8, "ep": 8} if name == "deepseek-v3" else {"tp": 1}
    deployment = deployed(name, "h200-sxm", **layout)
    graphs, eager, some = (
        replace(deployment, stack=replace(deployment.stack, graph_batch=batch)) for batch in (None, 0, 16)
    )
    host_s = deployment.stack.host_s
    assert decode_s(eager, 1) == pytest.approx(launches_s(deployment) + host_s)
    assert decode_s(eager, 64) == pytest.approx(max(launches_s(deployment) + host_s, decode_s(graphs, 64)))
    assert decode_s(some, 16) == decode_s(graphs, 16)
    assert decode_s(some, 17) == pytest.approx(decode_s(eager, 17), rel=1e-3)
    parts = decode_parts_s(CAL, eager, 1, 1100.0)
    assert sum(parts.values()) == pytest.approx(decode_s(eager, 1), rel=0.01)


@pytest.mark.parametrize(("gpu", "tp"), [("h100-sxm", 8), ("h100-sxm", 2), ("rtx-pro-6000", 2)])
def test_reductions_without_the_engines_kernel_or_peer_access_are_slower(gpu: str, tp: int) -> None:
    """NCCL alone where the kernel is off; NCCL's larger messages through hosts where peers are forbidden."""
    deployment, sizes = deployed("8b", gpu, tp=tp), np.array([16e3, 1e6, 64e6])
    own = all_reduce_s(CAL, deployment, sizes)
    off = replace(deployment, stack=replace(deployment.stack, own_all_reduce=False))
    nccl = collective_time(CAL, deployment.hierarchy, "all_reduce", sizes, tp, 1)
    assert all_reduce_s(CAL, off, sizes) == pytest.approx(nccl)
    staged = all_reduce_s(CAL, replace(off, peers=False), sizes)
    assert (staged > nccl)[1:].all()
    beside = all_reduce_s(CAL, replace(deployment, peers=False), sizes)
    assert beside[0] == pytest.approx(own[0])
    assert beside[2] == pytest.approx(staged[2])


def test_no_reduction_over_pcie_moves_bytes_faster_than_was_measured() -> None:
    """Two GPUs with peer access: the engine's kernel has a shorter latency than NCCL, and the same rate."""
    deployment = deployed("8b", "rtx-pro-6000", tp=2)
    small, large = all_reduce_s(CAL, deployment, np.array([4e6, 8e6]))
    slow, slower = collective_time(CAL, deployment.hierarchy, "all_reduce", np.array([32e6, 64e6]), 2, 1)
    assert 4e6 / (large - small) == pytest.approx(32e6 / (slower - slow), rel=0.1)


def test_heads_of_two_sizes_keep_and_weigh_what_their_layers_have() -> None:
    """Gemma 4 31B in bf16 on two GPUs: 50 windows of 8 x 256 keys and values, 10 layers of 2 x 512."""
    deployment = Deployment(
        model=model("gemma-4-31b"), hierarchy=default_cluster("h100-sxm", 8).hierarchy,
        layout=ServingLayout(tp=2), stack=serving_stack("vllm"),
    )  # fmt: skip
    length = 100_000
    local, wide = 50 * 1024 * 2 * 8 * 256 * 2, 10 * length * 2 * 2 * 512 * 2
    assert length * kv_bytes_per_token(deployment, length) == pytest.approx(local + wide)
    parameters = weights_bytes(deployment) - positions_bytes(deployment.model)
    assert parameters == pytest.approx(30.697e9, rel=0.001)
