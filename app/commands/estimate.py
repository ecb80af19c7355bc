"""`plan estimate`: what one given layout costs."""

from __future__ import annotations

from app.flags.job import SEARCH_ONLY, takes_job
from app.flags.shared import AsJson, Full, InputFlag, ModuleFlag, OutputFile, OutputFormat
from planner.questions.flags import Flags


@takes_job(*SEARCH_ONLY)
def command(
    flags: Flags,
    *,
    module: ModuleFlag = None,
    inputs: InputFlag = None,
    full: Full = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Estimate one layout, given by --set layout.tp=8 --set layout.pp=4 … (dp fills the GPUs).

    The layout is held as it is. Stages are as the engine fills them, or as --set
    layout.layers_of_stage=20*3-18 says (auto: as the planner would). Nothing is recomputed, unless --set
    layout.recompute=full (every layer), full:N (N layers of every pipeline rank) or full:auto (as few as
    fit).
    """
    from app.actions.module import understood_question
    from app.actions.plan import given_plan, switch_worth_most
    from app.reports.answer import check_destination, emit, note
    from app.reports.plan import estimate_answer

    check_destination(wanted=output_format, as_json=as_json, output=output)
    understood = understood_question(flags, module, inputs)
    plan = given_plan(understood.request)
    answer = estimate_answer(plan, None if as_json else switch_worth_most(plan))
    for text in understood.notes:
        note(text)
    return emit(answer, wanted=output_format, as_json=as_json, output=output, full=full)
