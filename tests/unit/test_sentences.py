"""The docs are read once: long sentences only become fewer."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "lint_sentences.py"))
LEFT = {
    "docs/accuracy.md": 21,
    "docs/engines.md": 1,
}
"""Pages with sentences that are still too long, and how many: a number may only fall."""


@pytest.mark.parametrize("path", TOOL["pages"](), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_gains_a_sentence_of_more_than_25_words(path):
    """`python tools/lint_sentences.py PAGE.md` prints them."""
    long_ones = TOOL["long_ones"](path)
    assert len(long_ones) <= LEFT.get(str(path.relative_to(ROOT)), 0), long_ones[:3]


def test_the_mean_sentence_has_at_most_twenty_words():
    """Of all pages together."""
    counts = [
        TOOL["words_of"](text)
        for path in TOOL["pages"]()
        for text in TOOL["sentences"](path.read_text("utf-8"))
    ]
    assert sum(counts) / len(counts) <= 20


WRITTEN = {"README.md", "docs/accuracy.md", "docs/engines.md"}
"""Pages whose prose is written from tables of the code, or holds measured figures."""


@pytest.mark.parametrize("path", TOOL["pages"](), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_has_more_than_forty_words(path):
    """Outside pages that tools write."""
    if str(path.relative_to(ROOT)) not in WRITTEN:
        assert [pair for pair in TOOL["long_ones"](path) if pair[0] > 40] == []
