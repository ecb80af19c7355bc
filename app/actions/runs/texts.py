"""What `plan run` trains on: texts looked through and told, all files compared with an earlier start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executor.data.pieces import Contents
    from executor.training.settings import RunSettings
    from planner.plan import Plan


def with_data(run: RunSettings, plan: Plan) -> tuple[RunSettings, dict[str, Contents]]:
    """Settings with checksums of all data, datasets named in full; also what the texts consist of.

    Raises InputError for files that have changed since the folder's run began, and a tokenizer for nothing.
    """
    from executor.data.token_files import marks_of, require_same_marks

    earlier = _earlier(run)
    run, texts = _with_texts(run, plan, earlier)
    marks, tokenizes = dict[str, str](), run.tokenizer is not None
    for before, name in ((earlier.data, run.data), (earlier.eval_data, run.eval_data)):
        if name is not None:
            marks |= (here := marks_of(name, tokenizes=tokenizes))
            require_same_marks(before or name, name, earlier.checksums, here, tokenizes=tokenizes)
    return replace(run, checksums={**run.checksums, **marks}), texts


def _earlier(run: RunSettings) -> RunSettings:
    """Settings of the run that the folder holds; those that are asked where it holds none."""
    from executor.training.settings import RUN_FILE, read_settings

    before = Path(run.folder) / RUN_FILE
    return read_settings(before) if before.is_file() else run


def _with_texts(
    run: RunSettings, plan: Plan, earlier: RunSettings
) -> tuple[RunSettings, dict[str, Contents]]:
    """Settings with checksums of texts and tokenizer, datasets named in full; also what the texts consist of.

    Raises InputError for files that have changed since the folder's run began, and a tokenizer for nothing.
    """
    from app.reports.answer import note
    from executor.data.contents import kept_contents, look_through, require_unchanged
    from executor.data.source import fitting_tokenizer, fully_named, texts_in
    from executor.training.settings import text_reading
    from topology.base.errors import InputError

    reading = text_reading(run, plan)
    if reading is None:
        return run, {}
    run = replace(
        run,
        data=fully_named(run.data, reading.kept, earlier.data),
        eval_data=None
        if run.eval_data is None
        else fully_named(run.eval_data, reading.kept, earlier.eval_data),
    )
    names = [name for data in (run.data, run.eval_data) if data for name in texts_in(data)]
    if not names:
        raise InputError(
            what="--tokenizer has nothing to read",
            cause=f"--data {run.data} holds tokens already",
            fix="leave it out, or give text: JSON lines, Parquet, Arrow, .txt, or a folder of these",
        )
    known = None if earlier.tokenizer is None else earlier.checksums.get(earlier.tokenizer)
    tokenizer = fitting_tokenizer(replace(reading, sha256=known), plan.request.model.vocab_size)
    result = {
        name: look_through(name, field=reading.field, lanes=reading.global_batch_size) for name in names
    }
    for name, contents in result.items():
        note(corpus_in_words(name, contents))
    for name in result.keys() & kept_contents(Path(run.folder)).keys():
        require_unchanged(name, reading.kept[name], result[name])
    checksums = {name: contents.sha256 for name, contents in result.items()}
    return replace(run, checksums={reading.tokenizer: tokenizer.sha256, **checksums}), result


def corpus_in_words(name: str, contents: Contents) -> str:
    """What is read of a corpus, so that nobody trains on a part that was not meant."""
    from collections import Counter

    from topology.base.units import MB

    is_local = contents.hub is None
    folders = Counter(str(Path(file.name).parent) for file in contents.files if is_local)
    read = ", ".join(f"{count:,} of {folder}" for folder, count in folders.items() if folder != ".")
    files = f"{len(contents.files):,} {'file' if len(contents.files) == 1 else 'files'}"
    left = f"; {contents.skipped:,} others are left out" if contents.skipped else ""
    size = f"{contents.size_bytes / MB:,.1f} MB" if contents.size_bytes else "of a size that nobody says"
    return f"{name} is {files}, {size}{f' ({read})' if read else ''}{left}"
