"""Models that others recorded have the size that their publishers say, by the shapes of their products alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.diagnose.model_size import model_size
from planner.traces.kineto import read_kineto

PUBLISHED = {
    "h100_qwen15_05b": 463_987_712,  # parameters in the file of Qwen/Qwen1.5-0.5B-Chat
    "mi300_qwen15_05b": 463_987_712,
    "h100_bert_small": 28.8e6,  # google-research/bert: BERT-Small, 4 layers of 512
}


@pytest.mark.parametrize("file", PUBLISHED)
def test_the_size_is_the_published(shared_dir: Path, file: str) -> None:
    """Biases and norms, which no product multiplies by, are 1 % or less."""
    size = model_size(read_kineto(shared_dir / "traces" / "tracelens" / f"{file}.json.gz"))
    assert size is not None
    assert size.parameters == pytest.approx(PUBLISHED[file], rel=0.01)
