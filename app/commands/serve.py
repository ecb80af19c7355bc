"""`plan serve`: the cheapest fleet that serves a model within latency limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.flags.sections import OUTPUT, QUESTION, further
from app.flags.serve import takes_load
from app.flags.shared import AsJson, Full, OutputFormat
from planner.questions.flags import ServeFlags
from topology.base.counts import is_numeral

if TYPE_CHECKING:
    from app.reports.answer import Answer
    from planner.analysis.serving.autoscale import ScalingPolicy
    from planner.deployment.autoscale import Scaling
    from planner.questions.serving.understand import Asked
    from planner.serving.plan import ServingPlan


@takes_load()
def command(
    flags: ServeFlags,
    *,
    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscale",
            help="Follow the trace with replicas over time; beside --save-dir, HPA and KEDA files.",
            rich_help_panel=further(OUTPUT),
        ),
    ] = False,
    start_up: Annotated[
        str | None,
        typer.Option(
            "--start-up",
            help="Time until a new replica serves, for --autoscale. Default: 5min.",
            metavar="TIME",
            rich_help_panel=further(OUTPUT),
        ),
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            help="Write the Kubernetes manifest here.",
            metavar="FILE",
            rich_help_panel=further(OUTPUT),
        ),
    ] = None,
    save_dir: Annotated[
        Path | None,
        typer.Option(
            "--save-dir",
            help="Write a folder that starts the fleet, and a load test.",
            metavar="DIR",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    deploy: Annotated[
        str | None,
        typer.Option(
            "--deploy",
            help="What --save-dir holds, with commas: scripts, kubernetes, lws, dynamo, llm-d, triton. "
            "Default: scripts,kubernetes.",
            metavar="FORMS",
            rich_help_panel=further(OUTPUT),
        ),
    ] = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Start the fleet's scripts with stand-ins for the engine, and measure its load.",
            rich_help_panel=further(OUTPUT),
        ),
    ] = False,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="What each limit costs: the answer with it relaxed.",
            rich_help_panel=further(OUTPUT),
        ),
    ] = False,
    pareto: Annotated[
        bool,
        typer.Option(
            "--pareto",
            help="Tokens/s/GPU against tokens/s/user, as a frontier of replicas.",
            rich_help_panel=further(OUTPUT),
        ),
    ] = False,
    services: Annotated[
        Path | None,
        typer.Option(
            "--services",
            help="Plan one fleet for the services of a TOML file.",
            metavar="FILE",
            rich_help_panel=further(OUTPUT),
        ),
    ] = None,
    predict: Annotated[
        list[Path] | None,
        typer.Option(
            "--predict",
            help="What a given server does under the load: its scripts (repeat), or a plan of --json.",
            metavar="FILE",
            rich_help_panel=QUESTION,
        ),
    ] = None,
    full: Full = False,
    as_json: AsJson = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Mean output tokens (a number), or a file to write to.",
            metavar="N|FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    output_format: OutputFormat = None,
) -> int:
    """Plan serving: how many GPUs, which layout and precision, for a load and its latency limits.

    Modes, precisions and GPU kinds that are not named are compared. Without --gpus the smallest and the
    cheapest fleet are found. A number behind --output is the tokens of an output; anything else is the file
    to write to.
    """
    from app.reports.answer import check_destination, emit, note
    from planner.questions.serving.understand import understand_serving

    tokens, destination = split_output(output)
    policy = _policy(start_up) if autoscale or start_up is None else _refuse_start_up(start_up)
    if autoscale and (sensitivity or pareto):
        _refuse_two_answers("--sensitivity" if sensitivity else "--pareto")
    if flags.router or flags.kv_offload:
        _refuse_beside_caches({"--autoscale": autoscale, "--rehearse": rehearse, "--pareto": pareto})
    forms = _forms(deploy, save_dir) if deploy is not None else None
    check_destination(wanted=output_format, as_json=as_json, output=destination)
    flags = replace(flags, output_tokens=tokens or flags.output_tokens)
    if predict or services is not None:
        others = any(map(bool, (autoscale, rehearse, sensitivity, pareto, manifest, save_dir)))
        answer = _of_files(predict or (), services, flags, others=others)
        return emit(answer, wanted=output_format, as_json=as_json, output=destination)
    if autoscale and flags.mode is None:
        flags = replace(flags, mode="aggregated")
    asked = understand_serving(flags)
    follow = autoscale and (asked.trace is not None or save_dir is None)
    if follow:
        from app.reports.serving.autoscale import day_of

        day_of(asked.trace)
    plan = with_trade_offs(asked, sensitivity=sensitivity, pareto=pareto)
    answer = fleet_answer(plan, asked, policy=policy if follow else None)
    if rehearse:
        answer = with_rehearsal(answer, plan, asked)
    for text in asked.notes:
        note(text)
    if asked.trace is not None:
        from planner.analysis.serving.prefix_hits import hits_in_words

        if hits := hits_in_words(plan, asked.trace):
            note(hits)
    if manifest is not None:
        write_manifest(plan, manifest)
    if save_dir is not None:
        scaling = _scaling(plan, asked, policy) if autoscale else None
        write_deployment(plan, save_dir, scaling=scaling, forms=forms)
    whole = full or any((follow, rehearse, sensitivity, pareto))  # their tables were asked for
    return emit(answer, wanted=output_format, as_json=as_json, output=destination, full=whole)


def _refuse_beside_caches(asked: Mapping[str, bool]) -> None:
    """Refuse what follows no caches beside a question that counts them."""
    from topology.base.errors import InputError

    others = [flag for flag, given in asked.items() if given]
    if others:
        raise InputError(
            what="caches are counted of a fleet under its trace alone",
            cause=f"{', '.join(others)} beside --router or --kv-offload sends requests that name no blocks",
            fix=f"leave {' and '.join(others)} out, or ask without --router and --kv-offload",
        )


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
    from app.terminal.progress import waiting, without_watch
    from planner.analysis.serving.fleets import find_fleet
    from planner.analysis.serving.processes import by_processes

    if sensitivity:
        from planner.analysis.serving.limit_steps import check_limits, with_sensitivity

        check_limits(asked)
    if pareto:
        from planner.analysis.serving.frontier import check_outputs, with_frontier

        check_outputs(asked)
    steps = ["searching"]
    boards = len(asked.requests)
    with by_processes(boards, forking=without_watch) as each, waiting(lambda: steps[-1]):
        plan = find_fleet(asked, tell=steps.append, each=each)
        plan = with_sensitivity(asked, plan) if sensitivity else plan
        return with_frontier(asked, plan) if pareto else plan


def serve_several(path: Path, flags: ServeFlags, *, alone: bool) -> Answer:
    """The fleet of several services; `alone` says that something was asked that is told of one."""
    from app.reports.serving.services import services_answer
    from app.terminal.progress import waiting, without_watch
    from planner.analysis.serving.processes import by_processes
    from planner.analysis.serving.services import find_shared
    from planner.questions.serving.services import read_services
    from topology.base.errors import InputError

    if alone:
        raise InputError(
            what="that is told of one service",
            cause=f"--services {path}, and --autoscale, --rehearse, --sensitivity, --pareto or files of one",
            fix="plan the service alone with it; `--json` has every service's whole plan",
        )
    services = read_services(path, flags)
    steps = ["searching"]
    boards = len(services[0].asked.requests)
    with by_processes(boards, forking=without_watch) as each, waiting(lambda: steps[-1]):
        return services_answer(find_shared(services, tell=steps.append, each=each))


_OF_A_PREDICTION = {
    "model", "gpu", "cluster", "rate", "concurrency", "trace", "input_tokens", "output_tokens", "input_p99",
    "output_p99", "ttft", "tpot", "end_to_end", "percentile", "cached", "burstiness",
}  # fmt: skip
"""What may be given beside files that start a server: what they do not say, and its load."""


def _of_files(predict: Sequence[Path], services: Path | None, flags: ServeFlags, *, others: bool) -> Answer:
    """What given servers do, or the fleet of several services; `others` are asked of one fleet alone."""
    if predict:
        return prediction(predict, flags, alone=not others and services is None)
    if services is None:
        raise RuntimeError("files of servers or of services are given")
    return serve_several(services, flags, alone=others)


def prediction(paths: Sequence[Path], flags: ServeFlags, *, alone: bool) -> Answer:
    """What the server of these files, or of a plan, does under a load."""
    from app.reports.audit.server import server_answer
    from planner.audit.serving.texts import predicted_texts
    from planner.questions.flags import FLAG_OF_FIELD
    from planner.serving.plan import is_serving_plan
    from topology.base.errors import InputError
    from topology.base.files import read_text

    changed = {name for name, value in asdict(flags).items() if value} - _OF_A_PREDICTION
    if changed or not alone:
        words = ", ".join(FLAG_OF_FIELD.get(name, f"--{name}") for name in sorted(changed))
        raise InputError(
            what="a given server is predicted as it is started",
            cause=f"{words or 'another answer'} beside --predict would change it, or asks for another answer",
            fix="leave it out, or change the files that start the server",
        )
    texts = {str(path): read_text(path) for path in paths}
    of_plan = len(texts) == 1 and is_serving_plan(next(iter(texts.values())))
    if not (of_plan or flags.rate or flags.concurrency or flags.trace):
        raise InputError(
            what="no load to predict under",
            cause="none of --rate, --concurrency and --trace was given",
            fix="give one, such as --trace requests.jsonl, or --concurrency 32 --input 1000 --output 200",
        )
    return server_answer(predicted_texts(texts, flags))


def _policy(start_up: str | None) -> ScalingPolicy:
    """How a fleet is scaled: an idle replica is kept for twice as long as it would take to have it back."""
    from planner.analysis.serving.autoscale import ScalingPolicy
    from planner.questions.serving.understand import parse_time

    start_up_s = parse_time(start_up, "--start-up") or ScalingPolicy().start_up_s
    return ScalingPolicy(start_up_s=start_up_s, cool_down_s=2 * start_up_s)


def _refuse_start_up(start_up: str) -> ScalingPolicy:
    """Refuse the time of a replica's start where none is started."""
    from topology.base.errors import InputError

    raise InputError(
        what="--start-up changes nothing here",
        cause=f"--start-up {start_up} without --autoscale: the fleet starts once",
        fix="add --autoscale, or leave out --start-up",
    )


