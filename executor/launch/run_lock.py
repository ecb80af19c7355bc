"""One run in a folder at a time, on each of its nodes."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from topology.base.errors import InputError

LOCK_FILE = ".lock"
_HOLDER_BYTES = 200
_ASKED_S = 0.1


@contextlib.contextmanager
def run_lock(folder: Path, say: Callable[[str], None], node: int = 0) -> Iterator[int]:
    """Hold a run's folder; gives the file descriptor, which ranks inherit: it is free when all have ended.

    A file system that has no locks is told, and trusted.
    """
    import fcntl

    path = _path(folder, node)
    descriptor = _opened(path)
    try:
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # or a node asked at this moment who holds it
                time.sleep(_ASKED_S)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                what=f"another run is under way in {folder}",
                cause=_holder(descriptor),
                fix="wait for its end or stop it, or give another --run-dir",
            ) from None
        except OSError as error:
            say(f"warning: {path} cannot be locked ({error.strerror}): let no second run use this folder")
        since = dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def holder_of(folder: Path, node: int) -> str:
    """What a launcher that holds a node's lock wrote of itself; empty where none does, or no locks are."""
    try:
        descriptor = os.open(_path(folder, node), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(descriptor)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return ""


def _path(folder: Path, node: int) -> Path:
    """The lock of a node of a run."""
    return folder / (f"{LOCK_FILE}-{node}" if node else LOCK_FILE)


def _opened(path: Path) -> int:
    """Open the lock's file, and never what a link in someone else's folder points to."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise cannot_write(path.parent, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(
            what=f"{path} is not a regular file",
            cause="it is a device or a pipe, where a run keeps its lock",
            fix="remove it, or give another --run-dir",
        )
    return descriptor


def _holder(descriptor: int) -> str:
    """What the holder wrote of itself."""
    return (
        os.pread(descriptor, _HOLDER_BYTES, 0).decode("utf-8", errors="replace").strip()
        or "it has just begun"
    )


def cannot_write(folder: Path, error: OSError) -> InputError:
    """Say that a run's folder takes no files."""
    return InputError(
        what=f"the run's folder {folder} cannot be written",
        cause=str(error),
        fix="give --run-dir another folder, or free space",
    )
