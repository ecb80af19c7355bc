"""Places that a user names for results: tried before the work, and told in three lines if they take none."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from topology.base.errors import InputError

FIX = "give --output a place that you may write, with room for it"


def require_writable(place: Path, fix: str = FIX) -> None:
    """Refuse a place that can hold no file or folder, by making one in the first of its folders there is.

    Raises:
        InputError: that folder takes nothing, or is no folder.
    """
    folder = next(parent for parent in place.absolute().parents if parent.exists())
    try:
        tempfile.TemporaryDirectory(prefix=".meshplan-", dir=folder).cleanup()
    except OSError as error:
        raise _unwritten(place, error, fix) from error


@contextlib.contextmanager
def written_to(place: Path, fix: str = FIX, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn a failure to write a place into the three lines; `also` are a library's own errors of that kind.

    Errors of files that lie elsewhere pass.
    """
    kinds: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except kinds as error:
        name, whole = getattr(error, "filename", None), place.absolute()
        at = whole if name is None else Path(str(name)).absolute()
        if not (at.is_relative_to(whole.parent) or whole.is_relative_to(at)):
            raise
        raise _unwritten(place, error, fix) from error


def _unwritten(place: Path, error: Exception, fix: str) -> InputError:
    """Describe a result that has no place."""
    return InputError(what=f"{place} cannot be written", cause=str(error), fix=fix)
