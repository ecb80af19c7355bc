"""`plan ladder`: how far one knob goes before a job runs out of memory."""

from __future__ import annotations

from typing import Annotated

import typer

from app.flags.job import SEARCH_ONLY, takes_job
from app.flags.shared import AsJson, OutputFile, OutputFormat
from planner.plan import Plan
from planner.questions.flags import Flags


@takes_job(*SEARCH_ONLY, "tokens", "deadline", "budget")
def command(
    flags: Flags,
    *,
    knob: Annotated[
        str,
        typer.Option(
            "--knob",
            help="What is turned: length, microbatch, rank (of --adapter), or gpus (fewer of them).",
            metavar="NAME",
        ),
    ] = "length",
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Turn one knob until the layout no longer fits, and name the switch that takes it furthest.

    The layout is held as `plan estimate` holds it; where none is named, the best one is turned, too. Each
    rung doubles, or halves the GPUs; between the last that fits and the next the largest value is sought.
    """
    from app.actions.plan import given_plan, searched_plan
    from app.analysis.ladder import ladder_answer
    from app.reports.answer import check_destination, emit
    from app.terminal.progress import waiting
    from planner.analysis.ladder import KNOBS, climbed, names_layout, with_best
    from planner.questions.training import understand
    from planner.search.infeasible import Infeasible
    from topology.base.names import resolve

    def priced(each: Flags) -> Plan:
        """As `plan estimate` prices it."""
        return given_plan(understand(each).request)

    check_destination(wanted=output_format, as_json=as_json, output=output)
    turned = next(each for each in KNOBS if each == resolve(knob, KNOBS, "knob"))
    model = understand(flags).request.model.name
    with waiting(f"turning {turned} of {model}"):
        ladder = climbed(flags, turned, priced)
    if not names_layout(flags) and ladder.refused == "":
        best = searched_plan(understand(flags).request)
        ladder = ladder if isinstance(best, Infeasible) else with_best(ladder, flags, best, priced)
    return emit(ladder_answer(ladder, model), wanted=output_format, as_json=as_json, output=output)
