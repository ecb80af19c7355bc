"""`plan serve`: the cheapest fleet that serves a model within latency limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.flags.serve import takes_load
from app.flags.shared import AsJson, OutputFormat
from planner.questions.flags import ServeFlags

if TYPE_CHECKING:
    from app.reports.answer import Answer
    from planner.questions.serving import Asked
    from planner.serving.plan import ServingPlan


@takes_load()
def command(
    flags: ServeFlags,
    *,
    autoscale: Annotated[
        bool, typer.Option("--autoscale", help="Follow the trace with replicas over time.")
    ] = False,
    manifest: Annotated[
        Path | None, typer.Option("--manifest", help="Write the Kubernetes manifest here.")
    ] = None,
    save_dir: Annotated[
        Path | None,
        typer.Option(
            "--save-dir",
            help="Write a folder that starts the fleet: scripts, router, load test.",
            metavar="DIR",
        ),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Start the fleet's scripts with stand-ins for the engine, and measure its load.",
        ),
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="What each limit costs: the answer with it relaxed.")
    ] = False,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Tokens/s/GPU against tokens/s/user, as a frontier of replicas.")
    ] = False,
    as_json: AsJson = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="Mean output tokens (a number), or a file to write to.", metavar="N|FILE"
        ),
    ] = None,
    output_format: OutputFormat = None,
) -> int:
    """Plan serving: how many GPUs, which layout and precision, for a load and its latency limits.

    Modes, precisions and GPU kinds that are not named are compared. Without --gpus the smallest and the
    cheapest fleet are found. --output takes the tokens of an output when it is a number, and otherwise the
    file to write to.
    """
    from app.reports.answer import check_destination, emit, note
    from planner.questions.serving import understand_serving

    tokens, destination = split_output(output)
    if autoscale and (sensitivity or pareto):
        _refuse_two_answers("--sensitivity" if sensitivity else "--pareto")
    check_destination(wanted=output_format, as_json=as_json, output=destination)
    flags = replace(flags, output_tokens=tokens or flags.output_tokens)
    if autoscale and flags.mode is None:
        flags = replace(flags, mode="aggregated")
    asked = understand_serving(flags)
    plan = with_trade_offs(asked, sensitivity=sensitivity, pareto=pareto)
    answer = answered(plan, asked, autoscale=autoscale)
    if rehearse:
        answer = with_rehearsal(answer, plan, asked)
    for text in asked.notes:
        note(text)
    if manifest is not None:
        write_manifest(plan, manifest)
    if save_dir is not None:
        write_deployment(plan, save_dir)
    return emit(answer, wanted=output_format, as_json=as_json, output=destination)


def _refuse_two_answers(flag: str) -> None:
    """Refuse what is told of a fleet beside what is told of a day."""
    from topology.base.errors import InputError

    raise InputError(
        what="two answers were asked for",
        cause=f"--autoscale follows a fleet through a day, {flag} compares it with others",
        fix=f"ask for one of them: leave out --autoscale or {flag}",
    )


def with_trade_offs(asked: Asked, *, sensitivity: bool, pareto: bool) -> ServingPlan:
    """The fleet, and what each limit costs and which replicas no other beats, where that was asked."""
    from app.terminal.progress import waiting
    from planner.analysis.fleets import find_fleet

    if sensitivity:
        from planner.analysis.limit_steps import check_limits, with_sensitivity

        check_limits(asked)
    if pareto:
        from planner.analysis.serving_frontier import check_outputs, with_frontier

        check_outputs(asked)
    steps = ["searching"]
    with waiting(lambda: steps[-1]):
        plan = find_fleet(asked, tell=steps.append)
        plan = with_sensitivity(asked, plan) if sensitivity else plan
        return with_frontier(asked, plan) if pareto else plan


def answered(plan: ServingPlan, asked: Asked, *, autoscale: bool) -> Answer:
    """The fleet as an answer, or the fleet followed through the trace."""
    if autoscale:
        from app.reports.autoscale import autoscale_answer

        return autoscale_answer(plan, asked.trace)
    from app.reports.serving import serving_answer

    return serving_answer(plan)


def with_rehearsal(answer: Answer, plan: ServingPlan, asked: Asked) -> Answer:
    """The answer, and what its deployment did when it was started without GPUs."""
    from app.actions.rehearse import hierarchy_of, rehearsal_table, rehearse
    from app.reports.answer import note

    found = rehearse(plan, hierarchy_of(plan, asked.requests))
    note(f"rehearsed: furthest from the simulation {found.furthest()}")
    return replace(answer, sections=(*answer.sections, rehearsal_table(found)))


def write_manifest(plan: ServingPlan, path: Path) -> None:
    """Write the Kubernetes manifest of a fleet."""
    from app.reports.answer import write_file

    write_file(path, (plan.commands or {})["kubernetes"])


def write_deployment(plan: ServingPlan, path: Path) -> None:
    """Write the folder that starts a fleet."""
    from app.reports.answer import write_folder
    from planner.deployment.folder import folder

    write_folder(path, folder(plan))


def split_output(text: str | None) -> tuple[str | None, Path | None]:
    """Tell the tokens of an output from a file to write to.

    `--output 500` is a number, `--output plan.json` a file.

    >>> split_output("500"), split_output(None)
    (('500', None), (None, None))
    """
    if text is None:
        return None, None
    cleaned = text.strip().lower().replace("_", "").replace(",", "").lstrip("-+").removesuffix("k")
    number = cleaned.replace(".", "", 1).isdigit()
    return (text, None) if number else (None, Path(text))
