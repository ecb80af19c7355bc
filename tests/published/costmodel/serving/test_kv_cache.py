"""Tokens of KV cache as the engines report them.

Source: vllm-project/vllm issue 21348 (2025-07-22), Qwen3-235B-A22B-FP8 on 4 × H100, tensor parallel.
"""

from dataclasses import replace

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import at_version, serving_stack
from costmodel.serving.memory import (
    engine_bytes,
    kv_bytes_per_token,
    kv_capacity_tokens,
    memory_breakdown,
    workspace_bytes,
)
from topology.base.units import GIB
from topology.builders import default_cluster


def deployed(engine: str) -> Deployment:
    """What the issue's commands start, in releases of its day."""
    released = {"vllm": "0.9.2", "sglang": "0.4.9"}[engine]
    return Deployment(
        model=model("qwen3-235b-a22b"),
        hierarchy=default_cluster("h100-sxm", 4).hierarchy,
        layout=ServingLayout(tp=4),
        stack=at_version(serving_stack(engine), released),
        weights="fp8",
    )


@pytest.mark.parametrize(
    ("engine", "cache_gib", "reported_tokens"), [("vllm", 8.11, 178_880), ("sglang", 8.23 + 8.23, 367_404)]
)
def test_reported_cache_holds_the_reported_tokens(
    engine: str, cache_gib: float, reported_tokens: int
) -> None:
    """Bytes of the cache over bytes of a token, within 2 %."""
    assert cache_gib * GIB / kv_bytes_per_token(deployed(engine)) == pytest.approx(reported_tokens, rel=0.02)


@pytest.mark.parametrize(
    ("engine", "fraction", "reported_tokens"), [("vllm", 0.9, 178_880), ("sglang", 0.93, 367_404)]
)
def test_capacity_is_what_the_engine_reports(engine: str, fraction: float, reported_tokens: int) -> None:
    """Weights, sampling and activations off the engine's share of an H100, within 2 %.

    Steps of 8,192 tokens and 1,024 requests are vLLM's defaults on that GPU.
    """
    tokens = kv_capacity_tokens(
        deployed(engine), token_budget=8192, max_batch=1024, memory_fraction=fraction, context=40_960
    )
    assert tokens == pytest.approx(reported_tokens, rel=0.02)


def test_cache_behind_pcie_is_what_vllm_reports() -> None:
    """8.69 GiB a GPU of two RTX 4090 at 0.98 (vllm issue 13061: Qwen2.5 14B), less what vLLM profiles since.

    That version profiled no sampling; a batch of one has few graphs.
    """
    deployment = Deployment(
        model=model("qwen2.5-14b"),
        hierarchy=default_cluster("rtx-4090", 2).hierarchy,
        layout=ServingLayout(tp=2),
        stack=serving_stack("vllm"),
    )
    parts = memory_breakdown(deployment, token_budget=2048, max_batch=1, memory_fraction=0.98)
    assert parts.weights_bytes / GIB == pytest.approx(13.95, rel=0.02)
    assert parts.kv_cache_bytes / GIB == pytest.approx(8.69, rel=0.05)


@pytest.mark.parametrize(("gpu", "gigabytes"), [("rtx-4090", 0.35), ("l40s", 0.35), ("h100-sxm", 2.65)])
def test_what_an_engine_holds_depends_on_the_links_of_the_gpu_and_not_on_their_number(
    gpu: str, gigabytes: float
) -> None:
    """A machine of one H100 has no NVLink to use, and its plan is that of one H100 of eight."""
    held = [
        engine_bytes(replace(deployed("vllm"), hierarchy=default_cluster(gpu, number).hierarchy))
        for number in (1, 4)
    ]
    assert held == [gigabytes * 1e9] * 2


def test_a_gpu_alone_has_no_communicators() -> None:
    """0.20 GiB outside PyTorch on one GPU (vllm pull 14447), 0.52 GiB of CUDA context (pull 25359)."""
    for engine, gib in (("vllm", 0.25), ("sglang", 0.52)):
        alone = replace(deployed(engine), layout=ServingLayout())
        assert engine_bytes(alone) / GIB == pytest.approx(gib, abs=0.01)


@pytest.mark.parametrize(
    ("version", "per_logit"), [("0.11.1", 2 + 4 + 4 + 8 + 8 + 12), ("0.20.0", 2 + 4 + 4 + 4), ("", 2 + 4 + 4)]
)
def test_a_profile_run_samples_as_its_release_does(version: str, per_logit: int) -> None:
    """PyTorch's segmented sort until v0.17, kernels that mask in place since; requests are at most tokens."""
    stack = at_version(serving_stack("vllm"), version)
    alone = replace(deployed("vllm"), stack=stack, layout=ServingLayout())
    for budget, batch, rows in ((8192, 1024, 1024), (512, 1024, 512), (8192, 600, 600)):
        sampling = rows * alone.model.vocab_size * per_logit
        step = workspace_bytes(alone, token_budget=budget, max_batch=1)
        held = workspace_bytes(alone, token_budget=budget, max_batch=batch)
        assert held == pytest.approx(max(step, sampling))


def test_old_releases_count_both_peaks() -> None:
    """Before memory_profiling (v0.6.4) blocks that PyTorch kept of a step were no room for sampling."""
    sizes = {"token_budget": 2048, "max_batch": 256}
    before, since = (
        workspace_bytes(replace(deployed("vllm"), stack=at_version(serving_stack("vllm"), version)), **sizes)
        for version in ("0.6.3", "0.6.4")
    )
    assert before > since
    assert before < 2 * since


@pytest.mark.parametrize(("gpu", "gib"), [("rtx-4090", 23.55), ("h100-sxm", 79.11), ("h200-sxm", 139.80)])
def test_engines_share_what_cuda_hands_out(gpu: str, gib: float) -> None:
    """One per cent more of the memory is one per cent of CUDA's total, not of nvidia-smi's."""
    deployment = replace(
        deployed("vllm"), model=model("qwen3-0.6b"), hierarchy=default_cluster(gpu, 4).hierarchy
    )
    left = [
        memory_breakdown(deployment, token_budget=2048, max_batch=8, memory_fraction=share).kv_cache_bytes
        for share in (0.90, 0.91)
    ]
    assert (left[1] - left[0]) / GIB == pytest.approx(0.01 * gib, rel=1e-6)