def _scaling(plan: ServingPlan, asked: Asked, policy: ScalingPolicy) -> Scaling:
    """By what the fleet's pools are scaled, up to the peak of a trace where there is one."""
    from app.actions.rehearse import hierarchy_of
    from app.reports.serving.autoscale import peak_rate
    from costmodel.kernels.tables import load_calibration
    from planner.analysis.serving.scaling import scaling_of

    peak = peak_rate(asked.trace) if asked.trace is not None else None
    hierarchy = hierarchy_of(plan, asked.requests)
    return scaling_of(load_calibration(), plan, hierarchy, policy=policy, peak_per_s=peak)


def fleet_answer(plan: ServingPlan, asked: Asked, *, policy: ScalingPolicy | None = None) -> Answer:
    """The fleet as an answer, or the fleet followed through the trace by a policy."""
    if policy is not None:
        from app.reports.serving.autoscale import autoscale_answer

        return autoscale_answer(plan, asked.trace, policy)
    from app.reports.serving.plan import serving_answer

    return serving_answer(plan)


def with_rehearsal(answer: Answer, plan: ServingPlan, asked: Asked) -> Answer:
    """The answer, and what its deployment did when it was started without GPUs."""
    from app.actions.rehearse import hierarchy_of, rehearsal_table, rehearse
    from app.reports.answer import note

    rehearsal = rehearse(plan, hierarchy_of(plan, asked.requests))
    note(f"rehearsed: furthest from the simulation {rehearsal.furthest()}")
    return replace(answer, sections=(*answer.sections, rehearsal_table(rehearsal)))


