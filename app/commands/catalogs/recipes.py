"""`plan recipes`: the layout guide, or the rows of one model."""

from __future__ import annotations

from typing import Annotated

import typer

from app.flags.completion import model_completion
from app.flags.sections import QUESTION
from app.flags.shared import AsJson, OutputFile, OutputFormat


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="One model of the guide.",
            autocompletion=model_completion,
        ),
    ] = None,
    *,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", help="One kind of GPU.", metavar="NAME", rich_help_panel=QUESTION),
    ] = None,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Show proven layouts of usual models on usual GPUs, from 8 to 4,096, with their band and date.

    They were searched once, so that nothing is searched now; the last line says how one is asked anew.
    """
    from app.analysis.recipes import recipes, recipes_answer
    from app.reports.answer import emit
    from costmodel.models.catalog import listed_model
    from topology.base.errors import InputError
    from topology.base.names import resolve
    from topology.catalog import gpu_name

    rows = recipes()
    if name is not None:
        known = tuple(dict.fromkeys(row["model"] for row in rows))
        chosen = resolve(name if name in known else listed_model(name).name, known, "model of the guide")
        rows = tuple(row for row in rows if row["model"] == chosen)
    if gpu is not None:
        kind = gpu_name(gpu)
        rows = tuple(row for row in rows if row["gpu"] == kind)
        if not rows:
            kinds = ", ".join(dict.fromkeys(row["gpu"] for row in recipes()))
            raise InputError(
                f"no layouts of {kind} are in the guide", f"it has {kinds}", f"plan --gpu {kind}"
            )
    return emit(recipes_answer(rows), wanted=output_format, as_json=as_json, output=output)
