"""The page of engines says what the contracts say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_page_is_what_the_contracts_say() -> None:
    """After a contract changed: `python tools/write_engines_page.py`."""
    tool = runpy.run_path(str(ROOT / "tools" / "write_engines_page.py"))
    assert (ROOT / "docs" / "engines.md").read_text(encoding="utf-8") == tool["page"]()
