"""Logs that are longer than an audit reads, cards that are cut, and changes that are the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.reports.audit.report import distinct_changes
from costmodel.kernels.tables import load_calibration
from planner.audit.audit import audited
from planner.audit.read import MOST_BYTES, read_files, read_texts
from planner.questions.flags import Flags
from topology.base.errors import InputError

STEP = (
    " iteration {0:8d}/  500000 | consumed samples: {1:12d} | elapsed time per iteration (ms): {2:.1f} | "
    "learning rate: 3.000000E-05 | global batch size:   128 | lm loss: 1.2E+01 | loss scale: 1.0 |\n"
)


def test_of_a_long_log_both_ends_are_read(tmp_path: Path) -> None:
    """Its first and its last steps count, and what lies between them is said."""
    path = tmp_path / "train.log"
    lines = [STEP.format(step, 128 * step, 4000.0) for step in range(1, 2 + 2 * int(MOST_BYTES) // len(STEP))]
    path.write_text(
        "".join(lines) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert path.stat().st_size > 1.5 * MOST_BYTES
    reading = read_files([str(path)])
    assert reading.measured is not None
    assert reading.measured.step_time_s == pytest.approx(4.0)
    assert reading.measured.out_of_memory
    assert any("are not read" in doubt for doubt in reading.doubts)


def test_a_long_file_that_is_no_log_is_refused(tmp_path: Path) -> None:
    """Of a script no part is read for the whole."""
    script, bytes_file = tmp_path / "train.sh", tmp_path / "data.bin"
    script.write_text("torchrun train.py --lr 1\n" * 400_000)
    bytes_file.write_bytes(bytes(range(256)) * 40_000)
    for path, why in ((script, "is no launch file"), (bytes_file, "is not a text file")):
        with pytest.raises(InputError, match=why):
            read_files([str(path)])


def test_slices_of_a_card_are_no_card() -> None:
    """A job on MIG slices is not priced as one on whole cards."""
    script = (
        "#SBATCH --gres=gpu:a100_3g.20gb:2\ntorchrun --nproc_per_node 2 train.py --model_name_or_path "
        "Qwen/Qwen2.5-1.5B --per_device_train_batch_size 1 --gradient_checkpointing True --bf16\n"
    )
    audit = audited(read_texts({"run.sh": script}), Flags(), load_calibration())
    assert audit.predicted is None
    assert any("3g.20gb" in missing for missing in audit.job.missing)


def test_a_change_that_is_all_of_them_is_told_once() -> None:
    """With one change to make, the whole is not listed beside its only part."""
    config = (
        "base_model: Qwen/Qwen2.5-32B\nsequence_len: 4096\nmicro_batch_size: 1\nbf16: true\n"
        "gradient_accumulation_steps: 1\noptimizer: adamw_torch\nflash_attention: true\n"
        "deepspeed: z3.json\n"
    )
    sharding = (
        '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, '
        '"offload_param": {"device": "cpu"}}, "bf16": {"enabled": true}}'
    )
    reading = read_texts({"a.yaml": config, "z3.json": sharding})
    changes = audited(reading, Flags(gpus="8", gpu="h100-sxm"), load_calibration()).changes
    rows = [(change.set, change.remove) for change in distinct_changes(changes)]
    assert len(changes) > len(rows) == len(set(rows))
    assert any("gradient_checkpointing" in word for words, _ in rows for word in words)
