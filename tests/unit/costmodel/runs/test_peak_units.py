"""A printed peak of memory is what its unit says, and no more than its GPU has."""

from pathlib import Path

import pytest

from costmodel.accuracy.training_runs import read_rows, read_run
from costmodel.runs.cells import UnsupportedRunError
from topology.base.units import GB, GIB

ROW = {
    "model": "llama-2-7b", "sequence_length": "4096", "gpu": "a100-sxm-80gb", "num_gpus": "1",
    "global_batch_size": "1", "framework": "PyTorch", "peak_memory_gib": "40",
}  # fmt: skip


@pytest.mark.parametrize(("unit", "size"), [({}, GIB), ({"peak_memory_unit": "GB"}, GB)])
def test_a_peak_is_read_in_its_unit(unit: dict[str, str], size: float) -> None:
    """GiB where the row does not say."""
    assert read_run(ROW | unit, 0).peak_memory_bytes == 40 * size


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"peak_memory_unit": "MB"}, "peak_memory_unit = 'MB' is none of GiB, GB"),
        ({"peak_memory_gib": "81"}, "a GPU has"),
    ],
)
def test_what_no_gpu_can_have_is_refused(cells: dict[str, str], words: str) -> None:
    """Another unit, and a peak above the memory of the GPU."""
    with pytest.raises(UnsupportedRunError, match=words):
        read_run(ROW | cells, 0)


def test_every_published_peak_is_below_the_memory_of_its_gpu(shared_dir: Path) -> None:
    """One printed 162.0 G of two GPUs of 80 GiB: decimal."""
    rows = [
        row for row in read_rows(shared_dir / "finetune_runs.csv") if row["id"] == "qwen_readme_profile-033"
    ]
    assert [read_run(row, 0).peak_memory_bytes for row in rows] == [81 * GB]
