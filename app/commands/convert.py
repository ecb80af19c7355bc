"""`plan convert`: what a run has trained, in the form that other tools load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.run import RunKey
from app.flags.shared import AsJson


def command(
    *,
    run: Annotated[Path, typer.Argument(help="The folder of a `plan run`.", metavar="RUN_DIR")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to make.", metavar="DIR")],
    target: Annotated[str, typer.Option("--to", help="hf: config.json, safetensors.", metavar="FORM")] = "hf",
    step: Annotated[
        int | None, typer.Option("--step", min=1, help="Checkpoint to take; by default the newest whole one.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Default: what the run computed in.", metavar="bf16|fp32")
    ] = None,
    run_key: RunKey = None,
    as_json: AsJson = False,
) -> int:
    """Write a checkpoint as Hugging Face publishes models, which transformers and serving engines load.

    No tokenizer is written: a run is given tokens, not text.
    """
    from app.actions.convert import publish_run, published_answer
    from app.reports.answer import emit
    from topology.base.names import resolve

    resolve(target, ("hf",), "form")
    named = None if dtype is None else resolve(dtype, ("bf16", "fp32"), "number format")
    published = publish_run(run, output, step=step, dtype=named, run_key=run_key)
    return emit(published_answer(published), as_json=as_json)
