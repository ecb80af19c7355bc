"""Every block of Python in the library's page and in the README runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
    names: dict[str, object] = {"__name__": page}
    for block in blocks:
        line = text[: block.start(1)].count("\n")
        code = compile("\n" * line + block.group(1), str(ROOT / page), "exec")
        exec(code, names)  # noqa: S102 - the pages are ours, and running them is the test


def test_every_name_of_the_face_is_on_the_page() -> None:
    """What is promised to stay is listed."""
    import meshplan

    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    assert [name for name in meshplan.__all__ if f"`{name}`" not in page] == []
