"""Standard streams that are closed, full or without our letters: the answer says so, or still arrives.

A stream that is closed is held by ``/dev/null``, so that no file that is opened later takes its number; what
is then printed to stdout fails like any write. Letters a stream cannot encode are spelled in ASCII.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import sys
import time
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TextIO

SPELLING: Final = "meshplan-spelled"
"""Name of the error handler that spells letters."""
WRITE_FAILURES: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.ENXIO}
)
_SPELLED: Final[Mapping[str, str]] = {
    "·": "-", "–": "-", "—": "-", "−": "-", "→": "->", "←": "<-", "↔": "<->", "×": "x", "≤": "<=", "≥": ">=",
    "≈": "~", "±": "+-", "µ": "u", "μ": "u", "σ": "sigma", "λ": "lambda", "Σ": "sum", "∞": "inf", "°": "deg",
    "✓": "yes", "✗": "no", "’": "'", "‘": "'", "“": '"', "”": '"', "\N{REPLACEMENT CHARACTER}": "?",
    "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": ".", "▎": ".", "▏": ".",
}  # fmt: skip


def prepare() -> None:
    """Make the standard streams safe to write to; called once, before anything is opened."""
    codecs.register_error(SPELLING, spelled_for_stream)
    for number in range(3):
        _hold(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=SPELLING, encoding="ascii" if _wants_ascii(os.environ) else None)


def _hold(number: int) -> None:
    """Open ``/dev/null`` where a standard stream is closed: for reading, unless it is stderr."""
    try:
        os.fstat(number)
    except OSError:
        with contextlib.suppress(OSError):
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)


def _wants_ascii(environment: Mapping[str, str]) -> bool:
    """Whether the user's locale is C by name; Python itself would write UTF-8 then.

    >>> _wants_ascii({"LC_ALL": "C"}), _wants_ascii({"LANG": "C.UTF-8"}), _wants_ascii({})
    (True, False, False)
    """
    if environment.get("PYTHONUTF8") == "1" or environment.get("PYTHONIOENCODING"):
        return False
    named = (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return next(filter(None, named), "") in ("C", "POSIX")


def spelled_for_stream(error: UnicodeError) -> tuple[str, int]:
    r"""Spell what a stream cannot encode, letter by letter.

    >>> codecs.register_error(SPELLING, spelled_for_stream)
    >>> "8 × H100 · 5 µs → ½ é ██ 語".encode("ascii", errors=SPELLING).decode()
    '8 x H100 - 5 us -> 1/2 e ## \\u8a9e'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_spell(letter) for letter in error.object[error.start : error.end]), error.end


def _spell(letter: str) -> str:
    """One letter in ASCII: by our table, without its accents, or as an escape."""
    plain = unicodedata.normalize("NFKD", letter).replace("\N{FRACTION SLASH}", "/")
    without = plain.encode("ascii", errors="ignore").decode()
    return _SPELLED.get(letter) or without or json.dumps(letter)[1:-1]


def json_for(stream: TextIO, text: str) -> str:
    r"""JSON text that a stream can encode: as it is, or with every other letter as ``\uXXXX``."""
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return "".join(letter if letter.isascii() else json.dumps(letter)[1:-1] for letter in text)
    return text


@dataclass(slots=True)
class _Voice:
    """When something was last told, in seconds of the monotonic clock."""

    wrote_at_s: float = 0.0


_voice = _Voice()


def silent_s() -> float:
    """Seconds since something was last told."""
    return time.monotonic() - _voice.wrote_at_s


def tell(text: str) -> None:
    """Write to stderr; where that is not possible, nothing more is said there and the answer still comes."""
    _voice.wrote_at_s = time.monotonic()
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Send what a stream still holds to nowhere, so that the interpreter does not complain at exit."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)
