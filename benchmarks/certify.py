"""Hold certificates against plain enumeration: random requests, and random pins against free searches.

python benchmarks/certify.py --cases 5000 --seed 1 [--for any|each|ENGINE] [--pins 20000] [--seconds S]
                             [--found FILE]

Every case is known by its seed and number. A search that is worse than the best of all layouts and splits, or
whose bound is above it, is written to FILE as one line of JSON that
`tests/oracle/planner/search/found_cases.json` takes; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.kernels.tables import Calibration, load_calibration  # noqa: E402 - the checkout is not installed
from planner.engines.contracts import CONTRACTS  # noqa: E402
from planner.plan import FREE, PlanRequest  # noqa: E402
from tests.oracle.planner.search.certificates import RELATIVE, Answer, Verdict, answer_of, blame, judge  # noqa: E402
from tests.oracle.planner.search.plain_enumeration import problem_of, sampled_layouts  # noqa: E402
from tests.oracle.planner.search.random_requests import (  # noqa: E402
    EACH,
    case_of,
    pins_of,
    random_sizes,
    with_limits,
    written,
)

PINS_OF_A_REQUEST = 10
"""Pinned searches that one free search is held against."""

PINNED_GPUS = 16
"""Largest cluster on which pins are tried: nothing is enumerated there."""


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    counts: Counter[str] = field(default_factory=Counter)
    sizes: list[int] = field(default_factory=list)
    splits: int = 0
    worst: float = 0.0


def report(path: Path, name: str, faults: tuple[str, ...], request: PlanRequest, **said: object) -> None:
    """Print a fault, and append the request that shows it to the file of found cases."""
    print(f"FAULT {name}: {', '.join(faults)}; {said}", flush=True)
    line = {"name": name, "faults": faults, **said, "request": written(request)}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, default=str) + "\n")


def until(cases: int, seconds: float) -> Iterator[int]:
    """Numbers of cases, until the time is up."""
    started = time.monotonic()
    for number in range(cases):
        if time.monotonic() - started > seconds:
            return
        yield number


def certify(
    cases: int, seed: int, seconds: float, most_layouts: int, found: Path, cal: Calibration, engine: str
) -> Tally:
    """Judge random requests against the plain enumeration, within the contract of an engine."""
    tally, name = Tally(), "" if engine == FREE else f"{engine} "
    for number in until(cases, seconds):
        drawn = case_of(seed, number, cal, most_layouts=most_layouts, engine=engine)
        if drawn is None:
            tally.counts["skipped"] += 1
            continue
        request, layouts = drawn
        verdict = judge(request, layouts, cal)
        _count(tally, request, verdict, len(layouts))
        if verdict.faults:
            best, said = verdict.truth.best, verdict.answer
            report(
                found, f"{name}{seed}/{number}", verdict.faults, request, gap=verdict.gap,
                blame=blame(request, layouts, verdict, cal),
                answer_score=said.score, answer_layout=said.layout, bound=said.bound,
                best_score=best.score if best else math.inf, best=best,
            )  # fmt: skip
        if (number + 1) % 100 == 0:
            print(f"… {number + 1} cases, {dict(tally.counts)}", flush=True)
    return tally


def _count(tally: Tally, request: PlanRequest, verdict: Verdict, layouts: int) -> None:
    """Add one case."""
    tally.counts["judged"] += 1
    tally.counts["feasible"] += verdict.truth.best is not None
    tally.counts["pinned"] += bool(request.pins)
    tally.counts["recomputing"] += verdict.truth.best is not None and any(
        verdict.truth.best.split.recompute_of_stage
    )
    tally.counts["not proven"] += not verdict.answer.proven
    tally.counts["faults"] += bool(verdict.faults)
    tally.counts[f"stack {request.stack}"] += 1
    tally.counts[f"for {request.engine}"] += 1
    tally.counts[f"objective {request.objective}"] += 1
    tally.counts[f"{request.cluster.num_gpus} GPUs"] += 1
    tally.sizes.append(layouts)
    tally.splits += verdict.truth.splits
    tally.worst = max(tally.worst, verdict.gap)


def certify_pins(pins: int, seed: int, seconds: float, found: Path, cal: Calibration) -> Tally:
    """Hold free searches against searches with one or two fields pinned to values of their own space."""
    tally = Tally()
    for number in until(math.ceil(pins / PINS_OF_A_REQUEST) * 2, seconds):
        if tally.counts["pinned"] >= pins:
            break
        r = Random(f"pins {seed}/{number}")
        request = random_sizes(r, PINNED_GPUS)
        s = problem_of(request)
        sampled = sampled_layouts(r, s, {}, 400)
        if not sampled:
            tally.counts["skipped"] += 1
            continue
        request = with_limits(r, request, sampled, cal)
        if request.objective == "memory":  # the band of a slower plan ends later
            request = replace(request, objective="step-time")
        free = answer_of(request, cal)
        tally.counts["free"] += 1
        for _ in range(PINS_OF_A_REQUEST):
            chosen = pins_of(r, sampled, r.choice((1, 1, 2)))
            if not chosen:
                continue
            pinned = answer_of(replace(request, pins=chosen), cal)
            tally.counts["pinned"] += 1
            _compare(tally, f"pins {seed}/{number}", request, chosen, free, pinned, found)
        if (number + 1) % 50 == 0:
            print(f"… {tally.counts['pinned']} pins, {tally.counts['faults']} faults", flush=True)
    return tally


def _compare(
    tally: Tally,
    name: str,
    request: PlanRequest,
    pins: dict[str, object],
    free: Answer,
    pinned: Answer,
    found: Path,
) -> None:
    """A pin may not give a better plan than none."""
    faults = [*free.faults, *pinned.faults]
    if free.proven and pinned.score * (1 + RELATIVE) < free.score:
        faults.append("a pin is better")
        gap = math.inf if math.isinf(free.score) else free.score / pinned.score - 1
        tally.worst = max(tally.worst, gap)
    if faults:
        tally.counts["faults"] += 1
        report(
            found, name, tuple(faults), request, pins=pins, answer_score=free.score,
            answer_layout=free.layout, best_score=pinned.score, best=pinned.layout,
        )  # fmt: skip


def show(what: str, tally: Tally, seconds: float) -> None:
    """Print what was tried and what came of it."""
    print(f"\n{what}: {seconds:.0f} s")
    for name, count in sorted(tally.counts.items()):
        print(f"  {name:32} {count:>9,}")
    if tally.sizes:
        median = statistics.median(tally.sizes)
        print(f"  {'layouts priced':32} {sum(tally.sizes):>9,}, median {median:.0f} a case")
        print(f"  {'splits tried':32} {tally.splits:>9,}")
    print(f"  {'worst relative gap':32} {tally.worst:>9.2g}")


def main() -> int:
    """Run what the command line asks for; 1 if anything was found."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--cases", type=int, default=0)
    parser.add_argument("--pins", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    engines = (FREE, EACH, *CONTRACTS)
    parser.add_argument("--for", dest="engine", choices=engines, default=FREE, help="whose contract is kept")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time limit of each part")
    parser.add_argument(
        "--most-layouts", type=int, default=400, help="fields are pinned until so few are left"
    )
    parser.add_argument("--found", type=Path, default=Path("found_cases.jsonl"))
    asked = parser.parse_args()
    cal, faults = load_calibration(), 0
    parts = []
    if asked.cases:
        parts.append(
            ("against plain enumeration",
             lambda: certify(asked.cases, asked.seed, asked.seconds, asked.most_layouts, asked.found, cal,
                             asked.engine))
        )  # fmt: skip
    if asked.pins:
        parts.append(
            ("pins against free searches",
             lambda: certify_pins(asked.pins, asked.seed, asked.seconds, asked.found, cal))
        )  # fmt: skip
    for what, part in parts:
        started = time.monotonic()
        tally = part()
        show(what, tally, time.monotonic() - started)
        faults += tally.counts["faults"]
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
