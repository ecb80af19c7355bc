"""The docs are read once: long sentences only become fewer."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "lint_sentences.py"))
LEFT = {
    "README.md": 7,
    "docs/accuracy.md": 44,
    "docs/audit.md": 23,
    "docs/campaign.md": 25,
    "docs/clusters.md": 28,
    "docs/cost-model.md": 52,
    "docs/dashboard.md": 2,
    "docs/diagnose.md": 2,
    "docs/engines.md": 15,
    "docs/executor.md": 120,
    "docs/kernels-and-collectives.md": 9,
    "docs/layout-guide.md": 2,
    "docs/library.md": 5,
    "docs/measurements/2026-11-26-nvidia-h200.md": 9,
    "docs/modules.md": 20,
    "docs/scenarios.md": 3,
    "docs/search.md": 21,
    "docs/security.md": 7,
    "docs/serving.md": 86,
    "docs/tutorials/README.md": 1,
    "docs/tutorials/audit-your-job.md": 3,
    "docs/tutorials/serve-a-chat.md": 1,
    "docs/tutorials/train-70b.md": 1,
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
