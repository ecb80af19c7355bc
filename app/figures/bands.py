"""Bands of a run beside its marks."""

from __future__ import annotations

from collections.abc import Sequence

from app.figures.style import PALE
from costmodel.campaign.record import Band


def whiskers(bands: Sequence[Band | None]) -> dict[str, object]:
    """Whiskers from the tenth to the ninetieth percentile around medians, pale beneath labels."""
    known = [band for band in bands if band is not None]
    return {
        "type": "data", "symmetric": False, "thickness": 1.2, "width": 0, "color": PALE,
        "array": [band.p90 - band.p50 for band in known],
        "arrayminus": [band.p50 - band.p10 for band in known],
    }  # fmt: skip
