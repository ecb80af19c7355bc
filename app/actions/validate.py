"""Check what a plan claims on this machine: for `plan validate`, and before an engine is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.reports.answer import Answer
    from planner.plan import Plan


def validated(plan: Plan, command: str) -> Answer:
    """Every claim with its verdict; the exit code is 1 where one does not hold.

    Raises:
        InputError: The plan needs more memory than its GPU has, or `command` lacks torch.
    """
    from app.actions.planned_checks import planned_checks
    from app.extras import require_torch
    from app.reports.answer import note
    from app.reports.validation import validation_answer
    from app.terminal.progress import waiting
    from planner.rules.verdict import require_room

    wanted = require_room(plan)
    require_torch(command)
    with waiting("starting torch"):
        from executor.torch_internals.quiet import quiet_known_warnings
        from executor.validation.validate import validate

        quiet_known_warnings()
    return validation_answer(validate(wanted, planned_checks(wanted, note), note))
