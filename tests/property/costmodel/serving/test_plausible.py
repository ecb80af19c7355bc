"""What any practitioner knows about serving, on models and GPUs that were never measured together."""

import functools
from itertools import pairwise

import pytest

from costmodel.accuracy.serving import fabric
from costmodel.accuracy.serving_predictions import Latency, predict
from costmodel.accuracy.serving_runs import read_serving_run
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.models.parameters import active_parameter_count
from costmodel.serving.deployment import weight_bytes
from tests.counts import cases_of_run

CAL = load_calibration()
GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "gb200", "mi300x")
CASES = [
    ("llama-3.1-8b", "bf16", 1), ("llama-3.1-70b", "bf16", 4), ("llama-3.1-70b", "int4", 2),
    ("qwen3-30b-a3b", "bf16", 2), ("qwen3-235b-a22b", "int4", 8), ("mixtral-8x7b", "bf16", 4),
    ("mixtral-8x22b", "int4", 8), ("gpt-oss-20b", "fp4", 1), ("gpt-oss-120b", "fp4", 4),
]  # fmt: skip
EIGHT_BIT_CASES = [
    ("llama-3.1-8b", "fp8", 1), ("llama-3.1-70b", "fp8", 8), ("llama-3.1-405b", "fp8", 8),
    ("qwen3-235b-a22b", "fp8", 4), ("qwen3-235b-a22b", "fp8", 8), ("qwen3-30b-a3b", "fp8", 4),
    ("mixtral-8x7b", "fp8", 2), ("glm-4.5-air", "fp8", 4), ("minimax-m2", "fp8", 8),
]  # fmt: skip
ALL = [(*case, gpu) for gpu in GPUS for case in CASES]
ALL += [(*case, gpu) for gpu in GPUS if gpu != "a100-sxm-80gb" for case in EIGHT_BIT_CASES]
OF_RUN = cases_of_run(ALL, [case for place, case in enumerate(ALL) if (place + place // len(CASES)) % 3])
"""Every model, precision and GPU is in the suite, a third of their combinations, with which the engines take turns."""
ENGINES = ("vllm", "sglang", "trtllm")
SYNCHRONY = 0.02  # requests of equal length fall in and out of step, which moves means by this share


@functools.cache
def served(name: str, precision: str, tp: int, gpu: str, concurrency: int, prompt: int) -> Latency:
    """Prediction of a closed loop; the engines take turns over the cases."""
    engine = ENGINES[sum(map(ord, name + precision + gpu)) % len(ENGINES)]
    row = {
        "model": name, "gpu": gpu, "engine": engine, "precision": precision, "tp": str(tp),
        "input_tokens": str(prompt), "output_tokens": "128", "concurrency": str(concurrency), "ttft_s": "1", "tpot_s": "1",
    }  # fmt: skip
    return predict(CAL, read_serving_run(row, 1), fabric_of(gpu))


fabric_of = functools.cache(fabric)


@pytest.mark.parametrize(("name", "precision", "tp", "gpu"), OF_RUN)
def test_a_token_is_never_faster_than_reading_the_active_weights(
    name: str, precision: str, tp: int, gpu: str
) -> None:
    """And at batch one no slower than three readings and a hundred microseconds a layer."""
    part = fabric_of(gpu).gpu
    read_s = (
        active_parameter_count(model(name)) * weight_bytes(precision) / tp / part.memory_bandwidth_bytes_per_s
    )
    step_s = served(name, precision, tp, gpu, 1, 128).tpot_s
    assert read_s < step_s < 3 * read_s + 100e-6 * model(name).num_layers


@pytest.mark.parametrize(("name", "precision", "tp", "gpu"), OF_RUN)
def test_more_requests_in_flight_never_serve_fewer_tokens(
    name: str, precision: str, tp: int, gpu: str
) -> None:
    """Throughput grows with the concurrency until it saturates, and each token takes longer."""
    points = [(c, served(name, precision, tp, gpu, c, 512)) for c in (1, 8, 64)]
    rates = [c / (point.ttft_s + 127 * point.tpot_s) for c, point in points]
    assert all(b >= a * (1 - SYNCHRONY) for a, b in pairwise(rates))
    assert all(b.tpot_s >= a.tpot_s * (1 - SYNCHRONY) for (_, a), (_, b) in pairwise(points))


@pytest.mark.parametrize(("name", "precision", "tp", "gpu"), OF_RUN)
def test_longer_prompts_take_longer(name: str, precision: str, tp: int, gpu: str) -> None:
    """To the first token, and per token, as prompts share the GPU with decoding."""
    points = [served(name, precision, tp, gpu, 8, prompt) for prompt in (128, 1024, 4096)]
    assert all(b.ttft_s > a.ttft_s for a, b in pairwise(points))
    assert all(b.tpot_s >= a.tpot_s * (1 - SYNCHRONY) for a, b in pairwise(points))


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("name", "precision"), [("llama-3.1-70b", "bf16"), ("qwen3-235b-a22b", "int4")])
def test_wider_tensor_parallelism_shortens_a_token(name: str, precision: str, gpu: str) -> None:
    """Weights are read by more GPUs, and a node's reductions cost less than that saves."""
    times = [served(name, precision, tp, gpu, 16, 512).tpot_s for tp in (4, 8)]
    assert times == sorted(times, reverse=True)
