"""`plan bench`: measure this machine, so that later estimates use its own numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AcceptChanges, AsJson, ClusterName, GpuName, OutputFile, OutputFormat


def command(
    *,
    device: Annotated[str, typer.Option(help="What is measured.", metavar="auto|cuda|cpu")] = "auto",
    ranks: Annotated[
        int, typer.Option(min=1, help="GPUs, or CPU ranks, between which collectives are measured.")
    ] = 2,
    check: Annotated[
        Path | None,
        typer.Option("--check", help="Measure this plan's own shapes and compare.", metavar="PLAN.json"),
    ] = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Measure the links between the nodes of this allocation.")
    ] = False,
    interface: Annotated[
        str | None, typer.Option(help="With --nodes: the network that only its nodes reach.", metavar="NAME")
    ] = None,
    meet: Annotated[
        Path | None,
        typer.Option(help="With --nodes: an empty folder that all nodes share.", metavar="FOLDER"),
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

    --nodes is started once for every rank, by srun or torchrun. Every pair of hosts and the collectives of
    every level of the --cluster are measured. Slow pairs are named, and the cluster file gets what its
    links have.
    """
    from app.actions.bench import check_plan, measure_machine
    from app.actions.bench_nodes import measure_nodes
    from app.errors import ANSWERED
    from app.extras import require_torch
    from app.reports.answer import check_destination, emit, note
    from app.reports.bench import bench_answer, check_answer, nodes_answer
    from app.requests.plan_file import read_plan

    check_destination(wanted=output_format, as_json=as_json, output=output)
    plan = None if check is None else read_plan(check, accept_changes=accept_changes, say=note)
    require_torch("plan bench")
    if nodes:
        links = measure_nodes(device=device, cluster=cluster, interface=interface, meet=meet, save=save)
        if links is None:  # another rank answers
            return ANSWERED
        for text in links.notes:
            note(text)
        answer = nodes_answer(links)
    elif plan is not None:
        answer = check_answer(check_plan(plan, device=device, ranks=ranks))
    else:
        bench_result = measure_machine(device=device, ranks=ranks, gpu=gpu, cluster=cluster, save=save)
        for text in bench_result.notes:
            note(text)
        answer = bench_answer(bench_result)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
