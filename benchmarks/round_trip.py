"""Write random plans for every engine, read them back, and ask its own parser what it derives from them.

python benchmarks/round_trip.py --plans 2000 [--seed S] [--engine NAME] [--found FILE]

Plans are legal layouts × models × profiles × GPUs × precisions; one is known by engine, seed and number. The
parsers are those of `MESHPLAN_PARSERS` (`python tools/build_parsers.py FOLDER`); an engine that is not there
is read back only, and the table says so. What is read or derived otherwise is written to FILE, one a line as
JSON; the exit status is then 1. `tests/property/planner/engines` does a part of this in the suite.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from planner.parsers.client import HOW, PACKAGES, answers, case_of, faults, interpreter  # noqa: E402 - not installed
from tests.property.planner.engines.random_plans import Told, random_plans  # noqa: E402

PATIENCE_S = 3600.0
EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found of one engine."""

    engine: str
    plans: int
    layouts: int
    misread: int
    asked: int
    refused: int
    seconds: float

    def __str__(self) -> str:
        """A line of the table."""
        own = f"{self.refused} of {self.asked}" if self.asked else "not asked"
        cells = (
            self.engine,
            f"{self.plans} ({self.layouts} layouts)",
            str(self.misread),
            own,
            f"{self.seconds:.0f}",
        )
        return "| " + " | ".join(cells) + " |"


def tried(engine: str, plans: int, seed: int, found: Path) -> Row:
    """One engine."""
    start_s = last_s = time.monotonic()
    told: list[Told] = []
    for one in islice(random_plans(engine, seed), plans):
        told.append(one)
        if time.monotonic() - last_s > EVERY_S:
            last_s = time.monotonic()
            print(f"{engine}: {len(told)} of {plans} plans written", file=sys.stderr, flush=True)
    misread = [(number, one.faults) for number, one in enumerate(told) if one.faults]
    refused = _refused(engine, told)
    with found.open("a", encoding="utf-8") as file:
        for number, said in (*misread, *refused):
            line = {
                "engine": engine,
                "seed": seed,
                "number": number,
                "faults": said,
                "files": dict(told[number].files),
            }
            file.write(json.dumps(line, default=str) + "\n")
    return Row(
        engine=engine,
        plans=len(told),
        layouts=len({(*sorted(_layout(one).items()),) for one in told}),
        misread=len(misread),
        asked=len(told) if interpreter(engine) else 0,
        refused=len(refused),
        seconds=time.monotonic() - start_s,
    )


def _layout(told: Told) -> dict[str, str]:
    """The layout and the split of a plan, to be counted."""
    return {
        name: str(said) for name, said in told.facts.items() if name.partition(".")[0] in ("layout", "split")
    }


def _refused(engine: str, told: list[Told]) -> list[tuple[int, tuple[str, ...]]]:
    """What the engine's own parser refuses or derives otherwise; nothing where it is not here."""
    if (python := interpreter(engine)) is None:
        print(f"{engine} is not installed: {HOW}", file=sys.stderr, flush=True)
        return []
    last_s = time.monotonic()

    def alive(share: float) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > EVERY_S:
            last_s = time.monotonic()
            print(f"{engine}: its own parser has judged {share:.0%}", file=sys.stderr, flush=True)

    cases = [case_of(one.contract, one.files, one.facts, one.gpu) for one in told]
    given = answers(engine, cases, python, alive, timeout_s=PATIENCE_S)
    judged = [
        (number, faults(one.facts, said)) for number, (one, said) in enumerate(zip(told, given, strict=True))
    ]
    return [(number, said) for number, said in judged if said]


def main() -> int:
    """Try every engine; 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=2000, help="of each engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=list(PACKAGES), help="this one alone")
    parser.add_argument("--found", type=Path, default=Path("found_exports.jsonl"))
    options = parser.parse_args()
    chosen = [options.engine] if options.engine else list(PACKAGES)
    print("| engine | plans | read back otherwise | refused or derived otherwise by its own parser | s |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    rows = []
    for engine in chosen:
        rows.append(tried(engine, options.plans, options.seed, options.found))
        print(rows[-1], flush=True)
    return int(any(row.misread or row.refused for row in rows))


if __name__ == "__main__":
    sys.exit(main())
