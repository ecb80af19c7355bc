"""How a question without an answer is told to programs: one document, whatever the command."""

from __future__ import annotations

from typing import Any, Literal

from app.errors import DefectError
from planner.search.infeasible import Infeasible
from planner.serving.plan import ServingInfeasible, keys_of_refusal
from topology.base.decode import unstructure
from topology.base.errors import InputError, NoFeasiblePlanError, PlanChangedError

Status = Literal["infeasible", "changed", "refused", "defect"]


def refusal_document(error: InputError, exit_code: int) -> dict[str, Any]:
    """The three lines of an error, its exit code, and the no of a search as data.

    Args:
        error: What ended the command.
        exit_code: What it ends with.

    Returns:
        `status` is ``infeasible`` where nothing answers the question, ``changed`` where a saved plan has
        other numbers here, ``refused`` of other input, ``defect`` of our own. `violations` are the rules in
        the way, `rejected` counts layouts by rule, `nearest` has the changes that give a plan. Where
        servers lack memory, the keys of one that starts tell what the one with the most room holds.
    """
    answer = getattr(error, "answer", None)
    none = answer if isinstance(answer, Infeasible) else None
    violations = none.violations if none else answer if isinstance(answer, tuple) else ()
    document = {
        "status": _status(error),
        "error": error.what,
        "cause": error.cause,
        "help": error.fix,
        "exit_code": exit_code,
        "violations": unstructure(violations),
        "rejected": dict(none.rejected) if none else {},
        "nearest": unstructure(none.nearest) if none else [],
    }
    if isinstance(answer, ServingInfeasible) and answer.held is not None:
        return {**keys_of_refusal(answer, answer.held), **document}
    return document


def _status(error: InputError) -> Status:
    """What kind of no it is."""
    if isinstance(error, NoFeasiblePlanError):
        return "infeasible"
    if isinstance(error, PlanChangedError):
        return "changed"
    return "defect" if isinstance(error, DefectError) else "refused"
