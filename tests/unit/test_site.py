"""The docs build as a site that is complete in itself: every page has its place, no link leads nowhere."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TOOL = runpy.run_path(str(ROOT / "tools" / "site_links.py"))
CONFIGURATION = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def pages_of(entry) -> list[str]:
    """Pages of a part of the navigation, in its order."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages_of(part)]


def test_every_page_has_one_place_in_the_navigation():
    """Tutorials, how-tos, explanation, reference; single decisions are reached from their list."""
    listed = pages_of(CONFIGURATION["nav"])
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted({page for page in written if not re.match(r"decisions/0", page)})
    assert [list(part) for part in CONFIGURATION["nav"][1:]] == [
        ["Tutorials"], ["How to"], ["Explanation"], ["Reference"],
    ]  # fmt: skip


def test_a_link_that_leaves_the_docs_becomes_its_path():
    """Sources lie in the repository; a folder of pages is its list."""
    text = TOOL["site_text"](
        "[a](../app/figures) [b](../README.md) [c](tutorials) [d](search.md#x)", "dashboard.md"
    )
    assert text == (
        "a (`app/figures` in the repository) b (`README.md` in the repository) "
        "[c](tutorials/README.md) [d](search.md#x)"
    )


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_without_the_network(tmp_path):
    """`mkdocs build --strict`; no page loads a font, a script or a style from elsewhere."""
    pytest.importorskip("material", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-2000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+rel="stylesheet"[^>]+href="https?:'
    )
    assert [page.name for page in pages if loaded.search(page.read_text(encoding="utf-8"))] == []
