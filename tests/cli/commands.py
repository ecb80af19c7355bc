"""`plan` as a shell sees it: in this process, where the answer is tested, or in one of its own."""

import io
import os
import re
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from app.cli import run

ROOT = Path(__file__).resolve().parents[2]
_SIGN_OF_LIFE = re.compile(r"^plan \w+ … \d+ s\n", re.MULTILINE)


def without_signs_of_life(text: str) -> str:
    r"""What a command says on stderr but for the lines that say it is still at work: a slow machine adds those.

    >>> without_signs_of_life("plan estimate … 5 s\nnote: model 8b is llama-3.1-8b\n")
    'note: model 8b is llama-3.1-8b\n'
    """
    return _SIGN_OF_LIFE.sub("", text)


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Exit code and both streams of a command, without the start of an interpreter."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]), warnings.catch_warnings():
        warnings.resetwarnings()  # those of the user, not those of the tests
        code = run(list(arguments))
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return subprocess.CompletedProcess(arguments, code, out, without_signs_of_life(err))


def plan_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same as a user would run it, without a terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    done.stderr = without_signs_of_life(done.stderr)
    return done
