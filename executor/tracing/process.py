"""Trace a user's module in a process of its own, with limits of time and memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from costmodel.models.traced import TracedModule
from topology.base.decode import read_json, structure
from topology.base.errors import InputError, shortened
from topology.base.units import GIB

LONGEST_S = 120.0
MOST_BYTES = 16 * GIB  # of address space; torch maps several before it computes anything


def traced_by_process(
    builder: str,
    inputs: str,
    *,
    length: int = 0,
    longest_s: float = LONGEST_S,
    most_bytes: int = MOST_BYTES,
) -> TracedModule:
    """The table of ``package.file:build`` with these inputs; its code is the user's own, and is run.

    Args:
        builder: What builds it, or a library and its name.
        inputs: As text; empty for those that are usual of a library's model.
        length: Tokens of a sample in place of the usual; 0 for those.
        longest_s: Seconds that it may take.
        most_bytes: Address space that it may use.

    Raises:
        InputError: If it cannot be imported, built or traced within the limits, with the line.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        words = [sys.executable, "-m", "executor.tracing.worker", builder, inputs, str(answer)]
        try:
            ended = subprocess.run(
                [*words, str(int(most_bytes)), str(length)],
                timeout=longest_s, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise InputError(
                what=f"{shortened(builder)} was not traced in time",
                cause=f"building and tracing took more than {longest_s:g} s",
                fix="build it without weights or downloads; a smaller input traces the same blocks",
            ) from None
        if not answer.is_file():
            raise InputError(
                what=f"{shortened(builder)} stopped its process",
                cause=_last_words(ended),
                fix="build it without weights (torch.device('meta')), so that it needs little memory",
            )
        traced = read_json(answer)
    if isinstance(traced, dict) and "error" in traced:
        what, cause, fix = (str(line) for line in traced["error"])
        raise InputError(what, cause, fix)
    return structure(traced["module"] if isinstance(traced, dict) else traced, TracedModule, builder)


def _last_words(ended: subprocess.CompletedProcess[bytes]) -> str:
    """The end of what it wrote, else how it ended."""
    lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
    return shortened(lines[-1]) if lines else f"it ended with code {ended.returncode}"