def write_manifest(plan: ServingPlan, path: Path) -> None:
    """Write the Kubernetes manifest of a fleet."""
    from app.reports.answer import write_file

    write_file(path, (plan.commands or {})["kubernetes"])


def _forms(deploy: str, save_dir: Path | None) -> tuple[str, ...]:
    """The forms that the folder holds."""
    from planner.deployment.forms import forms_of
    from topology.base.errors import InputError

    if save_dir is None:
        raise InputError(
            what="--deploy has nowhere to write to",
            cause=f"--deploy {deploy} without --save-dir",
            fix=f"add --save-dir DIR, such as --save-dir fleet --deploy {deploy}",
        )
    return forms_of(deploy)


def write_deployment(
    plan: ServingPlan, path: Path, *, scaling: Scaling | None = None, forms: Sequence[str] | None = None
) -> None:
    """Write the folder that starts a fleet, and what scales it."""
    from app.reports.answer import write_folder
    from planner.deployment.folder import folder

    write_folder(path, folder(plan, scaling, forms))


def split_output(text: str | None) -> tuple[str | None, Path | None]:
    """Tell the tokens of an output from a file to write to.

    `--output 500` is a number, `--output plan.json` a file.

    >>> split_output("500"), split_output(None)
    (('500', None), (None, None))
    """
    if text is None:
        return None, None
    return (text, None) if is_numeral(text) else (None, Path(text))
