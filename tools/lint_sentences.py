"""Sentences of the docs that are too long to read: `python tools/lint_sentences.py [PAGE.md …]`.

Tables, code and headings are no sentences. A sentence has at most `MOST_WORDS` words. The exit
status is 1 where any has more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MOST_WORDS: Final = 25
_CODE: Final = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)
_NO_PROSE: Final = re.compile(r"^(#|\||>? *!\[|---|\[!|<)")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END: Final = re.compile(r"(?<=[.!?:;])[*_)\"”]*\s+(?=[A-ZÀ-Þ`*\[(\"“0-9])")


def pages(named: Sequence[str] = ()) -> list[Path]:
    """The pages that are named, or the README and every page of the docs but lab notes and decisions."""
    if named:
        return [Path(name) for name in named]
    return [
        ROOT / "README.md",
        *(
            path
            for path in sorted((ROOT / "docs").rglob("*.md"))
            if not {"notes", "decisions"} & {*path.parts}
        ),
    ]


def sentences(text: str) -> Iterator[str]:
    r"""The sentences of a page, a list item's among them.

    >>> list(sentences("# A title\n\nOne thing. Another\nthing.\n\n| a | table |"))
    ['One thing.', 'Another thing.']
    """
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", _CODE.sub("\n\n", text)):
        lines = [line.strip() for line in block.strip().splitlines()]
        if not lines or _NO_PROSE.match(lines[0]):
            continue
        prose = _LINK.sub(r"\1", " ".join(lines))
        yield from (
            part.strip() for part in _END.split(re.sub(r"^(?:[-*>]|\d+\.) +", "", prose)) if part.strip()
        )


def words_of(sentence: str) -> int:
    """How many words a sentence has; a piece of code is one word.

    >>> words_of("Run `plan --model 70b` — twice.")
    3
    """
    return len(re.findall(r"\w[\w'’.,/-]*", re.sub(r"`[^`]*`", "code", sentence)))


def long_ones(path: Path) -> list[tuple[int, str]]:
    """Sentences of a page with too many words, the longest first."""
    counted = [(words_of(text), text) for text in sentences(path.read_text(encoding="utf-8"))]
    return sorted((pair for pair in counted if pair[0] > MOST_WORDS), reverse=True)


def main() -> int:
    """Print what is too long."""
    count = 0
    for path in pages(sys.argv[1:]):
        for words, text in long_ones(path):
            count += 1
            print(f"{path}: {words} words: {text}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
