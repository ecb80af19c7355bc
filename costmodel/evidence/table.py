"""Measured runs by engine, GPU generation and key: what there is, and what there is none of.

The table is counted from the data set that the constants and the bands come from (`tools/renew_evidence.py`)
and stored in ``data/evidence.json``.
"""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from costmodel.evidence.keys import EXPERTS, Footing

EVIDENCE_FILE = Path(__file__).parents[1] / "data" / "evidence.json"
RUNS = "runs"
"""The key of every run: its engine on its generation."""
MEMORY = "peak memory"
"""The key of runs with a measured peak; with a precision or experts behind it, of those that have them."""

Table = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Runs by engine, generation and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Measured runs that have one thing in common with an estimate.

    Attributes:
        key: What, by its class, such as ``cp > 2``; ``runs`` is the engine on the GPU generation itself.
        used: The same as the estimate has it, such as ``cp 8``.
        runs: Measured runs of this engine on this GPU generation that have it.
        elsewhere: Measured runs of this engine on other generations that have it.
    """

    key: str
    used: str
    runs: int
    elsewhere: int


@functools.cache
def shipped_table() -> Table:
    """Runs behind the shipped constants."""
    table: Table = json.loads(EVIDENCE_FILE.read_text(encoding="utf-8"))
    return table


def count_runs(
    runs: Iterable[tuple[Footing, bool]], peaks: Iterable[Footing] = ()
) -> dict[str, dict[str, dict[str, int]]]:
    """Count runs by engine, generation and key.

    Args:
        runs: What every run rests on, and whether its peak memory was measured.
        peaks: What further runs rest on that say nothing but their peak.
    """
    result: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for footing, has_memory in runs:
        memory = _memory_keys(footing) if has_memory else ()
        result[footing.engine][footing.generation].update(
            [RUNS, *(key.name for key in footing.keys), *memory]
        )
    for footing in peaks:
        result[footing.engine][footing.generation].update(_memory_keys(footing))
    return {
        engine: {generation: dict(sorted(counts.items())) for generation, counts in sorted(by_one.items())}
        for engine, by_one in sorted(result.items())
    }


def _memory_keys(footing: Footing) -> tuple[str, ...]:
    """What a measured peak can have in common with an estimate: the engine, its precision, experts."""
    experts = [f"{MEMORY} {EXPERTS}" for key in footing.keys if key.name == EXPERTS]
    return MEMORY, f"{MEMORY} {footing.precision}", *experts


def evidence_for(footing: Footing, table: Table | None = None) -> tuple[Evidence, ...]:
    """Runs behind all that an estimate rests on, its engine on its generation first, its memory last."""
    of_engine = (shipped_table() if table is None else table).get(footing.engine, {})
    here = of_engine.get(footing.generation, {})
    others = [counts for generation, counts in of_engine.items() if generation != footing.generation]
    named = [
        (RUNS, f"{footing.engine} on {footing.generation}"),
        *((key.name, key.used) for key in footing.keys),
        *((name, name) for name in _memory_keys(footing)),
    ]
    return tuple(
        Evidence(
            key=name,
            used=used,
            runs=here.get(name, 0),
            elsewhere=sum(counts.get(name, 0) for counts in others),
        )
        for name, used in named
    )


def unmeasured(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """What of the step no run of this engine on this generation has."""
    return tuple(item for item in evidence if not item.runs and not item.key.startswith(MEMORY))


def unmeasured_memory(evidence: Sequence[Evidence]) -> int:
    """How many keys of the peak no measured run of this engine has, on any GPU: itself, experts."""
    return sum(_has_no_run(item) for item in evidence if item.key in (MEMORY, f"{MEMORY} {EXPERTS}"))


def unmeasured_precision(evidence: Sequence[Evidence], precision: str) -> bool:
    """Whether no measured run of this engine has a peak in this precision, on any GPU."""
    return any(_has_no_run(item) for item in evidence if item.key == f"{MEMORY} {precision}")


def _has_no_run(item: Evidence) -> bool:
    """On no generation."""
    return not item.runs + item.elsewhere
