"""Files of token ids that a run began with, known again: size and checksum of each, held at every start.

Which window a sample is follows from how many tokens there are: a file that has grown would repeat samples
and leave others out, without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from executor.data.blend import blend_parts
from executor.data.indexed import index_beside
from executor.data.pieces import require_same
from executor.data.source import SYNTHETIC, is_text
from topology.base.errors import InputError
from topology.base.files import file_mark


def token_files(name: str, *, tokenizes: bool) -> list[Path]:
    """Files of a source that are read as token ids: of an indexed one both.

    Args:
        name: As `--data` names it.
        tokenizes: Whether there is a tokenizer: without one a text's bytes are its tokens.
    """
    paths: list[Path] = []
    for _, part in blend_parts(name) or ((1, name),):
        if part == SYNTHETIC or (is_text(part) and (tokenizes or not Path(part).is_file())):
            continue
        index = index_beside(Path(part))
        paths += [Path(part)] if index is None else [index, index.with_suffix(".bin")]
    return paths


def marks_of(name: str, *, tokenizes: bool) -> dict[str, str]:
    """Marks of a source's token files by path; of those that cannot be read their opening says why."""
    result = {}
    for path in token_files(name, tokenizes=tokenizes):
        try:
            result[str(path)] = str(file_mark(path))
        except (OSError, InputError):
            continue
    return result


def require_same_marks(
    earlier: str, now: str, there: Mapping[str, str], here: Mapping[str, str], *, tokenizes: bool
) -> None:
    """Refuse token files that are not those that a run began with.

    Args:
        earlier: The source as the run began with it; its files may have moved since.
        now: The source by its name now.
        there: Marks then, by path.
        here: Marks now, by path.
        tokenizes: Whether there is a tokenizer.
    """
    names = (token_files(name, tokenizes=tokenizes) for name in (earlier, now))
    for before, path in zip(*names, strict=False):
        then, mark = there.get(str(before)), here.get(str(path))
        if then is not None and mark is not None and then != mark:
            sizes = f"{_size(then):,} bytes then, {_size(mark):,} now"
            raise InputError(
                what=f"{path} is not what the run began with",
                cause=sizes if _size(then) != _size(mark) else f"{_size(mark):,} bytes, and others than then",
                fix="put the file back, or begin a run of its own with another --run-dir",
            )


def require_sizes(marks: Mapping[str, str]) -> None:
    """Refuse token files that have other sizes than at the run's start: a rank looks at no more of them.

    Args:
        marks: Of all files of a run, those of texts and tokenizers among them, which have no size.
    """
    for name, mark in marks.items():
        if ":" not in mark:
            continue
        require_same(Path(name), _size(mark))


def _size(mark: str) -> int:
    """Bytes of a file, by its mark."""
    return int(mark.partition(":")[0])
