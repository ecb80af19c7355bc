"""The one way out for files: readers see the old file or the whole new one, never a part of either."""

import contextlib
import os
from pathlib import Path


def sync_file(path: Path) -> None:
    """Have a file's bytes, which a library has written, on the disk. Raises OSError where that fails."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Have a folder's names on the disk, too: without, a loss of power may undo a rename that was done.

    File systems that sync no folders keep names in an order of their own.
    """
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file as UTF-8: into a temporary file beside it, to the disk, then under its name.

    Links are followed, the permissions of a file that is replaced are kept, and what is no file (a pipe,
    ``/dev/stdout``) is written as it is. Whatever interrupts leaves the old file. Raises OSError.
    """
    content = text.encode("utf-8", errors="backslashreplace")  # half a surrogate pair has no UTF-8
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    target = Path(os.path.realpath(path))
    mode = target.stat().st_mode & 0o777 if target.exists() else None
    temporary = target.with_name(f".meshplan-{os.urandom(8).hex()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            if mode is not None:
                os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
        temporary.replace(target)
        sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
