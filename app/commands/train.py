"""`plan train`, which is also plain `plan`: the best way to split a training job over a cluster."""

from __future__ import annotations

from app.flags.job import takes_job
from app.flags.shared import (
    AsJson,
    FailuresFile,
    Full,
    InputFlag,
    MinGpus,
    ModuleFlag,
    OutputFile,
    OutputFormat,
    PhasesFile,
)
from planner.plan import PlanRequest
from planner.questions.flags import Flags


@takes_job(ranges=True)
def command(
    flags: Flags,
    *,
    failures: FailuresFile = None,
    min_gpus: MinGpus = None,
    phases: PhasesFile = None,
    module: ModuleFlag = None,
    inputs: InputFlag = None,
    full: Full = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Plan a training job (the default command).

    Every axis is decided jointly; the plan is proven optimal under the cost model, or states its gap. With
    --tokens the answer is a campaign: when the run is finished after failures, checkpoints and restarts. A
    --phases file splits it: a layout for each stretch, or one for all, whichever finishes first.
    """
    from app.actions.module import is_traced, understood_question
    from app.actions.plan import find_plan, headroom_of, plan_asked, switch_worth_most
    from app.reports.answer import check_destination, emit, note
    from app.reports.plan import plan_answer

    check_destination(wanted=output_format, as_json=as_json, output=output)
    if phases is not None:
        from app.actions.campaign import planned_phases

        return emit(
            planned_phases(phases, flags, failures, min_gpus),
            wanted=output_format,
            as_json=as_json,
            output=output,
        )

    def in_its_world(request: PlanRequest) -> PlanRequest:
        """The request, with what was said of its failures."""
        if failures is None and min_gpus is None and flags.objective != "date":
            return request
        from app.actions.campaign import in_stated_world

        return in_stated_world(request, failures, min_gpus=min_gpus, by_date=flags.objective == "date")

    if is_traced(flags, module, inputs):
        understood = understood_question(flags, module, inputs)
        plan, notes = find_plan(in_its_world(understood.request)), understood.notes
    else:
        plan, notes = plan_asked(flags, in_its_world)
    if plan.request.job.total_tokens is not None or failures is not None or min_gpus is not None:
        from app.actions.campaign import run_to_its_end

        plan = run_to_its_end(plan, failures, min_gpus=min_gpus, by_date=flags.objective == "date")
    answer = plan_answer(
        plan,
        headroom=headroom_of(plan) if full or output is not None else None,
        switch=None if as_json else switch_worth_most(plan),
    )
    for text in notes:
        note(text)
    return emit(answer, wanted=output_format, as_json=as_json, output=output, full=full)
