"""`plan sweep`: the best plan over GPU counts, GPU kinds, sequence lengths and batches."""

from __future__ import annotations

from app.flags.job import takes_job
from app.flags.shared import AsJson, InputFlag, ModuleFlag, OutputFile, OutputFormat
from planner.questions.flags import Flags


@takes_job("top")
def command(
    flags: Flags,
    *,
    module: ModuleFlag = None,
    inputs: InputFlag = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Plan every point of a grid: --gpus 8..256 --gpu h100-sxm,b200-sxm --sequence-length 4k,32k.

    Lists are separated by commas; 8..256 doubles. Points without a plan say why and do not stop the sweep.
    """
    from app.actions.plan import plan_found
    from app.analysis.sweep import sweep_answer
    from app.reports.answer import check_destination, emit
    from planner.analysis.sweep import points_of, run_points, with_efficiency
    from planner.questions.traced import traced_name
    from planner.questions.training import understand

    check_destination(wanted=output_format, as_json=as_json, output=output)
    points = points_of(flags)
    requests = (understand(point).request for point in points)
    if module is not None or inputs is not None or traced_name(flags.model):
        from app.actions.module import understood_modules

        requests = (one.request for one in understood_modules(points, module or "", inputs))
    answer = sweep_answer(with_efficiency(run_points(requests, plan_found)))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
