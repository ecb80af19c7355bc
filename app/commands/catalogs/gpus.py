"""`plan gpus`: the GPUs and machines that can be planned for, with peaks, memory and dated prices."""

from __future__ import annotations

from typing import Annotated

import typer

from app.flags.completion import gpu_completion
from app.flags.shared import AsJson, OutputFile, OutputFormat


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="One GPU, as people or drivers name it.", autocompletion=gpu_completion
        ),
    ] = None,
    *,
    machines: Annotated[
        bool, typer.Option("--machines", help="List machines and instance types for --cluster instead.")
    ] = False,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """List the GPUs of the catalog; every fact with its source and date in --json."""
    from app.reports.answer import emit
    from app.reports.topology import gpus_answer, machines_answer
    from topology import catalog
    from topology.base.decode import unstructure
    from topology.base.errors import InputError
    from topology.hardware import datasheets

    if machines and name is not None:
        raise InputError(
            what=f"{name} and --machines are two questions",
            cause="--machines lists every machine of the catalog",
            fix=f"write plan gpus {name}, or plan gpus --machines",
        )
    if machines:
        rows = [
            unstructure(m) | {"usd_per_gpu_hour": m.usd_per_gpu_hour} for m in datasheets.machines().values()
        ]
        answer = machines_answer(rows)
    else:
        gpus = catalog.gpus()
        if name is not None:
            gpus = {each: gpus[each] for each in _named(name)}
        answer = gpus_answer(gpus, {name: catalog.price(name) for name in gpus})
    return emit(answer, wanted=output_format, as_json=as_json, output=output)


def _named(name: str) -> tuple[str, ...]:
    """The GPU of a name, or all that it may mean."""
    from topology import catalog
    from topology.base.errors import AmbiguousNameError

    try:
        return (catalog.gpu_name(name),)
    except AmbiguousNameError as several:
        return several.suggestions
