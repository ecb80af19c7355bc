"""Models that others recorded have their published size, by the shapes of their products alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.diagnose.model_size import model_size
from planner.traces.kineto import read_kineto

QWEN = 463_987_712
"""As `test_parameter_counts.py` has it of Qwen1.5-0.5B."""
BERT = (30_522 + 512 + 2) * 512 + (4 * 12 + 1) * 512**2
"""BERT-Small by its configuration: words, positions, types, 12 squares a layer, one before the head."""
PUBLISHED = {"h100_qwen15_05b": QWEN, "mi300_qwen15_05b": QWEN, "h100_bert_small": BERT}


@pytest.mark.parametrize("file", PUBLISHED)
def test_the_size_is_the_published(shared_dir: Path, file: str) -> None:
    """Biases and norms, which no product multiplies by, are 1 % or less."""
    size = model_size(read_kineto(shared_dir / "traces" / "tracelens" / f"{file}.json.gz"))
    assert size is not None
    assert size.parameters == pytest.approx(PUBLISHED[file], rel=0.01)
