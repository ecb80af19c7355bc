"""The accuracy that is held: errors by group as at the last release, and what has become worse since."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from costmodel.accuracy.training import RunResult, summarise

SNAPSHOT = Path(__file__).parents[1] / "data" / "accuracy_snapshot.json"
HELD = ("median_error", "mean_error", "p90_error", "memory_median_error")
MARGIN, SHARE = 0.005, 0.10
"""An error may grow by half a percent point plus a tenth of itself before it counts as worse."""

Snapshot = Mapping[str, Mapping[str, float]]


def snapshot_of(results: Sequence[RunResult]) -> dict[str, dict[str, float]]:
    """Errors by source, and of all rows, that a later state is compared with; four digits."""
    snapshot: dict[str, dict[str, float]] = {}
    for summary in summarise(results, by="source"):
        errors = {name: float(getattr(summary, name)) for name in HELD}
        kept = {name: round(error, 4) for name, error in errors.items() if not math.isnan(error)}
        counts = {"rows": float(summary.rows), "unsupported": float(summary.unsupported)}
        snapshot[summary.group] = {**counts, **kept}
    return snapshot


def worse(before: Snapshot, after: Snapshot) -> list[str]:
    """What became worse by more than the margin, one sentence each.

    >>> worse({"a": {"median_error": 0.02}}, {"a": {"median_error": 0.03}})
    ['a: median_error 0.0200 became 0.0300']
    >>> worse({"a": {"median_error": 0.02}}, {"a": {"median_error": 0.026}})
    []
    """
    result = [f"{group} is gone" for group in before if group not in after]
    for group in (group for group in before if group in after):
        old, new = before[group], after[group]
        if new.get("unsupported", 0) > old.get("unsupported", 0):
            result.append(f"{group}: {new['unsupported']:.0f} rows are unsupported")
        for name in HELD:
            limit = old.get(name, math.inf) * (1 + SHARE) + MARGIN
            if new.get(name, 0.0) > limit:
                result.append(f"{group}: {name} {old[name]:.4f} became {new[name]:.4f}")
    return result


def read_snapshot() -> dict[str, Snapshot]:
    """Figures of the last release: of the packaged runs, and of the second data set."""
    tables: dict[str, Snapshot] = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    return tables
