"""No prediction is faster than its FLOPs at the peak, nor than its bytes at the memory's bandwidth.

FLOPs and bytes are counted here, from columns and published configurations, by nothing of the cost model; so a
model that was misread cannot hide behind its own numbers.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.accuracy.serving import predict_serving_rows
from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import shipped_runs
from costmodel.kernels.tables import load_calibration
from tests.counts import tries
from topology.catalog import gpu as catalogued

CAL = load_calibration()
BYTES = {"bf16": 2.0, "fp16": 2.0, "": 2.0, "fp8": 1.0, "mxfp8": 1.0, "nvfp4": 0.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What config.json of a release says and no column of a row does; sizes of one layer."""

    head_size: int = 0
    window: int = 0
    latent: tuple[int, int, int, int, int] | None = None  # ranks of queries and of keys, nope, rope, value
    dense_layers: int = 0
    dense_width: int = 0
    shared_width: int = 0


DEEPSEEK_V3 = Published(
    latent=(1536, 512, 128, 64, 128), dense_layers=3, dense_width=18432, shared_width=2048
)
DEEPSEEK_V2 = Published(
    latent=(1536, 512, 128, 64, 128), dense_layers=1, dense_width=12288, shared_width=3072
)
QWEN3_MOE = Published(head_size=128)
DETAILS = {"deepseekv3": DEEPSEEK_V3, "deepseekv2": DEEPSEEK_V2, "qwen3": QWEN3_MOE}
MODELS = {
    "Llama-3-8B": ((32, 4096, 14336, 32, 8, 128256, 0, 0), Published()),
    "Llama-3.1-70B": ((80, 8192, 28672, 64, 8, 128256, 0, 0), Published()),
    "Mistral-7B-v0.1": ((32, 4096, 14336, 32, 8, 32000, 0, 0), Published(window=4096)),
    "Qwen3-30B-A3B": ((48, 2048, 768, 32, 4, 151936, 128, 8), QWEN3_MOE),
    "DeepSeek-V3": ((61, 7168, 2048, 128, 128, 129280, 256, 8), DEEPSEEK_V3),
    "of our own": ((24, 3072, 9216, 24, 8, 50432, 0, 0), Published()),
}
SIZES = (
    "num_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "num_experts", "num_experts_per_token",
)  # fmt: skip


def number(row: dict[str, str], name: str, default: int = 0) -> int:
    """A cell as a number."""
    return int(float(row.get(name) or default))


def multiplied(row: dict[str, str], known: Published) -> tuple[float, float]:
    """Parameters that one token is multiplied with, the head apart, and those of the head."""
    layers, hidden, width, heads = (number(row, name) for name in SIZES[:4])
    width = width or 4 * hidden
    groups, chosen = number(row, "num_key_value_heads", heads), number(row, "num_experts_per_token", 0)
    matrices = 3 if number(row, "gated_mlp") else 2
    size = known.head_size or hidden // heads
    attention = 2 * hidden * size * (heads + groups)
    if known.latent:
        q, k, nope, rope, value = known.latent
        attention = hidden * (q + k + rope + heads * value) + q * heads * (nope + rope)
        attention += k * heads * (nope + value)
    dense = min(known.dense_layers, 1 if layers < 26 else known.dense_layers)
    expert = matrices * hidden * (width * max(chosen, 1) + known.shared_width) + hidden * number(
        row, "num_experts"
    )
    feed_forward = dense * matrices * hidden * known.dense_width + (layers - dense) * expert
    return layers * attention + feed_forward, hidden * number(row, "vocab_size", 30_000)


def flop_of(row: dict[str, str], known: Published) -> float:
    """Forward and backward: six per parameter and token, and 6·S² a head for each of the two products."""
    sequence, heads, layers = (
        number(row, name) for name in ("sequence_length", "num_attention_heads", "num_layers")
    )
    size = known.head_size or number(row, "hidden_size") // heads
    widths = sum(known.latent[i] for i in (2, 3, 4)) if known.latent else 2 * size
    seen = min(known.window or sequence, sequence)
    pairs = seen * sequence - seen * seen / 2
    attention = 6 * layers * heads * widths * pairs
    return number(row, "global_batch_size") * (6 * sum(multiplied(row, known)) * sequence + attention)


