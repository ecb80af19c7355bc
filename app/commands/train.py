"""`plan train`, which is also plain `plan`: the best way to split a training job over a cluster."""

from __future__ import annotations

from app.job_flags import Flags, takes_job
from app.options import AsJson, OutputFile, OutputFormat


@takes_job()
def command(
    flags: Flags, *, as_json: AsJson = False, output: OutputFile = None, output_format: OutputFormat = None
) -> int:
    """Plan a training job (the default command).

    Every axis is decided jointly; the plan is proven optimal under the cost model, or states its gap.
    """
    from app.output import check_destination, emit, note
    from app.plan_report import plan_answer
    from app.request import understand
    from app.solve import find_plan

    check_destination(wanted=output_format, as_json=as_json, output=output)
    understood = understand(flags)
    answer = plan_answer(find_plan(understood.request))
    for text in understood.notes:
        note(text)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
