"""`plan sweep`: the best plan over GPUs, lengths, batches, models, stacks, precisions and optimizers."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated

import typer

from app.flags.job import takes_job
from app.flags.shared import AsJson, InputFlag, ModuleFlag, OutputFile, OutputFormat
from planner.questions.flags import Flags
from topology.base.errors import InputError


@takes_job("top", "budget")
def command(
    flags: Flags,
    *,
    module: ModuleFlag = None,
    inputs: InputFlag = None,
    mfu: Annotated[
        str | None,
        typer.Option(
            "--mfu", help="Impose an MFU on days and dollars: 45%, or GPU=45%,GPU=38%.", metavar="SHARE"
        ),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Plan every point of a grid: --gpus 8..256 --gpu h100-sxm,b200-sxm --sequence-length 4k,32k.

    Lists are separated by commas, of --model, --stack, --precision and --set job.optimizer=adamw,muon too;
    8..256 doubles. Points without a plan say why and do not stop the sweep.
    With --deadline every row says whether it is kept; exit code 1 where no point keeps it.
    """
    from app.actions.module import is_traced, understood_modules
    from app.actions.plan import searched_plan
    from app.analysis.sweep import sweep_answer
    from app.reports.answer import check_destination, emit
    from planner.analysis.sweep import imposed, mfu_by_gpu, points_of, run_points, with_efficiency
    from planner.questions.training import understand

    check_destination(wanted=output_format, as_json=as_json, output=output)
    shares = None if mfu is None else mfu_by_gpu(mfu)
    points = points_of(flags)
    _require_end(mfu, flags)
    traced = {is_traced(point, module, inputs) for point in points}
    if len(traced) > 1:
        raise InputError(
            what="a sweep counts tokens or samples, not both",
            cause=f"--model {flags.model}: some are traced, whose tokens nobody knows, others are described",
            fix="sweep over each kind by itself",
        )
    requests = (understand(point).request for point in points)
    if True in traced:
        requests = (
            understood_module.request
            for _, alike in groupby(points, key=lambda point: point.model)
            for understood_module in understood_modules(tuple(alike), module or "", inputs)
        )
    values = with_efficiency(run_points(requests, searched_plan))
    answer = sweep_answer(values if shares is None else tuple(imposed(values, shares)))
    return emit(answer, wanted=output_format, as_json=as_json, output=output)


def _require_end(mfu: str | None, flags: Flags) -> None:
    """Refuse an imposed MFU without tokens: it changes days and dollars alone."""
    if mfu is not None and flags.tokens is None:
        raise InputError(
            what="an imposed MFU needs an end",
            cause=f"--mfu {mfu} without --tokens: what it changes are days and dollars",
            fix="add for example --tokens 260B",
        )
