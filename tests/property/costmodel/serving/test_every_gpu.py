"""Every GPU of the catalog prices every kind of model: what it lacks is widened, or refused in words."""

from __future__ import annotations

import pytest

from app.entry.run_words import end_of_range
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import WEIGHTS, Deployment, ServingLayout, Weights
from costmodel.serving.engine import serving_stack
from costmodel.serving.step import step_times
from tests.counts import IS_NIGHTLY, cases_of_run
from topology.builders import default_cluster
from topology.catalog import gpus

KINDS = {"dense": "llama-3.1-8b", "experts": "gpt-oss-20b", "latent": "deepseek-v3", "hybrid": "qwen3.6-27b"}
"""A model of each way to mix tokens and to feed forward."""
FORMATS = {frozenset(gpu.peak_flop_per_s): name for name, gpu in [*gpus().items()][::-1]}
"""The first GPU of each set of number formats: others differ from it by their figures alone."""


@pytest.mark.parametrize("gpu", cases_of_run(gpus(), set(gpus()) - set(FORMATS.values())))
@pytest.mark.parametrize("kind", KINDS)
def test_every_gpu_prices_every_kind_of_model(gpu: str, kind: str) -> None:
    """V100, T4 and Turing's have no bf16: their peak in sixteen bits is that of fp16."""
    published: tuple[Weights, ...] = ("fp4",) if kind == "experts" else ("bf16",)
    for weights in WEIGHTS if IS_NIGHTLY else published:
        times = step_times(
            load_calibration(),
            Deployment(
                model=model(KINDS[kind]),
                hierarchy=default_cluster(gpu, 2).hierarchy,
                layout=ServingLayout(tp=2),
                stack=serving_stack("vllm"),
                weights=weights,
            ),
            max_batch=2,
            token_budget=64,
            input_tokens=512,
            output_tokens=64,
        )
        assert 0 < times.graph_linear_s[1] <= times.graph_linear_s[2] < times.linear_s[-1] + 10


def test_a_deadline_counts_gpus_without_bf16() -> None:
    """A V100 has an eighth of an H100's peak: it takes at least as many."""
    assert end_of_range("8b", "v100-sxm-32gb", "100B", "30d") >= end_of_range("8b", "h100", "100B", "30d") > 0
