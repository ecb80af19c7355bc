"""Count the measured serving runs behind a deployment: of its kind, of its model, of its tensor ranks.

    python tools/count_serving_runs.py ../shared/data/serving_runs_v2.csv

writes costmodel/data/serving_runs_counted.csv, which `costmodel.serving.bands` reads.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_serving import Row

from costmodel.accuracy.serving import fabric
from costmodel.accuracy.serving_limits import refuse_faster_than_machine, refuse_unstated_machines
from costmodel.accuracy.serving_runs import ServingRun, read_serving_run
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.runs.cells import UnsupportedRunError
from costmodel.serving.bands import RUNS_FILE, CountedRuns
from costmodel.serving.engine import serving_stack
from topology.base.errors import InputError


def evidence(rows: Iterable[Row]) -> Iterator[ServingRun]:
    """Rows that are trusted, can be read and contradict no machine."""
    cal = load_calibration()
    for row in rows:
        try:
            run = read_serving_run(row, 0)
            refuse_faster_than_machine(cal, run)
            refuse_unstated_machines(row, run, fabric(run.gpu))
        except (UnsupportedRunError, InputError):
            continue
        yield run


def counted(rows: Sequence[Row]) -> list[CountedRuns]:
    """Rows that are evidence by what a plan asks of them, of two pools that of decode."""
    found = Counter[tuple[str, str, str, bool, str, int]]()
    for run in evidence(rows):
        layout = run.decode.layout
        engine = serving_stack(run.engine).name
        found[run.mode, engine, run.gpu, layout.attention_dp > 1, model(run.model).name, layout.tp] += 1
    return [
        CountedRuns(mode=mode, engine=engine, gpu=gpu, attention_dp=shared, model=name, tp=tp, runs=count)
        for (mode, engine, gpu, shared, name, tp), count in sorted(found.items())
    ]


def main(path: str) -> None:
    """Write the table."""
    with Path(path).open(encoding="utf-8", newline="") as file:
        rows = counted(list(csv.DictReader(file)))
    with RUNS_FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(CountedRuns.__slots__)
        for row in rows:
            values = [getattr(row, name) for name in CountedRuns.__slots__]
            writer.writerow("yes" if v is True else "no" if v is False else v for v in values)


if __name__ == "__main__":
    main(sys.argv[1])
