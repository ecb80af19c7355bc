"""`plan topology`: a cluster's levels, uplinks and bisection, and what each parallel axis would get."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import (
    AsJson,
    ClusterName,
    DegradedHosts,
    GpuName,
    Gpus,
    OutputFile,
    OutputFormat,
    WithoutHosts,
)


def command(
    named: Annotated[
        list[str] | None,
        typer.Argument(help="As --cluster takes it: a name, a TOML file, or dumps.", metavar="[NAME|FILE]…"),
    ] = None,
    *,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    gpu: GpuName = None,
    without: WithoutHosts = None,
    degraded: DegradedHosts = None,
    layout: Annotated[
        str | None,
        typer.Option("--layout", help="Degrees, as tp=8,pp=4 (dp fills the rest).", metavar="AXIS=N,…"),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", help="Axes from slowest to fastest, as pp,dp,cp,tp.", metavar="AXES"),
    ] = None,
    discover: Annotated[
        list[Path] | None,
        typer.Option(
            "--discover",
            help="What tells the allocation: Slurm, Kubernetes, clouds, fabric or node dumps (repeat).",
            metavar="FILE",
        ),
    ] = None,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="Collect what this machine and its job can tell, and say what is missing."
        ),
    ] = False,
    toml: Annotated[
        Path | None,
        typer.Option("--toml", help="Also write the cluster as a TOML file to edit.", metavar="FILE"),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Show a cluster as the planner sees it, derived from its graph.

    With --layout and --order: the bandwidth that the groups of every axis get when all of them talk at once.
    """
    from app.reports.answer import emit, write_file
    from app.reports.topology import parse_layout, topology_answer
    from app.requests.cluster import cluster_of_words, find_cluster, less
    from topology.cluster_file import to_toml

    cluster = cluster_of_words(named or (), cluster)
    result = find_cluster(cluster=cluster, gpus=gpus, gpu=gpu, dumps=tuple(discover or ()), here=here)
    result = less(result, without, degraded)
    chosen = parse_layout(layout, order, result.cluster.hierarchy)
    if toml is not None:
        write_file(toml, to_toml(result.cluster.spec))
    answer = topology_answer(result.cluster, chosen, result.notes, result.figures)
    return emit(answer, wanted=output_format, as_json=as_json, output=output)
