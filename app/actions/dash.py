"""Start the dashboard's server: in a process of its own, on this machine only unless told otherwise.

A plan given on the command line becomes the first page's URL, so it is the same state that a shared link has.
What is typed wins over `STREAMLIT_*` variables, these over Streamlit's `config.toml`, that over `SETTINGS`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from app.actions.door import require_long
from app.errors import ANSWERED, INTERRUPTED
from app.requests.upload_sizes import MOST_TRACE_MIB
from app.terminal.progress import lives_on
from topology.base.errors import InputError

RUN_FOLDER = "MESHPLAN_RUN"
PLAN_VARIABLE = "MESHPLAN_PLAN"
DASH_TOKEN = "MESHPLAN_TOKEN"  # noqa: S105 - the name of a variable

SETTINGS: Final[Mapping[str, str | int | bool]] = {
    "server.address": "127.0.0.1",
    "server.port": 8501,
    "server.maxUploadSize": MOST_TRACE_MIB,
    "server.maxMessageSize": 32,
    "server.maxWidgetStateSize": 1,
    "server.disconnectedSessionTTL": 60,
    "server.enableXsrfProtection": True,
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": False,
    "client.showErrorDetails": "none",
    "client.toolbarMode": "minimal",
    "theme.light.primaryColor": "#0072B2",
    "theme.dark.primaryColor": "#56B4E9",
    "global.developmentMode": False,
    "global.disableWidgetStateDuplicationWarning": True,
    "logger.hideWelcomeMessage": True,
}
"""What Streamlit is told where its user has said nothing; sizes in MB, times in s."""


def serve_dashboard(
    *,
    plan: Path | None,
    port: int | None,
    host: str | None,
    browser: bool,
    run: Path | None,
    token: str | None,
    accept_changes: bool = False,
) -> int:
    """Run the dashboard until it is stopped; what is None is not typed."""
    require_installed()
    environment = server_environment(
        dict(os.environ), plan=plan, run=run, token=token, accept_changes=accept_changes
    )
    words = [sys.executable, "-P", "-c", f"from app.dashboard import serve_here; serve_here({os.getpid()})"]
    words += [] if port is None else ["--server.port", str(port)]
    words += [] if host is None else ["--server.address", host]
    words += [] if browser else ["--server.headless", "true"]
    lives_on()
    with subprocess.Popen(words, env=environment) as server:
        before = signal.signal(signal.SIGTERM, lambda *_: server.terminate())
        try:
            code = server.wait()
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            signal.signal(signal.SIGTERM, before)
    return ANSWERED if code in (0, -signal.SIGTERM) else code


def server_environment(
    environment: Mapping[str, str],
    *,
    plan: Path | None,
    run: Path | None,
    token: str | None,
    accept_changes: bool = False,
) -> dict[str, str]:
    """The environment of the server; the token is there because a command line can be read by others."""
    from app.reports.answer import note
    from app.requests.plan_file import read_plan

    root = str(Path(__file__).resolve().parents[2])
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH", ""))))}
    if plan is not None:
        read_plan(
            plan, accept_changes=accept_changes, say=note
        )  # a bad file is refused here, not in the browser
        ours[PLAN_VARIABLE] = str(plan.resolve())
    if run is not None:
        if not run.is_dir():
            raise InputError(
                what=f"{run} is no run", cause="it is not a folder", fix="give the folder of `plan run`"
            )
        ours[RUN_FOLDER] = str(run.resolve())
    if token is not None:
        ours[DASH_TOKEN] = require_long(token)
    # Every session is a thread; an arena for each would keep its memory for good.
    return {"MALLOC_ARENA_MAX": "2", **environment, **ours}


def require_installed() -> None:
    """Refuse to start without the extra `app`."""
    missing = [name for name in ("streamlit", "plotly") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            what="the dashboard is not installed", cause=f"no module named {' or '.join(missing)}",
            fix='python -m pip install "meshplan[app]"',
        )  # fmt: skip


def require_free(host: str, port: int) -> None:
    """Refuse a port that is taken or an address that is not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(
            what=f"cannot listen on {host}:{port}",
            cause=getattr(error, "strerror", None) or str(error),
            fix="give another --port or --host",
        ) from None
