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


def test_no_sentence_has_more_than_40_words_to_its_full_stop():
    """Of any page, lab notes and decisions too; a semicolon makes it no shorter."""
    assert [long for path in TOOL["pages"]() for long in TOOL["long_to_a_stop"](path)] == []


def test_a_semicolon_does_not_end_a_sentence(tmp_path):
    """Two clauses of 25 words are read on pages of clauses, and are one sentence of 50."""
    page = tmp_path / "page.md"
    page.write_text("One " + "word " * 23 + "ends; `plan` " + "word " * 23 + "stops.\n", "utf-8")
    assert TOOL["long_ones"](page) == []
    assert [words for words, _ in TOOL["long_to_a_stop"](page)] == [50]


def test_the_mean_sentence_has_at_most_twenty_words():
    """Of all pages together, lab notes and decisions too, to the full stop."""
    counts = [
        TOOL["words_of"](text)
        for path in TOOL["pages"]()
        for text in TOOL["sentences"](path.read_text("utf-8"), TOOL["FULL_STOP"])
    ]
    assert sum(counts) / len(counts) <= 20
