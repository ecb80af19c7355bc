"""Where a document of a refusal is written: the file that an answer would have been written to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from app.flags.dashes import before_dashes
from app.flags.program import chosen_command

FLAGS: Final = ("--output", "-o")
OF_OTHER_FILES: Final = frozenset(("convert", "export", "tokenize", "calibrate", "run"))
"""Commands whose --output is no document."""


def refused_file(words: Sequence[str], *, asks_for_json: bool) -> Path | None:
    """The file of a refusal's document; None where none was asked for.

    A file that the command reads, too, is left as it is; so is one of another form than a document's.

    >>> refused_file(["--model", "70b", "--json", "-o", "nf.json"], asks_for_json=True)
    PosixPath('nf.json')
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
    return Path(named) if asks_for_json or Path(named).suffix.lower() == ".json" else None
