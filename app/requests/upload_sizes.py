"""How large a file may be that a browser sends: one that describes something, and one that was recorded."""

from __future__ import annotations

from typing import Final

MOST_UPLOAD_MIB: Final = 2
"""Of a file that describes something; `uploads` checks it."""
MOST_TRACE_MIB: Final = 64
"""Of a recorded file, packed: a few steps of a rank. The server refuses more; the command line reads it."""
