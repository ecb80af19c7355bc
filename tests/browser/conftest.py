"""A dashboard on a free port and a page of the system's Chromium; without one the tests skip and say so."""

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
def dashboard() -> Iterator[str]:
    """Address of a running dashboard."""
    port = free_port()
    words = [sys.executable, "-m", "app", "dash", "--no-browser", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    log = ARTIFACTS / "dashboard.log"
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


@pytest.fixture
def page(browser):
    """A fresh page that notes every request that leaves this machine, and every error of a script."""
    context = browser.new_context(viewport={"width": 1440, "height": 1100}, accept_downloads=True)
    opened = context.new_page()
    opened.set_default_timeout(120_000)
    opened.strangers = []
    opened.on("request", lambda request: _note_stranger(opened, request.url))
    yield opened
    context.close()


def _note_stranger(page, url: str) -> None:
    if not url.startswith(("http://127.0.0.1", "data:", "blob:", "ws://127.0.0.1")):
        page.strangers.append(url)
