"""Zero-bubble schedules against the table of their paper, of which no constant has seen a row."""

import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.kernels.tables import load_calibration

TABLE = [
    (22, 2304, 24, 8, 6, "ZB-2p", (24, 14.5), (64, 14.9), 59),
    (22, 2304, 24, 8, 6, "ZB-1p", (24, 12.9), (64, 14.2), 32),
    (30, 4096, 32, 8, 3, "ZB-2p", (24, 4.32), (64, 4.39), 70),
    (30, 4096, 32, 8, 3, "ZB-1p", (24, 3.88), (64, 4.20), 42),
    (46, 5120, 40, 16, 1, "ZB-2p", (48, 1.81), (128, 1.85), 51),
    (46, 5120, 40, 16, 1, "ZB-1p", (48, 1.61), (128, 1.76), 33),
    (62, 6144, 48, 32, 1, "ZB-2p", (96, 0.99), (256, 1.00), 74),
    (62, 6144, 48, 32, 1, "ZB-1p", (96, 0.87), (256, 0.96), 44),
]
"""Layers, hidden size, heads, GPUs, microbatch, schedule, samples per GPU and second with few and many
microbatches, and GB; table 4 of Qi et al. 2023 (arXiv 2401.10241), as remembered: the data set has its rows of
1F1B alone."""


def row(
    case: tuple[int, int, int, int, int, str], microbatches: int, rate: float, measured_gib: int
) -> dict[str, str]:
    """One run as a row of the data set."""
    layers, hidden, heads, gpus, microbatch, schedule = case
    batch = microbatches * microbatch
    cells: dict[str, object] = {
        "id": f"{schedule} of {layers} layers, {microbatches}",
        "source": "zero_bubble_pp",
        "model": f"GPT of {layers} layers",
        "num_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "gated_mlp": 0,
        "tie_word_embeddings": 1,
        "sequence_length": 1024,
        "gpu": "a100-sxm-80gb",
        "num_gpus": gpus,
        "gpus_per_node": 8,
        "framework": "Megatron-LM (zero-bubble fork)",
        "precision": "fp16",
        "pp": gpus,
        "schedule": schedule,
        "microbatch_size": microbatch,
        "global_batch_size": batch,
        "step_time_s": batch / rate / gpus,
        "peak_memory_gib": measured_gib,
    }
    return {name: str(value) for name, value in cells.items()}


@pytest.mark.parametrize("case", TABLE, ids=lambda case: f"{case[5]}-{case[0]}")
def test_published_zero_bubble_runs_are_met(
    case: tuple[int, int, int, int, int, str, tuple[int, float], tuple[int, float], int],
) -> None:
    """Memory within 7 %, step time within 13 %, with the paper's fewest and most microbatches."""
    rows = [row(case[:6], *measured, case[8]) for measured in case[6:8]]
    for found in predict_rows(rows, load_calibration()):
        assert found.status == "ok", found.reason
        assert found.memory_error == pytest.approx(0, abs=0.07)
        assert found.error == pytest.approx(0, abs=0.13)
