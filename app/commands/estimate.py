"""`plan estimate`: what one given layout costs."""

from __future__ import annotations

from app.flags.job import SEARCH_ONLY, takes_job
from app.flags.shared import AsJson, InputFlag, ModuleFlag, OutputFile, OutputFormat
from planner.questions.flags import Flags


@takes_job(*SEARCH_ONLY)
def command(
    flags: Flags,
    *,
    module: ModuleFlag = None,
    inputs: InputFlag = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Estimate one layout, given by --set layout.tp=8 --set layout.pp=4 … (dp fills the GPUs).

    Stages are split and recomputation is chosen as the planner would, for exactly this layout.
    """
    from app.actions.module import understood_question
    from app.actions.plan import given_plan
    from app.reports.answer import check_destination, emit, note
    from app.reports.plan import estimate_answer

    check_destination(wanted=output_format, as_json=as_json, output=output)
    understood = understood_question(flags, module, inputs)
    answer = estimate_answer(given_plan(understood.request))
    for text in understood.notes:
        note(text)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
