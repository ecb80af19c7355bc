"""Write llms.txt from the list of pages in docs/README.md: `python tools/write_llms.py`.

The form is that of llmstxt.org: a title, a sentence, then links with what each page answers. Pages are
Markdown, so a program reads them as they lie here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "llms.txt"
_ROW: Final = re.compile(r"^\| \[([^\]]+)\]\(([^)]+)\) \| (.+) \|$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
HEAD: Final = """# Meshplan

> Plans how a job of a large model is split over GPUs (tensor, pipeline, data, context, expert parallelism),
> proves that no other layout is faster under its cost model, and says how sure it is.

- [README](README.md): what it does, in commands
- [Agent skill](skills/meshplan/SKILL.md): which tool of `plan mcp` answers which question

## Docs

"""


def page() -> str:
    """The text of llms.txt."""
    rows = _ROW.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    lines = (f"- [{name}](docs/{path}): " + _LINK.sub(r"\1", text) for name, path, text in rows)
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
