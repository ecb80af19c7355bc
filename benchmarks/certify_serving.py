"""Certificates of random serving questions against plain enumeration; exits 1 when one is refuted.

`python benchmarks/certify_serving.py --cases 200 --seed 1`: every replica under every scheduler is simulated
at the shares by which the certified bound would be beaten (`tests/oracle/planner/serving/plain_fleets.py`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from planner.serving.plan import ServingPlan  # noqa: E402 - the path comes first
from tests.oracle.planner.serving.plain_fleets import answer_of, questions, refuted  # noqa: E402 - same


def main() -> int:
    """Ask, enumerate, compare; print what was refuted and the widest gap."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    started, found, gaps, wrong = time.perf_counter(), Counter[str](), [0.0], 0
    for question in questions(asked.cases, asked.seed):
        answer = answer_of(question)
        if answer is None:
            found["refused"] += 1
            continue
        planned = isinstance(answer, ServingPlan)
        found[answer.optimality.status if planned else "infeasible"] += 1
        if planned and answer.optimality.status == "proven":
            gaps.append(answer.optimality.gap)
        why = refuted(question, answer)
        if why is not None:
            wrong += 1
            print(
                f"REFUTED: {question.name}\n  {answer.optimality if planned else answer}\n  {why}", flush=True
            )
    counted = ", ".join(f"{count} {status}" for status, count in sorted(found.items()))
    print(f"{asked.cases} questions ({counted}): {wrong} refuted, widest gap of a proof {max(gaps):.2%}, "
          f"{time.perf_counter() - started:.0f} s")  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
