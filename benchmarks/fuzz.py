"""Put hostile inputs through every door of the product, and count what breaks.

python benchmarks/fuzz.py --inputs 1000000 [--seed S] [--surface NAME] [--seconds T] [--limit SECONDS]
    [--jobs J] [--found FILE]

The invariant of every input: a proper answer or a proper refusal (exit code 0, 1 or 2), within 10 s of
computing and 1 GiB, no NaN and no negative measure in the answer, nothing opened, executed or written that
was not asked for. An input is known by surface, seed and number. Faults are written to FILE, one a line as
JSON; the exit status is then 1. `tests/property/fuzz` runs a part of this in the suite.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.property.fuzz.campaign import Fault, Tally, run  # noqa: E402 - the checkout is not installed
from tests.property.fuzz.surface import Surface  # noqa: E402
from tests.property.fuzz.surfaces import SURFACES  # noqa: E402
from tests.property.fuzz.watch import MOST_SECONDS  # noqa: E402

MIB = 2**20
ROUNDS = 10
"""Each puts a part of every surface's inputs through, so that a run that is stopped has tried all doors."""


def main() -> int:
    """Run the campaign; 1 if anything broke."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=20_000, help="over all surfaces, by their weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--surface", choices=[surface.name for surface in SURFACES], help="this one alone")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop then, and report")
    parser.add_argument("--limit", type=float, default=MOST_SECONDS, help="seconds of computing of one input")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--found", type=Path, default=Path("found_inputs.jsonl"))
    options = parser.parse_args()
    chosen = [surface for surface in SURFACES if options.surface in (None, surface.name)]
    tallies, until = [Tally(surface.name) for surface in chosen], time.monotonic() + options.seconds
    for turn in range(ROUNDS):
        if time.monotonic() > until:
            break
        for surface, tally in zip(chosen, tallies, strict=True):
            _campaign(surface, _part(surface, chosen, options.inputs, turn), tally, until, options)
        print(f"after {turn + 1} of {ROUNDS} rounds\n{table(tallies)}", file=sys.stderr, flush=True)
    for tally in tallies:
        for count, fault in tally.smallest().values():
            print(f"FAULT {tally.surface}: {count} × {described(fault)}")
    print(table(tallies))
    return int(any(tally.faults for tally in tallies))


def _part(surface: Surface, chosen: list[Surface], inputs: int, turn: int) -> range:
    """Numbers of the inputs of one round: a surface's share by weight, cut into equal parts."""
    share = max(round(inputs * surface.weight / sum(each.weight for each in chosen)), len(surface.corpus))
    return range(share * turn // ROUNDS, share * (turn + 1) // ROUNDS)


def _campaign(
    surface: Surface, inputs: range, tally: Tally, until: float, options: argparse.Namespace
) -> None:
    """Put these inputs through a surface, add them to its tally, and write down what broke at once."""
    part = run(surface, inputs, seed=options.seed, jobs=options.jobs, until=until, limit_s=options.limit)
    tally.add(part)
    with options.found.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(fault)) + "\n" for fault in part.faults)


def described(fault: Fault) -> str:
    """A fault on one line."""
    return f"{fault.kind}: {fault.what} ({fault.place}); input {fault.index}: {fault.story[:200]}"


def table(tallies: list[Tally]) -> str:
    """Counts per surface, as Markdown."""
    kinds = {
        "slow": ("slow", "hang"),
        "memory": ("memory", "death"),
        "touched": ("touched",),
        "answer": ("answer",),
    }
    known = {kind for names in kinds.values() for kind in names}
    heads = ("surface", "inputs", "answered", "defects", *kinds, "inputs/s", "MiB grown")
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    for tally in [*tallies, _total(tallies)]:
        counts = [sum(fault.kind in names for fault in tally.faults) for names in kinds.values()]
        defects = sum(fault.kind not in known for fault in tally.faults)
        rate, grown = tally.inputs / max(tally.seconds, 1e-9), tally.peak_bytes / MIB
        cells = [f"{tally.inputs:,}", f"{tally.answered:,}", defects, *counts, f"{rate:,.0f}"]
        lines.append("| " + " | ".join(map(str, [tally.surface, *cells, f"{grown:,.0f}"])) + " |")
    return "\n".join(lines)


def _total(tallies: list[Tally]) -> Tally:
    """All surfaces together."""
    total = Tally("total")
    for tally in tallies:
        total.add(tally)
    return total


if __name__ == "__main__":
    sys.exit(main())
