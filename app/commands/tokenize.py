"""`plan tokenize`: text, once, into the token ids that runs read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AsJson
from topology.base.errors import InputError


def command(
    *,
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="UTF-8 texts, one document each, JSON lines (.gz and .zst too), tables, or their folder.",
            metavar="FILE...",
        ),
    ],
    tokenizer: Annotated[
        Path,
        typer.Option("--tokenizer", help="A tokenizer.json, or its folder.", metavar="PATH"),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="NAME: writes NAME.bin and NAME.idx.", metavar="NAME")
    ],
    field: Annotated[
        str, typer.Option("--field", help="Key of a JSON line's text, or a table's column.")
    ] = "text",
    document_end: Annotated[
        int | None,
        typer.Option("--document-end", min=0, help="Token after a document; the tokenizer's by default."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write documents as Megatron's indexed dataset, a few of them in memory at a time."""
    from dataclasses import asdict

    from app.reports.answer import Answer, Facts, emit, json_text
    from executor.data.tokenized import tokenize
    from topology.base.outputs import require_writable, written_to

    index = output.with_name(f"{output.name.removesuffix('.idx').removesuffix('.bin')}.idx")
    _require_new(index)
    require_writable(index)
    with written_to(index.with_suffix(".bin")):
        tokenized = tokenize(texts, tokenizer, index, field=field, end=document_end)
    document = asdict(tokenized)
    train = f"plan run --data {tokenized.index} --document-end {tokenized.document_end}"
    read = ", ".join(f"{count:,} of {folder}" for folder, count in tokenized.files.items())
    skipped = f"; {tokenized.skipped:,} others are left out" if tokenized.skipped else ""
    answer = Answer(
        headline=f"{tokenized.documents:,} documents, {tokenized.tokens:,} tokens written",
        sections=(
            Facts(title="", pairs=(("files read", f"{read}{skipped}"),)),
            Facts(title="", pairs=(("train", train),), copied=True),
        ),
        document=lambda: json_text(document),
        records=(document,),
    )
    return emit(answer, as_json=as_json)


def _require_new(index: Path) -> None:
    """Refuse to replace tokens that a run may be reading."""
    for path in (index, index.with_suffix(".bin")):
        if path.exists():
            raise InputError(
                what=f"{path} is there already",
                cause="runs may read it, and resume by places in it",
                fix="give --output another name, or remove it",
            )
