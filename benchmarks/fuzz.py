"""Put hostile inputs through every door of the product, and count what breaks.

python benchmarks/fuzz.py --inputs 1000000 [--seed S] [--surface NAME] [--seconds T] [--jobs J] [--found FILE]

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

MIB = 2**20


def main() -> int:
    """Run the campaign; 1 if anything broke."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=20_000, help="over all surfaces, by their weights")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--surface", choices=[surface.name for surface in SURFACES], help="this one alone")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit of each surface")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--found", type=Path, default=Path("found_inputs.jsonl"))
    options = parser.parse_args()
    chosen = [surface for surface in SURFACES if options.surface in (None, surface.name)]
    tallies = [_campaign(surface, chosen, options) for surface in chosen]
    print(table(tallies))
    return int(any(tally.faults for tally in tallies))


def _campaign(surface: Surface, chosen: list[Surface], options: argparse.Namespace) -> Tally:
    """One surface's share of the inputs."""
    share = round(options.inputs * surface.weight / sum(each.weight for each in chosen))
    inputs = range(max(share, len(surface.corpus)))
    tally = run(
        surface, inputs, seed=options.seed, jobs=options.jobs, until=time.monotonic() + options.seconds
    )
    with options.found.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(fault)) + "\n" for fault in tally.faults)
    for count, fault in tally.smallest().values():
        print(f"FAULT {surface.name}: {count} × {described(fault)}", flush=True)
    print(f"{surface.name}: {tally.inputs:,} inputs in {tally.seconds:.0f} s", file=sys.stderr, flush=True)
    return tally


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
    total = Tally("total", peak_bytes=max((tally.peak_bytes for tally in tallies), default=0))
    for tally in tallies:
        total.inputs, total.answered = total.inputs + tally.inputs, total.answered + tally.answered
        total.seconds, total.faults = total.seconds + tally.seconds, total.faults + tally.faults
    return total


if __name__ == "__main__":
    sys.exit(main())