def floor_s(row: dict[str, str], known: Published) -> float:
    """The longer of FLOPs over peak and, of one rank, its weights read twice by every microbatch."""
    part, gpus = catalogued(row["gpu"]), number(row, "num_gpus")
    cuts = [number(row, name, 1) for name in ("tp", "pp", "cp", "ep")]
    tp, pp, cp, ep = cuts
    ranks = max(1, gpus // (tp * pp * cp))
    microbatches = number(row, "global_batch_size") // (ranks * number(row, "microbatch_size", 1))
    precision = row.get("precision", "")
    peak = part.peak({"mxfp8": "fp8", "nvfp4": "fp4", "": "bf16"}.get(precision, precision))
    read = multiplied(row, known)[0] / (tp * pp * ep) * BYTES[precision]
    return max(
        flop_of(row, known) / (gpus * peak), 2 * microbatches * read / part.memory_bandwidth_bytes_per_s
    )


def details(row: dict[str, str]) -> Published:
    """What is published of the row's model beside its columns."""
    name = row["model"].lower().replace("-", "").replace("_", "")
    return next((known for start, known in DETAILS.items() if name.startswith(start)), Published())


def test_no_published_run_is_predicted_or_measured_below_the_floor() -> None:
    """Every packaged run that can be predicted."""
    rows = [dict(row) for row in shipped_runs()]
    floors = [floor_s(row, details(row)) for row in rows]
    below = [
        (result.name, floor, result.predicted_step_time_s, result.measured_step_time_s)
        for result, floor in zip(predict_rows(rows, CAL), floors, strict=True)
        if min(result.predicted_step_time_s or floor, result.measured_step_time_s or floor) < floor
    ]
    assert below == []


@st.composite
def invented(draw: st.DrawFn) -> tuple[dict[str, str], Published]:
    """A run of a known model, or of sizes that none has, at any length, on any machine and engine."""
    name = draw(st.sampled_from(sorted(MODELS)))
    sizes, known = MODELS[name]
    moe = sizes[6] > 0
    tp, pp = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from((1, 2, 4)))
    dp, cp = draw(st.sampled_from((8, 16, 64))), draw(st.sampled_from((1, 2, 8)))
    cells = dict(zip(SIZES, sizes, strict=True)) | {
        "id": name, "model": name, "gated_mlp": 1, "tp": tp, "pp": 1 if moe else pp, "cp": cp, "dp": dp,
        "num_gpus": tp * (1 if moe else pp) * cp * dp, "virtual_stages": 1, "ep": 8 if moe else 1,
        "sequence_length": draw(st.sampled_from((1024, 4096, 8192, 32768, 131072, 1048576))),
        "global_batch_size": dp * draw(st.sampled_from((1, 4, 32))), "microbatch_size": 1,
        "gpu": draw(st.sampled_from(("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x"))),
        "framework": draw(
            st.sampled_from(("Megatron-LM", "NeMo", "torchtitan", "DeepSpeed", "Composer", "InternEvo", "ideal"))
        ),
        "precision": draw(st.sampled_from(("bf16", "fp8"))), "flash_attention": 1, "zero_stage": 3 * (not moe),
        "recompute": draw(st.sampled_from(("none", "full"))), "oom": 1, "step_time_s": "1e7",
    }  # fmt: skip
    return {key: str(cell) for key, cell in cells.items()}, known


@settings(max_examples=tries(25, 60), deadline=None)
@given(run=invented())
def test_no_invented_run_is_predicted_below_the_floor(run: tuple[dict[str, str], Published]) -> None:
    """However long the sequence: a window that is not the model's would go below at once."""
    row, known = run
    (result,) = predict_rows([row], CAL)
    assert result.predicted_step_time_s is not None, result.reason
    assert result.predicted_step_time_s >= floor_s(row, known)


@pytest.mark.parametrize("sequence", [16_384, 131_072])
def test_the_floor_catches_a_window_that_is_not_the_models(sequence: int) -> None:
    """Llama-3-8B read as Mistral v0.1 of 4,096 tokens has less work than it must do."""
    sizes, known = MODELS["Llama-3-8B"]
    row = dict(zip(SIZES, map(str, sizes), strict=True)) | {
        "gated_mlp": "1", "sequence_length": str(sequence), "global_batch_size": "1",
    }  # fmt: skip
    assert flop_of(row, Published(window=4096)) < 0.9 * flop_of(row, known)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize(
    ("name", "precision", "tp"),
    [
        ("Llama-3-8B", "bf16", 1),
        ("Llama-3.1-70B", "fp8", 4),
        ("Qwen3-30B-A3B", "fp8", 2),
        ("DeepSeek-V3", "fp8", 8),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 64])
def test_no_token_is_served_before_its_weights_are_read(
    engine: str, name: str, precision: str, tp: int, concurrency: int
) -> None:
    """A step reads the weights of a token once; a prompt has two FLOPs per parameter and token."""
    sizes, known = MODELS[name]
    model = dict(zip(SIZES, map(str, sizes), strict=True)) | {"gated_mlp": "1"}
    row = {
        "model": name, "gpu": "h200-sxm", "engine": engine, "precision": precision, "input_tokens": "2048",
        "output_tokens": "64", "concurrency": str(concurrency), "tp": str(tp), "ttft_s": "1", "tpot_s": "1",
    }  # fmt: skip
    (result,) = predict_serving_rows([row], CAL)
    assert result.predicted_tpot_s is not None, result.reason
    assert result.predicted_ttft_s is not None
    part, weights = catalogued("h200-sxm"), multiplied(model, known)[0]
    assert result.predicted_tpot_s >= weights * BYTES[precision] / (tp * part.memory_bandwidth_bytes_per_s)
    assert result.predicted_ttft_s >= 2 * weights * 2048 / (tp * part.peak(precision))
