"""Links of the docs that leave docs/, as the site writes them: mkdocs calls this while it builds.

Pages link to sources, tests and examples, which lie in the repository and are no part of the site. There
the link becomes its text and the path, so that nothing of the site leads nowhere.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#:]+)(#[\w-]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of a page before it is rendered."""
    return site_text(markdown, str(page.file.src_uri))


def site_text(markdown: str, page: str) -> str:
    """A page's text with links that stay within docs/.

    Args:
        markdown: As it lies in docs/.
        page: Its path there.

    >>> site_text("[tests](../tests/app), [search](search.md)", "dashboard.md")
    'tests (`tests/app` in the repository), [search](search.md)'
    """
    folder = posixpath.dirname(posixpath.join("docs", page))

    def written(link: re.Match[str]) -> str:
        """A link, or its text where it leaves the site."""
        text, target = link[1], posixpath.normpath(posixpath.join(folder, link[2]))
        if target.startswith("docs/") and not (ROOT / target).is_dir():
            return link[0]
        index = posixpath.join(target, "README.md")
        if target.startswith("docs/") and (ROOT / index).is_file():
            return f"[{text}]({os.path.relpath(index, folder)})"
        return f"{text} (`{target}` in the repository)" if text.strip("`") != target else f"`{target}`"

    return _LINK.sub(written, markdown)
