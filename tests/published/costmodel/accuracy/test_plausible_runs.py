"""Runs nobody published, on machines, engines and sizes that somebody will: predicted, and not absurdly."""

from itertools import product

import numpy as np
import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_run
from costmodel.kernels.tables import load_calibration
from costmodel.ops.layer import model_flop_per_step
from tests.counts import tries

SIZES = {
    "1B": (16, 2048, 8192, 32, 8, 128256),
    "8B": (32, 4096, 14336, 32, 8, 128256),
    "70B": (80, 8192, 28672, 64, 8, 128256),
    "405B": (126, 16384, 53248, 128, 8, 128256),
}
LAYOUTS = {"1B": (8, 1, 1), "8B": (8, 2, 1), "70B": (64, 4, 4), "405B": (512, 8, 8)}
GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300", "mi300x", "mi355x")
ENGINES = (
    "Megatron-Bridge 26.04",
    "Megatron-LM",
    "torchtitan",
    "DeepSpeed",
    "PyTorch FSDP2",
    "MaxText",
    "unheard of",
)
LEAST, MOST = 0.05, 0.75  # of the bf16 peak


def row(size: str, gpu: str, engine: str, sequence: int = 4096) -> dict[str, str]:
    """One invented row with fused attention in bf16."""
    names = (
        "num_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "vocab_size",
    )
    gpus, tp, pp = LAYOUTS[size]
    cells = dict(zip(names, SIZES[size], strict=True)) | {
        "id": f"{size} {gpu} {engine} {sequence}",
        "gated_mlp": 1,
        "sequence_length": sequence,
        "gpu": gpu,
        "num_gpus": gpus,
        "framework": engine,
        "precision": "bf16",
        "flash_attention": 1,
        "tp": tp,
        "pp": pp,
        "virtual_stages": 1,
        "zero_stage": 1,
        "global_batch_size": gpus // (tp * pp) * 8 * pp,
        "step_time_s": 1_000_000,
    }
    return {name: str(cell) for name, cell in cells.items()}


@pytest.mark.parametrize("gpu", GPUS)
def test_no_invented_run_is_faster_or_slower_than_machines_are(gpu: str) -> None:
    """Between 5 and 75 % of the bf16 peak for every size and engine, known or not, at every length."""
    rows = [row(size, gpu, engine) for size, engine in product(SIZES, ENGINES)]
    rows += [row("8B", gpu, "NeMo", sequence) for sequence in (2048, 8192, 32768, 131072)]
    apart = tries(3, 1)  # the next GPU has the next rows
    rows = rows[GPUS.index(gpu) % apart :: apart]
    outside = {}
    for cells, result in zip(rows, predict_rows(rows, load_calibration()), strict=True):
        assert result.predicted_step_time_s is not None, result.reason
        run = read_run(cells)
        flop = float(np.ravel(model_flop_per_step(run.model, run.job))[0])
        peak = run.cluster.gpu.peak("bf16") * run.layout.num_gpus
        mfu = flop / (result.predicted_step_time_s * peak)
        if not LEAST < mfu < MOST:
            outside[result.name] = mfu
    assert outside == {}


@pytest.mark.parametrize(
    "gpu", ["v100-sxm-32gb", "a100-sxm-40gb", "l40s", "l4", "a10g", "rtx-4090", "gh200-96gb"]
)
def test_small_and_old_machines_are_predicted_too(gpu: str) -> None:
    """No row of these is refused, and none beats three quarters of the peak."""
    rows = [row("1B", gpu, engine) for engine in ENGINES]
    for cells, result in zip(rows, predict_rows(rows, load_calibration()), strict=True):
        assert result.predicted_step_time_s is not None, result.reason
        run = read_run(cells)
        flop = float(np.ravel(model_flop_per_step(run.model, run.job))[0])
        peak = run.cluster.gpu.peak("bf16") * run.layout.num_gpus
        assert 0 < flop / (result.predicted_step_time_s * peak) < MOST
