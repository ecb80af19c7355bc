"""A dashboard on a free port and a page of the system's Chromium; without one the tests skip and say so."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "test-artifacts"
STARTUP_S = 90
PATIENCE_MS = 120_000
CHROMIUM_FLAGS = [
    "--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip


def chromium() -> str | None:
    """The system's Chromium."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
        None,
    )


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_up(url: str) -> bool:
    """Whether the server answers."""
    try:
        with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2) as answer:  # noqa: S310 - our own address
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="session")
def dashboard(run_folder) -> Iterator[str]:
    """Address of a running dashboard."""
    port = free_port()
    words = [
        sys.executable,
        "-m",
        "app",
        "dash",
        "--no-browser",
        "--port",
        str(port),
        "--run",
        str(run_folder),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = ARTIFACTS / f"dashboard-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.log"
    ARTIFACTS.mkdir(exist_ok=True)
    with (
        log.open("w") as out,
        subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
        ) as server,
    ):
        url = f"http://127.0.0.1:{port}"
        started = time.monotonic()
        while not is_up(url):
            assert server.poll() is None, log.read_text()
            assert time.monotonic() - started < STARTUP_S, log.read_text()
            time.sleep(0.2)
        yield url
        os.killpg(server.pid, 15)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def profile(browser):
    """Open browser profiles of one's own, as patient as a busy machine asks for; they end with the browser."""

    def open_profile(**options):
        opened = browser.new_context(**options)
        opened.set_default_timeout(PATIENCE_MS)
        return opened

    return open_profile


@pytest.fixture(scope="session")
def context(profile):
    """One browser profile for all tests: scripts are fetched and compiled once; the state is in every page's URL."""
    return profile(viewport={"width": 1440, "height": 1100}, accept_downloads=True)


@pytest.fixture
def page(context):
    """A fresh page that notes every request that leaves this machine."""
    opened = context.new_page()
    opened.strangers = []
    opened.on("request", lambda request: _note_stranger(opened, request.url))
    yield opened
    opened.close()


def _note_stranger(page, url: str) -> None:
    if not url.startswith(("http://127.0.0.1", "data:", "blob:", "ws://127.0.0.1")):
        page.strangers.append(url)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    """A training run that restarted once, as the executor writes it."""
    folder = tmp_path_factory.mktemp("run")
    steps = [*range(1, 31), *range(21, 61)]
    lines = [
        json.dumps(
            {"step": step, "loss": 6.0 - step / 40, "step_time_s": 1.9 + 0.1 * (step % 3), "predicted_step_time_s": 1.95,
             "tokens_per_s": 2100.0 - 50 * (step % 3), "mfu": 0.41, "peak_memory_bytes": 61 * 2**30}
        )
        for step in steps
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    (folder / "status.json").write_text(json.dumps({"state": "running", "step": 60, "history": []}))
    (folder / "checkpoints" / "step-00000040").mkdir(parents=True)
    return folder
