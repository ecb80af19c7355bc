"""What `plan audit` reads from files whose layout an expert has read: fields right, wrong and missing.

    python benchmarks/audit.py FOLDER

FOLDER holds ``expected.csv`` and the files it names; rows whose file is not there are passed over.
"""

import sys
import time
from collections import Counter
from pathlib import Path

from tests.unit.planner.audit.judge import judged, prepared, rows_of


def main(folder: Path) -> None:
    prepared()
    started = time.perf_counter()
    cells = list(judged(folder, rows_of(folder)))
    seconds = time.perf_counter() - started
    count = Counter(cell.verdict for cell in cells)
    stated = count["right"] + count["wrong"] + count["missing"]
    for cell in cells:
        if cell.verdict in ("wrong", "missing", "extra"):
            warned = "" if cell.warned or cell.verdict != "wrong" else "  WITHOUT A WARNING"
            print(
                f"{cell.verdict:8} {cell.file} {cell.column}: "
                f"expected {cell.expected!r}, read {cell.found!r}{warned}"
            )
    print(
        f"{len(rows_of(folder))} rows, {stated} stated fields: {count['right']} right "
        f"({100 * count['right'] / max(1, stated):.1f} %), {count['wrong']} wrong, "
        f"{count['missing']} missing; "
        f"{count['extra']} read that the expert leaves empty; {seconds:.1f} s"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
