"""`plan mcp`: Meshplan's questions as tools of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.sections import QUESTION


def command(
    *,
    root: Annotated[
        Path,
        typer.Option(
            "--root",
            help="Folder whose files a call may name.",
            metavar="DIR",
            rich_help_panel=QUESTION,
        ),
    ] = Path(),
) -> int:
    """Answer an agent over standard input and output, by the Model Context Protocol, until it leaves.

    Its tools are the commands that only read, with their flags. A call is one bounded process: it reads no
    file outside the folder, executes nothing of it, writes nothing, and is ended after two minutes.
    """
    import asyncio

    from app.errors import ANSWERED
    from app.extras import require_extra
    from app.mcp.server import serve
    from app.terminal.progress import lives_on
    from topology.base.errors import InputError

    require_extra("mcp", "plan mcp")
    if not root.is_dir():
        raise InputError(
            f"--root {root} is no folder", "no folder has this name", "name one, or leave it out"
        )
    lives_on()
    asyncio.run(serve(root.resolve()))
    return ANSWERED
