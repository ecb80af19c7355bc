"""Print the lowest versions that the wheel admits, as constraints: `python tools/lowest_versions.py app`.

`make lowest` runs the suite on them; names after the command are extras that are wanted too.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def lowest(extras: Sequence[str]) -> Iterator[str]:
    """Each dependency at its lower bound.

    >>> next(lowest([])).partition("==")[0]
    'numpy'
    """
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    wanted = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    for requirement in (line for lines in wanted for line in lines):
        yield requirement.replace(">=", "==")


if __name__ == "__main__":
    print("\n".join(lowest(sys.argv[1:])))
