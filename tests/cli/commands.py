"""`plan` as a shell sees it: in this process, where the answer is tested, or in one of its own."""

import io
import os
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from app.cli import run

ROOT = Path(__file__).resolve().parents[2]


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Exit code and both streams of a command, without the start of an interpreter."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]), warnings.catch_warnings():
        warnings.resetwarnings()  # those of the user, not those of the tests
        code = run(list(arguments))
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return subprocess.CompletedProcess(arguments, code, out, err)


def plan_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same as a user would run it, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
