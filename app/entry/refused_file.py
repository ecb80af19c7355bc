"""Where a refusal is written, and in which form: the file that its answer would have been written to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from app.errors import three_lines
from app.flags.dashes import before_dashes
from app.flags.program import chosen_command
from app.reports.answer import csv_text, json_text
from app.reports.refusal import refusal_document
from topology.base.errors import InputError

FLAGS: Final = ("--output", "-o")
ANSWERS: Final = (".json", ".csv", ".md", ".markdown", ".txt")
"""Endings of files that answers are written to."""
OF_OTHER_FILES: Final = frozenset(("convert", "export", "tokenize", "calibrate", "run"))
"""Commands whose --output is no document."""


def refused_file(words: Sequence[str], *, asks_for_json: bool) -> Path | None:
    """The file of a refusal; None where none was asked for.

    No answer of an earlier run may stand under its name. A file that the command reads, too, is left as it
    is; so is one whose ending is no answer's.

    >>> refused_file(["--model", "70b", "--json", "-o", "nf.json"], asks_for_json=True)
    PosixPath('nf.json')
    >>> refused_file(["--model", "70b", "-o", "train.sh"], asks_for_json=False) is None
    True
    >>> refused_file(["serve", "--model", "70b", "--output", "500"], asks_for_json=True) is None
    True

    Args:
        words: The command line, without the program's name.
        asks_for_json: Whether it asks for a document.
    """
    flags, _ = before_dashes(words)
    given = [after for flag, after in pairwise(flags) if flag in FLAGS]
    given += [word.removeprefix("--output=") for word in flags if word.startswith("--output=")]
    named = given[-1] if given else ""
    is_count = named.replace(".", "").isdecimal()  # tokens that a server answers
    is_read = sum(Path(word.rpartition("=")[2]) == Path(named) for word in flags) > 1
    if not named or is_count or is_read or chosen_command(words) in OF_OTHER_FILES:
        return None
    return Path(named) if asks_for_json or Path(named).suffix.lower() in ANSWERS else None


def refusal_text(error: InputError, exit_code: int, path: Path, *, asks_for_json: bool) -> str:
    """A refusal in the form of a file: a document, a row of a table, or its three lines.

    >>> error = InputError(what="no layout fits", cause="memory", fix="use 24 GPUs")
    >>> print(refusal_text(error, 1, Path("a.csv"), asks_for_json=False), end="")
    error,cause,help
    no layout fits,memory,use 24 GPUs
    """
    ending = "" if asks_for_json else path.suffix.lower()
    if ending in (".json", ""):
        return f"{json_text(refusal_document(error, exit_code))}\n"
    if ending == ".csv":
        return csv_text([{"error": error.what, "cause": error.cause, "help": error.fix}])
    lines = three_lines(error)
    return f"```\n{lines}\n```\n" if ending in (".md", ".markdown") else f"{lines}\n"
