"""`plan watch`: how a run stands against its plan."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AcceptChanges, AsJson, OutputFile, OutputFormat
from topology.base.errors import InputError


def command(
    *,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUN_DIR|LOG…", help="The folder of plan run, or logs, oldest first."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Its plan, with --tokens; that of the folder.", metavar="FILE"),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events",
            help="What the scheduler says: sacct -j JOB -D -X -P --format=JobID,State,Start,End, "
            "or kubectl get events -o json.",
            metavar="FILE",
        ),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(
            "--prometheus",
            help="Stay, and answer GET /metrics here with how the run stands; loopback without a host.",
            metavar="[HOST]:PORT",
        ),
    ] = None,
    grafana: Annotated[
        bool, typer.Option("--grafana", help="Print a Grafana dashboard of those metrics, as JSON, and end.")
    ] = False,
    accept_changes: AcceptChanges = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Hold a running job against its plan: useful share so far, days left with their band, what is off.

    Reads the metrics of plan run and the step lines of any engine that plan audit reads. The log of a server
    (vLLM, SGLang, TensorRT-LLM), with its script, is held against what is predicted under the load it prints.
    """
    if grafana:
        from app.commands.watch.metrics import grafana as dashboard

        sys.stdout.write(dashboard())
        return 0
    if not runs:
        raise InputError(
            what="there is nothing to watch",
            cause="no folder of plan run and no log was named",
            fix="write plan watch RUN_DIR, or plan watch train.log --plan PLAN.json",
        )
    from app.actions.runs.scrape import host_and_port, scraped
    from app.commands.watch.answer import watch_answer
    from app.commands.watch.metrics import Scrapes
    from app.commands.watch.read import growing_files, plan_of_run, watched_runs
    from app.reports.answer import check_destination, emit, note
    from app.requests.plan_file import read_plan
    from app.terminal.progress import lives_on

    check_destination(wanted=output_format, as_json=as_json, output=output)
    if plan is None and prometheus is None and events is None:
        from app.commands.watch.server import server_watch_answer, watched_as_server

        if (server := watched_as_server(runs)) is not None:
            return emit(server_watch_answer(server), wanted=output_format, as_json=as_json, output=output)
    read = read_plan(plan or plan_of_run(runs), accept_changes=accept_changes, say=note)
    answer = watch_answer(watched_runs(read, runs, events))
    code = emit(answer, wanted=output_format, as_json=as_json, output=output)
    if prometheus is None:
        return code
    host, _ = host_and_port(prometheus)
    scrapes = Scrapes(growing_files(runs, events), lambda: watched_runs(read, runs, events))
    with scraped(prometheus, scrapes.text) as port:
        note(f"http://{host}:{port}/metrics; Ctrl-C ends")
        lives_on()
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return code
