"""Plans on disk: read what `plan --json` wrote, and believe none of it before it is verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from planner.plan import Plan, from_json
from topology.base.decode import read_text
from topology.base.errors import InputError, shown


def read_plan(
    path: Path, *, accept_changes: bool = False, say: Callable[[str], None] = lambda _: None
) -> Plan:
    """Read a plan from a file; see `planner.search.verified.verified` for what is refused."""
    from planner.search.verified import verified

    return verified(read_claims(path), str(path), accept_changes=accept_changes, say=say)


def read_claims(path: Path) -> Plan:
    """Read what a file says, whether it is so or not: for `plan verify`, which says what is not."""
    return from_json(read_text(path), str(path))


def require_described(plan: Plan, command: str) -> Plan:
    """Refuse the plan of a traced module where its layers would have to be named or built."""
    if plan.request.model.module is None:
        return plan
    raise InputError(
        what=f"{command} does not take the plan of a traced module",
        cause=f"{shown(plan.request.model.name)} is known by its operations, not by its weights and layers",
        fix="plan explain, diff and verify take it; set its degrees in your own training script",
    )
