"""Carry out `plan convert`: find the run's checkpoint, write it for others, tell what was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from app.reports.answer import Answer


class Publication(NamedTuple):
    """What was written, for a person and for a program."""

    model: str
    reader: str
    text: str
    document: dict[str, Any]


def publish_run(
    run: Path, to: Path, *, step: int | None = None, dtype: str | None = None, run_key: Path | None = None
) -> Publication:
    """Write a run's checkpoint, by default the newest whole one, as Hugging Face publishes models."""
    from executor.torch_internals.lean_start import leave_compiler_out

    leave_compiler_out()  # half a second to import, and triton leaves objects behind; nothing is compiled
    from safetensors import SafetensorError

    from app.requests.plan_file import read_claims
    from executor.training.manifest import read_key
    from executor.training.publish import find_checkpoint, publish, require_empty
    from executor.training.publish_adapter import publish_adapter
    from executor.training.settings import CHECKPOINTS, RUN_FILE, read_settings
    from topology.base.errors import InputError
    from topology.base.outputs import require_writable, written_to

    if not (run / RUN_FILE).is_file():
        raise InputError(
            what=f"{run} is not the folder of a run",
            cause=f"it has no {RUN_FILE}",
            fix="give the --run-dir of a plan run",
        )
    settings = read_settings(run / RUN_FILE)
    request = read_claims(run / Path(settings.plan_file).name).request
    spec, adapter = request.model.with_positions(request.job.sequence_length), request.job.adapter
    checkpoint = find_checkpoint(run / CHECKPOINTS, read_key(None if run_key is None else str(run_key)), step)
    kept = dtype or settings.precision
    require_empty(to)
    require_writable(to)
    with written_to(to, also=(SafetensorError,)):
        if adapter is None:
            files = publish(checkpoint, spec, to, dtype=kept)
        else:
            files = publish_adapter(checkpoint, spec, adapter, to, dtype=kept)
    total = sum(file.stat().st_size for file in files)
    after = checkpoint.manifest.step
    return Publication(
        model=spec.name if adapter is None else f"adapter of {spec.name}",
        reader="transformers" if adapter is None else "PEFT",
        text=f"{to}: {len(files)} files, {total / 1e9:.2f} GB in {kept}, after step {after}",
        document={
            "folder": str(to),
            "step": after,
            "dtype": kept,
            "files": [file.name for file in files],
            "bytes": total,
        },
    )


def published_answer(published: Publication) -> Answer:
    """Tell what was written."""
    from app.reports.answer import Answer, Facts, json_text

    return Answer(
        headline=f"{published.model} written for {published.reader}",
        sections=(Facts(title="", pairs=(("weights", published.text),)),),
        document=lambda: json_text(published.document),
        records=(published.document,),
    )
