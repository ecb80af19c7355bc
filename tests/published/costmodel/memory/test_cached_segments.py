"""What the driver shows of a process beside what its allocator handed out, where a publisher read both."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_rows
from costmodel.kernels.tables import load_calibration
from costmodel.stack import stack
from costmodel.training.constants import default_constants
from topology.base.units import GIB

READ = re.compile(r"device memory read beside it (\d+) MiB")
FULL_GIB = 70.0
"""Of 80: above, the allocator may have given back what it kept."""


def shares(shared_dir: Path) -> Iterator[float]:
    """Device memory without context and communicator, over the allocator's peak, of GPUs that were not full."""
    memory = stack("pytorch").memory
    with (shared_dir / "finetune_runs.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            read = READ.search(row["note"])
            if read and row["peak_memory_gib"] and int(read[1]) / 1024 < FULL_GIB:
                runtime = memory.context_bytes + memory.communicator_bytes * (int(row["num_gpus"]) > 1)
                yield (int(read[1]) / 1024 - runtime / GIB) / float(row["peak_memory_gib"])


def test_the_allocator_keeps_a_quarter_more_than_it_hands_out(shared_dir: Path) -> None:
    """The median of what one publisher read; its spread is wide."""
    found = list(shares(shared_dir))
    assert len(found) == 208
    assert median(found) == pytest.approx(default_constants().cached_segments, abs=0.01)


def test_another_publishers_readings_are_met_by_it(shared_dir: Path) -> None:
    """FlagPerf's peaks of Megatron-LM and FlagScale by nvidia-smi, of which nothing was taken."""
    rows = [
        row
        for row in read_rows(shared_dir / "memory_runs.csv")
        if row["source"] in ("flagperf_megatron", "flagperf_flagscale")
    ]
    errors = [x.memory_error for x in predict_rows(rows, load_calibration()) if x.memory_error is not None]
    assert len(errors) == 20
    assert median(map(abs, errors)) < 0.06
    assert abs(median(errors)) < 0.04
