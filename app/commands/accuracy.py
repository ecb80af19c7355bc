"""`plan accuracy`: what the cost model predicts for measured runs, and how far off it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AsJson, OutputFile, OutputFormat


def command(
    *,
    runs: Annotated[
        Path | None,
        typer.Argument(
            help="Measured runs, in the columns of training_runs_v2.csv or serving_runs.csv; "
            "the published runs that come with meshplan by default.",
            metavar="[RUNS.csv]",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", help="Columns to group by: source, gpu, framework …", metavar="COLUMNS"),
    ] = None,
    worst: Annotated[
        int | None, typer.Option("--worst", help="How many of the worst rows to list.", metavar="N", min=0)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw predicted against measured (.svg or .html).", metavar="FILE"),
    ] = None,
    constants: Annotated[
        bool, typer.Option("--constants", help="List every fitted constant with its meaning.")
    ] = False,
    anchor: Annotated[
        str | None,
        typer.Option(
            "--anchor",
            help="Correct the level of your stack by runs of your own, or by an anchor kept earlier.",
            metavar="RUNS.csv|NAME",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Keep the anchor under this name for plan --anchor.", metavar="NAME"),
    ] = None,
    trust_paths: Annotated[
        bool,
        typer.Option(
            "--trust-paths", help="Read the files that the table's cluster column names: the table is yours."
        ),
    ] = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Predict measured runs and print the errors, row by row in --json.

    Rows that cannot be expressed come back as unsupported with the reason; no row stops the others.
    """
    from app.actions.accuracy import AccuracyQuestion, predicted_answer
    from app.actions.accuracy_plot import check_plot
    from app.reports.answer import check_destination, emit

    check_destination(wanted=output_format, as_json=as_json, output=output)
    check_plot(plot)
    question = AccuracyQuestion(
        runs=runs,
        by=by,
        worst=worst,
        plot=plot,
        constants=constants,
        anchor=anchor,
        name=name,
        trust_paths=trust_paths,
    )
    return emit(predicted_answer(question), wanted=output_format, as_json=as_json, output=output)
