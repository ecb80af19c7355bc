"""Every block of Python in the library's page and in the README runs."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINTED = re.compile(r"^(?P<code>\s*print\(.*\))  # (?P<said>.*)$")
"""A line that prints, and what its comment says that it prints."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/library.md", "README.md"])
def test_the_blocks_of_a_page_run_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other in one namespace, in an empty folder, as a reader would paste them."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks
    monkeypatch.chdir(tmp_path)
    printed: dict[int, list[str]] = {}

    def note(*values: object, **_: object) -> None:
        printed.setdefault(sys._getframe(1).f_lineno, []).append(" ".join(map(str, values)))

    names: dict[str, object] = {"__name__": page, "print": note}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        code = compile("\n" * line + block.group(1), str(ROOT / page), "exec")
        exec(code, names)  # noqa: S102 - the pages are ours, and running them is the test
    assert stale(text, printed) == []


def stale(text: str, printed: Mapping[int, Sequence[str]]) -> list[str]:
    """Lines whose comment is not what they print, each as it should be; ``…`` in a comment stands for anything."""
    found = []
    for number, line in enumerate(text.split("\n"), start=1):
        if number in printed and (match := PRINTED.match(line)):
            said = match["said"]
            now = printed[number][-1].split("\n")[0]
            pattern = ".*".join(map(re.escape, said.split("…")))
            if not re.fullmatch(pattern, now):
                found.append(f"line {number} should be: {match['code']}  # {now}")
    return found


def test_a_comment_that_is_not_what_is_printed_is_told_with_the_new_line() -> None:
    """Numbers of a comment are held to the answer; what is left out is left open."""
    text = 'print(1)  # 1\nprint("abc 2")  # abc 3\nprint("{1: 2, 3: 4}")  # {1: 2, …}\nprint(4)'
    printed = {1: ["1"], 2: ["abc 2"], 3: ["{1: 2, 3: 4}"], 4: ["4"]}
    assert stale(text, printed) == ['line 2 should be: print("abc 2")  # abc 2']


def test_every_name_of_the_face_is_on_the_page() -> None:
    """What is promised to stay is listed."""
    import meshplan

    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    assert [name for name in meshplan.__all__ if f"`{name}`" not in page] == []
