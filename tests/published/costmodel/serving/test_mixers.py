"""Mixers of 2026 beside measured modules and kernels: aiconfigurator 095f58a51c4c (Apache-2.0).

A module is one layer's projections, indexer, core and output on one GPU, at 16 query heads of a rank.
"""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.kernels.compute import gemm_time
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.models.spec import layer_runs
from costmodel.serving.deployment import Deployment, KvDtype, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import kv_bytes_per_token
from costmodel.serving.mixer_kernels import mixer_kernel
from costmodel.serving.mixers import decode_core_s, mixer_products, state_bytes
from costmodel.serving.ops import small_kernels
from topology.builders import default_cluster

CAL = load_calibration()
MODULE_TOLERANCE = 0.3
"""Of a module, whose kernels were timed apart: half of the calls lie within a sixth, most within this."""
KERNEL_TOLERANCE = 0.25
MODULES = [
    # model, GPU, engine, cache, kind of layer, requests, tokens in the cache, microseconds
    ("deepseek-v3.2", "h200-sxm", "sglang", "bf16", "", 1, 4096, 85),
    ("deepseek-v3.2", "h200-sxm", "sglang", "bf16", "", 16, 16384, 116),
    ("deepseek-v3.2", "h200-sxm", "sglang", "bf16", "", 64, 4096, 145),
    ("deepseek-v3.2", "b200-sxm", "sglang", "fp8", "", 1, 16384, 78),
    ("deepseek-v3.2", "b200-sxm", "sglang", "fp8", "", 64, 4096, 122),
    ("deepseek-v3.2", "h200-sxm", "vllm", "fp8", "", 1, 4096, 167),
    ("deepseek-v3.2", "h200-sxm", "vllm", "fp8", "", 16, 32768, 224),
    ("deepseek-v4-flash", "h200-sxm", "vllm", "fp8", "sparse", 1, 4096, 86),
    ("deepseek-v4-flash", "h200-sxm", "vllm", "fp8", "sparse", 64, 16384, 138),
    ("deepseek-v4-pro", "h200-sxm", "vllm", "fp8", "sparse", 16, 16384, 108),
    ("deepseek-v4-pro", "b200-sxm", "sglang", "fp8", "heavy", 1, 4096, 57),
    ("deepseek-v4-flash", "b200-sxm", "sglang", "fp8", "heavy", 64, 16384, 69),
]
STEPS = [
    # GPU, tensor-parallel ranks, requests, microseconds of the recurrent step of Qwen3.5-397B-A17B (vLLM 0.24)
    ("h200-sxm", 1, 1, 5.4),
    ("h200-sxm", 1, 256, 527.7),
    ("h200-sxm", 4, 64, 38.9),
    ("b200-sxm", 1, 256, 331.3),
    ("b200-sxm", 8, 64, 13.3),
]


def deployed(
    name: str, gpu: str = "h200-sxm", engine: str = "vllm", kv_dtype: KvDtype = "bf16", tp: int = 1
) -> Deployment:
    """A model of which a rank has so many query heads."""
    return Deployment(
        model=model(name),
        hierarchy=default_cluster(gpu, 8).hierarchy,
        layout=ServingLayout(tp=tp),
        stack=serving_stack(engine),
        weights="fp8",
        kv_dtype=kv_dtype,
    )


