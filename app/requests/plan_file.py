"""Plans on disk: read what `plan --json` wrote, with the clear messages of any other file."""

from __future__ import annotations

from pathlib import Path

from planner.plan import Plan, from_json
from topology.base.decode import read_text


def read_plan(path: Path) -> Plan:
    """Read a plan from a file."""
    return from_json(read_text(path), str(path))
