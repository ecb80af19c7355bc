"""Plans on disk: read what `plan --json` wrote, and believe none of it before it is verified."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from planner.plan import Plan, from_json
from topology.base.errors import InputError, shown
from topology.base.files import MAX_FILE_BYTES, read_text

STANDARD_INPUT = "-"
"""In the place of a file, what was piped in."""


def read_plan(
    path: Path, *, accept_changes: bool = False, say: Callable[[str], None] = lambda _: None
) -> Plan:
    """Read a plan from a file; see `planner.search.verified.verified` for what is refused."""
    from planner.search.verified import verified

    return verified(read_claims(path), str(path), accept_changes=accept_changes, say=say)


def read_claims(path: Path) -> Plan:
    """Read what a file says, whether it is so or not: for `plan verify`, which says what is not."""
    if str(path) == STANDARD_INPUT:
        return from_json(_piped(), "standard input")
    return from_json(read_text(path), str(path))


def _piped() -> str:
    """The text that was piped in, no longer than a file may be."""
    content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        cause = f"it has more than the {MAX_FILE_BYTES:,} bytes that a plan can have"
        raise InputError("standard input is too large", cause, "pipe what plan --json prints")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        cause = f"byte {error.start} is not UTF-8"
        raise InputError("standard input is no text", cause, "pipe what plan --json prints") from None


def require_built(plan: Plan, command: str) -> Plan:
    """Refuse the plan of a model that the executor cannot build: a traced module, or one that sees."""
    tower = plan.request.model.tower
    if tower is None:
        return require_described(plan, command)
    from planner.engines.contracts import engines_taking
    from planner.engines.limit import MODULE_ENGINES, TRAINED

    engines = engines_taking(MODULE_ENGINES, plan.problem, plan.layout, plan.request.pins)
    raise InputError(
        what=f"{command} does not take the plan of a model that {tower.verb}",
        cause=f"{shown(plan.request.model.name)} has {tower.named}, the executor builds decoders",
        fix=f"plan with {engines}, {TRAINED}" if engines else "use another model",
    )


def require_described(plan: Plan, command: str) -> Plan:
    """Refuse the plan of a traced module where its layers would have to be named or built."""
    if plan.request.model.module is None:
        return plan
    raise InputError(
        what=f"{command} does not take the plan of a traced module",
        cause=f"{shown(plan.request.model.name)} is known by its operations, not by its weights and layers",
        fix="plan explain, diff and verify take it; set its degrees in your own training script",
    )
