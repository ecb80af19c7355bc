"""`plan dash`: the dashboard, on this machine only unless told otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AcceptChanges


def command(
    plan: Annotated[Path | None, typer.Argument(metavar="[PLAN.json]", help="A plan to start from.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on. Default: 8501.", metavar="N", min=1, max=65535)
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on; others need the token. Default: 127.0.0.1.", metavar="HOST"),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="What opens the page where others reach it. Default: MESHPLAN_TOKEN, else a random one.",
            envvar="MESHPLAN_TOKEN",
            metavar="TEXT",
        ),
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    run: Annotated[
        Path | None, typer.Option(help="Folder of a training run to follow.", metavar="DIR")
    ] = None,
    accept_changes: AcceptChanges = False,
) -> int:
    """Start the what-if dashboard in a browser."""
    from app.actions.dash import serve_dashboard

    return serve_dashboard(
        plan=plan,
        port=port,
        host=host,
        token=token,
        browser=not no_browser,
        run=run,
        accept_changes=accept_changes,
    )
