"""Choose the published runs that the package carries, from the large table of measured runs.

    python tools/build_published_runs.py ../shared/data/training_runs_v2.csv

Tables of papers and vendors are taken whole; of long sweeps and logs every n-th row, so that the file stays
small and every source is heard. Rows that the readers refuse stay out. Each row keeps its source, address and
note.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from costmodel.accuracy.training_runs import PUBLISHED_RUNS, read_runs  # noqa: E402
from costmodel.runs.cells import UnsupportedRunError  # noqa: E402 - the checkout is not installed

EVERY: Mapping[str, int] = {
    "vtrain_single_node": 120,  # MIT, 1,440 rows
    "mosaic_llm_foundry": 8,  # Apache-2.0, 120 rows
    "bloom_prequel": 3,  # Apache-2.0, 54 rows
    "simumax_b200": 2,  # Apache-2.0, 24 rows
    "megatron_bridge_perf": 2,  # Apache-2.0, 81 rows
    "vtrain_multi_node": 4,  # MIT, 41 rows
    "internevo_7b": 3,  # Apache-2.0, 30 rows
    "mlperf_training_v5.1_llama31_8b": 2,  # MLPerf logs, 20 rows
}
"""Sources of which only every n-th row is taken."""


def chosen(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Rows to ship, in the order of the table."""
    seen: Counter[str] = Counter()
    kept = []
    for row in rows:
        if isinstance(read_runs([row])[0], UnsupportedRunError):
            continue
        if seen[row["source"]] % EVERY.get(row["source"], 1) == 0:
            kept.append(row)
        seen[row["source"]] += 1
    return kept


def main() -> None:
    """Write the table and say what is in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="the large table")
    with parser.parse_args().runs.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        columns, rows = list(reader.fieldnames or ()), chosen(list(reader))
    with PUBLISHED_RUNS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for source, count in Counter(row["source"] for row in rows).items():
        print(f"{count:5d}  {source}")
    size = PUBLISHED_RUNS.stat().st_size
    print(f"{len(rows):5d}  rows in {PUBLISHED_RUNS.relative_to(ROOT)}, {size:,} bytes")


if __name__ == "__main__":
    main()
