"""Put one fault into simulated steps, many times, and count how often the diagnosis names it first.

python benchmarks/diagnose_faults.py [--seeds 20] [--healthy 200]

Steps are those of the pipeline simulator, written as Kineto (`tests/unit/planner/diagnose/simulated.py`).
Printed are, by fault, the share of right first causes and the largest error of the seconds. The exit status
is 1 where fewer than 95 % are right, a size is off by over 2 %, or a healthy job is accused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planner.diagnose.diagnosis import diagnosed
from planner.questions.flags import Flags
from tests.unit.planner.diagnose.simulated import FAULTS, cause_of, simulate, write_ranks


def main() -> int:
    """Print the table; 1 where a bound does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--healthy", type=int, default=200)
    given = parser.parse_args()
    right, furthest = 0, 0.0
    print(f"{'fault':30} {'right first':>12} {'largest error':>14}")
    for fault in FAULTS:
        hits, error = 0, 0.0
        for seed in range(given.seeds):
            job = simulate(seed, fault)
            with tempfile.TemporaryDirectory() as folder:
                findings = diagnosed(write_ranks(job, Path(folder)), Flags()).findings
            if findings and (findings[0].cause, findings[0].rank) == (cause_of(fault), job.rank):
                hits += 1
                error = max(error, abs(findings[0].seconds * 1e6 / job.truth_us - 1))
        right, furthest = right + hits, max(furthest, error)
        print(f"{fault:30} {hits:>6} of {given.seeds:<3} {error:>13.2%}")
    accused = 0
    for seed in range(given.healthy):
        with tempfile.TemporaryDirectory() as folder:
            accused += bool(diagnosed(write_ranks(simulate(seed), Path(folder)), Flags()).findings)
    print(f"{'healthy, accused':30} {accused:>6} of {given.healthy}")
    return int(right < 0.95 * given.seeds * len(FAULTS) or furthest > 0.02 or accused > 0)


if __name__ == "__main__":
    sys.exit(main())
