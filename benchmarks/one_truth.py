"""Put random questions through every surface; count quantities of two values, words against their numbers.

python benchmarks/one_truth.py --questions 200 [--seed S] [--first N]

A question of training, of a campaign, of serving or of an audit is asked of the command line (table, JSON,
CSV, Markdown), of the files it saves, and of every page of the dashboard that draws it. Each fault is printed
with both lines that contradict each other; the exit status is then 1. `tests/property/one_truth` asks 30.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.property.one_truth.claims import unsupported  # noqa: E402 - the checkout is not installed
from tests.property.one_truth.quantities import PATTERNS, contradictions, statements  # noqa: E402
from tests.property.one_truth.questions import question  # noqa: E402
from tests.property.one_truth.surfaces import limited, surfaces  # noqa: E402


def main() -> int:
    """Ask them all; 1 if anything contradicts itself."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first question")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # streamlit's notes that no browser is there
    counts: Counter[str] = Counter()
    started_s = time.monotonic()
    for number in range(options.first, options.first + options.questions):
        with tempfile.TemporaryDirectory() as folder:
            asked = limited(question(number, options.seed))
            code, lines = surfaces(asked, Path(folder))
        stated = statements(lines, PATTERNS[asked.kind])
        faults = [*contradictions(stated), *unsupported(lines, stated)]
        counts.update(
            {
                asked.kind: 1,
                f"exit {code}": 1,
                "values": sum(map(len, stated.values())),
                "faults": len(faults),
            }
        )
        for fault in faults:
            print(f"FAULT {number}: plan {shlex.join(asked.words)}\n  {fault}", flush=True)
        print(
            f"{number}: {asked.kind}, {len(lines)} lines, {len(faults)} faults", file=sys.stderr, flush=True
        )
    print(f"{dict(counts)} in {time.monotonic() - started_s:.0f} s")
    return int(counts["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
