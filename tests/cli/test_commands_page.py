"""The reference of commands is what the parsers say."""

import runpy
from pathlib import Path

from app.flags.program import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "commands.md"


def test_the_page_is_current():
    """After a flag changed: `python tools/write_commands_page.py`."""
    tool = runpy.run_path(str(ROOT / "tools" / "write_commands_page.py"))
    assert PAGE.read_text(encoding="utf-8") == tool["page"]()


def test_every_command_has_its_section():
    """With a table of what it takes."""
    text = PAGE.read_text(encoding="utf-8")
    sections = text.split("\n### plan ")[1:]
    assert [section.split("\n")[0] for section in sections] == list(COMMANDS)
    assert all("| name | of | means |" in section for section in sections)
