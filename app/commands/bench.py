"""`plan bench`: measure this machine, so that later estimates use its own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AcceptChanges, AsJson, ClusterName, GpuName, OutputFile, OutputFormat


def command(
    *,
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    ranks: Annotated[
        int, typer.Option(min=1, help="GPUs, or CPU ranks, between which collectives are measured.")
    ] = 2,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Measure this plan's own shapes and compare.", metavar="PLAN.json"),
    ] = None,
    gpu: GpuName = None,
    cluster: ClusterName = None,
    save: Annotated[bool, typer.Option(help="Keep the measurements for later estimates.")] = True,
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Measure matrix products, attention, memory and every collective on whatever is here.

    Measurements are saved under the user's data directory with the cluster's fingerprint; estimates for that
    cluster then use them and say so. On a CPU a cluster file is saved beside them: plan for it with --cluster
    to predict a gloo run. Needs the extra `run` (torch).
    """
    from app.actions.bench import check_plan, measure
    from app.extras import require_torch
    from app.reports.answer import check_destination, emit, note
    from app.reports.bench import bench_answer, check_answer
    from app.requests.plan_file import read_plan

    check_destination(wanted=output_format, as_json=as_json, output=output)
    plan = None if check is None else read_plan(check, accept_changes=accept_changes, say=note)
    require_torch("plan bench")
    if plan is not None:
        answer = check_answer(check_plan(plan, device=device, ranks=ranks))
    else:
        found = measure(device=device, ranks=ranks, gpu=gpu, cluster=cluster, save=save)
        for text in found.notes:
            note(text)
        answer = bench_answer(found)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
