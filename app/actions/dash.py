"""Start Streamlit on the dashboard: local, quiet, without telemetry, with small uploads.

A plan given on the command line becomes the first page's URL, so it is the same state that a shared link has.
`STREAMLIT_*` variables of the environment win over these settings.
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

from app.errors import ANSWERED, INTERRUPTED
from topology.base.errors import InputError

RUN_FOLDER = "MESHPLAN_RUN"
PLAN_FILE = "MESHPLAN_PLAN"
MOST_UPLOAD_MIB = 2

_SETTINGS: Mapping[str, str] = {
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "false",
    "STREAMLIT_SERVER_MAX_UPLOAD_SIZE": str(MOST_UPLOAD_MIB),
    "STREAMLIT_SERVER_ENABLE_XSRF_PROTECTION": "true",
    "STREAMLIT_SERVER_FILE_WATCHER_TYPE": "none",
    "STREAMLIT_CLIENT_SHOW_ERROR_DETAILS": "none",
    "STREAMLIT_CLIENT_TOOLBAR_MODE": "minimal",
    "STREAMLIT_THEME_LIGHT_PRIMARY_COLOR": "#0072B2",
    "STREAMLIT_THEME_DARK_PRIMARY_COLOR": "#56B4E9",
    "STREAMLIT_GLOBAL_DEVELOPMENT_MODE": "false",
    "MALLOC_ARENA_MAX": "2",  # every session is a thread; an arena for each would keep its memory for good
    "STREAMLIT_GLOBAL_DISABLE_WIDGET_STATE_DUPLICATION_WARNING": "true",
}


def serve(
    *,
    plan: Path | None,
    port: int,
    host: str,
    browser: bool,
    run: Path | None,
    accept_changes: bool = False,
) -> int:
    """Run the dashboard until it is stopped."""
    require_installed()
    require_free(host, port)
    environment = server_environment(dict(os.environ), plan=plan, run=run, accept_changes=accept_changes)
    words = [sys.executable, "-c", "from app.dashboard import start; start()", "run"]
    words.append(str(Path(__file__).parents[1] / "entry" / "dashboard.py"))
    words += [
        "--server.port",
        str(port),
        "--server.address",
        host,
        "--server.headless",
        str(not browser).lower(),
    ]
    sys.stderr.write(f"dashboard at http://{host}:{port} (Ctrl-C stops it)\n")
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
    environment: Mapping[str, str], *, plan: Path | None, run: Path | None, accept_changes: bool = False
) -> dict[str, str]:
    """Settings of the server; what the user has set stays."""
    from app.reports.answer import note
    from app.requests.plan_file import read_plan

    ours = dict(_SETTINGS)
    root = str(Path(__file__).resolve().parents[2])
    ours["PYTHONPATH"] = os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH", ""))))
    if plan is not None:
        read_plan(
            plan, accept_changes=accept_changes, say=note
        )  # a bad file is refused here, not in the browser
        ours[PLAN_FILE] = str(plan.resolve())
    if run is not None:
        if not run.is_dir():
            raise InputError(
                what=f"{run} is no run", cause="it is not a folder", fix="give the folder of `plan run`"
            )
        ours[RUN_FOLDER] = str(run.resolve())
    kept = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**ours, **kept}


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
    except OSError as error:
        raise InputError(
            what=f"cannot listen on {host}:{port}",
            cause=error.strerror or str(error),
            fix="give another --port or --host",
        ) from None
