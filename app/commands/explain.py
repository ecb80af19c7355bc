"""`plan explain`: what binds a plan, why the runner-up lost, what would help; or why there is no plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.job import takes_job
from app.flags.shared import AcceptChanges, AsJson, InputFlag, ModuleFlag, OutputFile, OutputFormat
from planner.questions.flags import Flags
from topology.base.errors import InputError


@takes_job()
def command(
    flags: Flags,
    plan: Annotated[Path | None, typer.Argument(metavar="[PLAN.json]", help="A plan to explain.")] = None,
    *,
    module: ModuleFlag = None,
    inputs: InputFlag = None,
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Explain a plan from a file, or the plan that the flags ask for.

    Says which memory and links bind, why the runner-up lost and by how much, and which single change would
    help most. Without any possible plan: the rules in the way, and the nearest change that gives one.
    """
    from app.actions.module import understood_question
    from app.actions.plan import searched_plan
    from app.reports.answer import check_destination, emit, note
    from app.reports.explain import explain_answer, infeasible_answer
    from app.requests.plan_file import read_plan
    from planner.plan import Plan

    check_destination(wanted=output_format, as_json=as_json, output=output)
    if plan is not None:
        if flags != Flags() or module or inputs:
            raise InputError(
                what="both a plan and a question were given",
                cause=f"{plan}, and flags that ask for another",
                fix="give the plan alone, or leave it out to plan first",
            )
        wanted = read_plan(plan, accept_changes=accept_changes, say=note)
        return emit(explain_answer(wanted), wanted=output_format, as_json=as_json, output=output)
    understood = understood_question(flags, module, inputs)
    result = searched_plan(understood.request)
    answer = explain_answer(result) if isinstance(result, Plan) else infeasible_answer(result)
    for text in understood.notes:
        note(text)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
