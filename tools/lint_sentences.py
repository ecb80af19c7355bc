"""Sentences of the docs that are too long to read: `python tools/lint_sentences.py [PAGE.md …]`.

Tables, code and headings are no sentences. A clause ends at a full stop, a semicolon or a colon, and
has at most `MOST_WORDS` words. A sentence ends at a full stop alone, and has at most
`MOST_WORDS_TO_A_STOP`. Both hold of lab notes and decisions too, the second not of the README. The
exit status is 1 where any has more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MOST_WORDS: Final = 25
MOST_WORDS_TO_A_STOP: Final = 40
_CODE: Final = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)
_NO_PROSE: Final = re.compile(r"^(#|\||>? *!\[|---|\[!|<)")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_BEGINNING: Final = r"[*_)\"”]*\s+(?=[A-ZÀ-Þ`*\[(\"“0-9])"
_CLAUSE: Final = re.compile(r"(?<=[.!?:;])" + _BEGINNING)
FULL_STOP: Final = re.compile(r"(?<=[.!?])" + _BEGINNING)


def pages(named: Sequence[str] = ()) -> list[Path]:
    """The pages that are named, or all: README, CONTRIBUTING and the docs, lab notes and decisions too."""
    first = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [Path(name) for name in named] or [*first, *sorted((ROOT / "docs").rglob("*.md"))]


def sentences(text: str, end: re.Pattern[str] = _CLAUSE) -> Iterator[str]:
    r"""The sentences of a page up to what ends them, a list item's among them.

    >>> list(sentences("# A title\n\nOne thing. Another\nthing.\n\n| a | table |"))
    ['One thing.', 'Another thing.']
    >>> list(sentences("> A quote. It\n> goes on."))
    ['A quote.', 'It goes on.']
    """
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", _CODE.sub("\n\n", text)):
        lines = [line.strip().removeprefix("> ") for line in block.strip().splitlines()]
        if not lines or _NO_PROSE.match(lines[0]):
            continue
        prose = _LINK.sub(r"\1", " ".join(lines))
        yield from (
            part.strip() for part in end.split(re.sub(r"^(?:[-*>]|\d+\.) +", "", prose)) if part.strip()
        )


def words_of(sentence: str) -> int:
    """How many words a sentence has; a piece of code is one word.

    >>> words_of("Run `plan --model 70b` — twice.")
    3
    """
    return len(re.findall(r"\w[\w'’.,/-]*", re.sub(r"`[^`]*`", "code", sentence)))


def long_ones(path: Path) -> list[tuple[int, str]]:
    """Clauses of a page with too many words, the longest first."""
    return _over(MOST_WORDS, sentences(path.read_text(encoding="utf-8")))


def long_to_a_stop(path: Path) -> list[tuple[int, str]]:
    """Sentences of a page with too many words to their full stop, the longest first."""
    return _over(MOST_WORDS_TO_A_STOP, sentences(path.read_text(encoding="utf-8"), FULL_STOP))


def _over(most: int, texts: Iterable[str]) -> list[tuple[int, str]]:
    return sorted(((words, text) for text in texts if (words := words_of(text)) > most), reverse=True)


def main() -> int:
    """Print what is too long."""
    named = sys.argv[1:]
    found = [(path, long) for path in pages(named) for long in long_ones(path)]
    found += [(path, long) for path in pages(named) for long in long_to_a_stop(path)]
    for path, (words, text) in found:
        print(f"{path}: {words} words: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