@pytest.mark.parametrize(
    ("name", "gpu", "engine", "kv", "reach", "batch", "context", "published_us"), MODULES
)
def test_a_decoding_layer_takes_what_its_module_was_measured_at(
    name: str, gpu: str, engine: str, kv: KvDtype, reach: str, batch: int, context: int, published_us: float
) -> None:
    """Products, indexer, core and small kernels of one layer; ranks' reductions are no part of a module."""
    deployment = deployed(name, gpu, engine, kv, tp=model(name).num_attention_heads // 16)
    kinds = [run.kind for run in layer_runs(deployment.model)]
    kind = next(each for each in kinds if each.attention == reach) if reach else kinds[-1]
    rows, gpu_of = np.array([float(batch)]), deployment.hierarchy.gpu
    products = sum(
        gemm_time(CAL, gpu_of, "fp8", rows, n, k).seconds for n, k in mixer_products(deployment, kind)
    )
    core = decode_core_s(CAL, deployment, kind, batch, context)
    seconds = (
        float(np.sum(products)) + float(core) + small_kernels(deployment, kind) * deployment.stack.kernel_s
    )
    assert seconds * 1e6 == pytest.approx(published_us, rel=MODULE_TOLERANCE)


@pytest.mark.parametrize(("gpu", "tp", "batch", "published_us"), STEPS)
def test_a_recurrent_step_reads_and_writes_its_state(
    gpu: str, tp: int, batch: int, published_us: float
) -> None:
    """The convolution before it, a kernel of a few microseconds, is part of the core."""
    deployment = deployed("qwen3.5-397b-a17b", gpu, tp=tp)
    kind = next(run.kind for run in layer_runs(deployment.model) if run.kind.attention == "recurrence")
    seconds = float(decode_core_s(CAL, deployment, kind, batch, 4096))
    convolution_s = mixer_kernel("convolution-step").launch_s
    assert (seconds - convolution_s) * 1e6 == pytest.approx(published_us, rel=KERNEL_TOLERANCE)


def test_a_request_keeps_its_states_once_and_its_keys_per_token() -> None:
    """Qwen3.5-27B: 48 states of 48 heads x 128 x 128 in fp32, 16 layers of 2 x 4 x 256 numbers in bf16."""
    deployment = deployed("qwen3.5-27b", engine="sglang")
    states = 48 * state_bytes(deployment)
    convolutions = 48 * 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert states == 48 * 48 * 128 * 128 * 4 + convolutions
    for context in (1000, 100_000):
        kept = context * 16 * 2 * 4 * 256 * 2 + states
        assert kv_bytes_per_token(deployment, context) * context == pytest.approx(kept)


def test_a_state_is_of_fixed_size() -> None:
    """Qwen3-Next: 32 heads of 128 × 128 in fp32, and three inputs of 8,192 channels, a layer."""
    assert state_bytes(deployed("qwen3-next-80b-a3b")) == 4 * 32 * 128 * 128 + 2 * 3 * 8192


def test_an_indexer_keeps_a_key_of_its_size_in_eight_bits_beside_the_latent() -> None:
    """DeepSeek-V3.2: 61 layers of 576 numbers in bf16 and 132 bytes of the indexer (vLLM, deepseek_v2.py)."""
    assert kv_bytes_per_token(deployed("deepseek-v3.2")) == pytest.approx(61 * (576 * 2 + 132))


def test_compressed_attention_keeps_a_window_and_its_entries() -> None:
    """DeepSeek-V4-Flash: 43 windows of 128, 21 layers of an entry and a key of the indexer for four tokens."""
    deployment = deployed("deepseek-v4-flash", engine="sglang", kv_dtype="fp8")
    context, entry = 32_768, 512
    kept = 43 * 128 * entry + 21 * (entry + 132) * context / 4 + 20 * entry * context / 128
    assert kv_bytes_per_token(deployment, context) * context == pytest.approx(kept)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_a_rank_of_one_group_keeps_what_vllm_shapes(tp: int) -> None:
    """`mamba2_state_shape` of 128 heads of 64 and one group of 128 (Granite 4): each rank has a copy of the group.

    In bf16 the convolution keeps 3 inputs of (8,192 + 2·128·tp)/tp channels, in fp32 the state 128/tp heads.
    """
    here = deployed("granite-4.0-h-small", tp=tp)
    channels, heads = (8192 + 2 * 128 * tp) // tp, 128 // tp
    assert state_bytes(here) == 2 * 3 * channels + 4 * heads * 64 * 128
    kind = next(run.kind for run in layer_runs(here.model) if run.kind.attention == "recurrence")
    assert mixer_products(here, kind)[0] == ((2 * 8192 + 2 * 128 * tp + 128) / tp, here.model.hidden_size)
