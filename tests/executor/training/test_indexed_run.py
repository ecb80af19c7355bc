"""A run on a blend of Megatron's indexed datasets, from the files' bytes to its losses."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from costmodel.layout import ParallelLayout
from executor.comm.tensor_parallel import token_losses
from executor.model.transformer import build_model
from executor.parallel.weights import initialize
from executor.training.settings import EVALUATIONS_FILE
from planner.plan import Plan
from tests.executor import conftest
from tests.executor.training.test_training import copy_of, losses, run_here, settings_in

TINY = replace(conftest.TINY, num_layers=1)
SEQUENCE, BATCH, CPU = 16, 8, torch.device("cpu")
WINDOWS = {"a": 24, "b": 8, "held-out": 11}  # three to one: an epoch of both is four steps


def write_dataset(folder: Path, name: str, windows: int) -> Path:
    """A dataset of documents of a few tokens each, as Megatron's preprocessing writes them (16-bit ids)."""
    tokens = np.random.default_rng(windows).integers(0, TINY.vocab_size, windows * SEQUENCE + 1).astype("<u2")
    lengths = [5] * (len(tokens) // 5) + ([len(tokens) % 5] if len(tokens) % 5 else [])
    places = np.concatenate([[0], np.cumsum(lengths)[:-1]]) * 2
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(lengths), len(lengths) + 1)
    index += np.array(lengths, "<i4").tobytes() + places.astype("<i8").tobytes()
    index += np.arange(len(lengths) + 1, dtype="<i8").tobytes()
    (folder / f"{name}.bin").write_bytes(tokens.tobytes())
    (folder / f"{name}.idx").write_bytes(index)
    return folder / f"{name}.idx"


def mean_loss_of(files: list[Path]) -> float:
    """Mean loss of the initial model over every window of the files, their bytes read here."""
    model = build_model(TINY)
    initialize(model, None, seed=0, device=CPU)
    rows = []
    for file in files:
        tokens = np.fromfile(file.with_suffix(".bin"), "<u2").astype(np.int64)
        rows += [tokens[start : start + SEQUENCE + 1] for start in range(0, len(tokens) - 1, SEQUENCE)]
    windows = torch.from_numpy(np.stack(rows))
    with torch.no_grad():
        return float(token_losses(model(windows[:, :-1]), windows[:, 1:], None, TINY.vocab_size).mean())


def test_an_epoch_of_a_blend_is_each_window_once_and_resumes(
    plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """Weights stand still, so four steps together have the loss of the files.

    The last two, resumed in another layout, read what they read before.
    """
    files = {name: write_dataset(tmp_path, name, windows) for name, windows in WINDOWS.items()}
    settings = settings_in(
        tmp_path / "first",
        steps=4,
        checkpoint_every=2,
        learning_rate=0.0,
        data=f"0.75={files['a']},0.25={files['b'].with_suffix('.bin')}",
        eval_data=str(files["held-out"]),
    )
    run_here(settings, plan_of(ParallelLayout(), spec=TINY))
    first = losses(tmp_path / "first")
    assert sum(first.values()) / 4 == pytest.approx(mean_loss_of([files["a"], files["b"]]), rel=1e-6)
    assert len(set(first.values())) == 4
    held_out = json.loads((tmp_path / "first" / EVALUATIONS_FILE).read_text())
    assert (held_out["samples"], held_out["loss"]) == (
        WINDOWS["held-out"],
        pytest.approx(mean_loss_of([files["held-out"]]), rel=1e-6),
    )
    again = copy_of(tmp_path / "first", tmp_path / "again", last_step=2)
    resumed = replace(settings, folder=str(again), plan_file=str(again / "plan.json"))
    run_here(resumed, plan_of(ParallelLayout(dp=2, zero_stage=1), spec=TINY))
    assert losses(again) == pytest.approx({step: first[step] for step in (3, 4)}, rel=1e-6)
