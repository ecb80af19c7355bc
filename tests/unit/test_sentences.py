"""The docs are read once: sentences are short."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "lint_sentences.py"))


@pytest.mark.parametrize("path", TOOL["pages"](), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_has_more_than_25_words(path):
    """`python tools/lint_sentences.py PAGE.md` prints them."""
    assert TOOL["long_ones"](path) == []


def test_the_mean_sentence_has_at_most_twenty_words():
    """Of all pages together."""
    counts = [
        TOOL["words_of"](text)
        for path in TOOL["pages"]()
        for text in TOOL["sentences"](path.read_text("utf-8"))
    ]
    assert sum(counts) / len(counts) <= 20
