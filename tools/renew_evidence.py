"""Renew everything that measured runs decide beside the constants themselves, in one go.

    python tools/renew_evidence.py ../shared/data/training_runs_v2.csv   # after a change of the cost model
    python tools/renew_evidence.py RUNS.csv --kept                       # with the stored cross-validation

Fits without every group (minutes, `leave_out.py`), widths and counts (`fit_bands.py`), then docs/accuracy.md,
its figures and the README's table (`write_accuracy_page.py`), last the README's plan (`write_transcript.py`).
The figures of the last release stay.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent


def main() -> None:
    """Run them, each in a process of its own: the later ones read what the earlier wrote."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", help="the large table of measured runs")
    parser.add_argument("--kept", action="store_true", help="keep docs/data/cross_validation.csv")
    options = parser.parse_args()
    for tool in ("leave_out", "fit_bands", "write_accuracy_page")[options.kept :]:
        subprocess.run([sys.executable, TOOLS / f"{tool}.py", options.runs], check=True)
    subprocess.run([sys.executable, TOOLS / "write_transcript.py"], check=True)


if __name__ == "__main__":
    main()
