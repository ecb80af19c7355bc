"""Places for results are tried before the work; what takes none is told in three lines."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from topology.base.errors import InputError
from topology.base.outputs import require_writable, written_to


def test_a_place_below_a_file_is_refused_and_a_new_one_is_not_made(tmp_path: Path) -> None:
    """Trying leaves nothing behind."""
    (tmp_path / "taken").touch()
    with pytest.raises(InputError, match="taken/below/it cannot be written"):
        require_writable(tmp_path / "taken" / "below" / "it")
    require_writable(tmp_path / "new" / "below" / "it")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize(
    ("name", "what"),
    [(None, InputError), ("out/.part", InputError), ("out", InputError), ("elsewhere/read", OSError)],
)
def test_only_errors_of_the_place_itself_are_told_as_its_own(
    name: str | None, what: type[Exception], tmp_path: Path
) -> None:
    """A full disk's error names no file; a file that cannot be read is another matter."""
    words = (errno.ENOSPC, "No space left on device", *([] if name is None else [str(tmp_path / name)]))
    with pytest.raises(what) as raised, written_to(tmp_path / "out" / "made"):
        raise OSError(*words)
    assert "No space left on device" in str(raised.value)
