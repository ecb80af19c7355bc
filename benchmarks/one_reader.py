"""Hold what an audit prices against what the contract of each engine reads, on random launch files.

python benchmarks/one_reader.py [--files 200] [--seed S] [--engine NAME]

Files are those of random plans with a quarter of their words left out, so that the engine's defaults apply;
one is known by engine, seed and number. A row: files priced, those that differ, those refused beside them, as
no default tells what was left out, and seconds. The exit status is 1 if anything differs.
`tests/property/planner/audit` tries 20.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.property.planner.audit.launch_files import ENGINES, launch_files  # noqa: E402 - not installed


def tried(engine: str, files: int, seed: str) -> int:
    """Differences in the files of one engine."""
    start_s, differing, refused, priced = time.monotonic(), 0, 0, 0
    for number, file in enumerate(launch_files(engine, seed)):
        if file.refused:
            refused += 1
            continue
        priced += 1
        if file.differences or file.reading.family.engine != engine:
            differing += 1
            print(f"{engine} {seed} {number}: {'; '.join(file.differences) or file.reading.family.name}")
        if priced == files:
            break
    print(
        f"| {engine} | {files} | {differing} | {refused} | {time.monotonic() - start_s:.0f} s |", flush=True
    )
    return differing


def main() -> int:
    """Try every engine; 1 if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--engine", choices=ENGINES)
    asked = parser.parse_args()
    engines = (asked.engine,) if asked.engine else ENGINES
    return int(sum(tried(engine, asked.files, asked.seed) for engine in engines) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
