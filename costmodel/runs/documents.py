"""How long the documents are that a run packs into its sequences, where attention stays inside each.

The column ``document_tokens`` says it: Σl²/Σl of their lengths l. A note that states attention inside
documents and no length leaves everything between a tile of the kernel and the sequence; the geometric mean is
as far from both.
"""

from __future__ import annotations

import math

from costmodel.runs.cells import Row, count
from costmodel.runs.notes import stated

KERNEL_TILE = 128
"""Queries of a tile of fused attention, below which a document costs as much (arXiv 2407.08608)."""


def document_tokens_of(row: Row) -> int | None:
    """Tokens of a document of this row; None where a sequence is one.

    >>> document_tokens_of({"note": "attention inside documents", "sequence_length": "8192"})
    1024
    >>> document_tokens_of({"document_tokens": "600"}), document_tokens_of({"note": "varlen"})
    (600, None)
    """
    if row.get("document_tokens"):
        return count(row, "document_tokens")
    if not stated(row.get("note", ""), "attention inside documents"):
        return None
    return math.isqrt(KERNEL_TILE * count(row, "sequence_length"))
