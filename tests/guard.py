"""No test reads or writes the real user's files: opening one below their data, config or cache folder is seen.

An audit hook hears of every file and folder that this process opens, lists or makes (PEP 578); processes that
tests start are given `XDG_*` folders of the session instead.
"""

from __future__ import annotations

import atexit
import os
import shutil
import site
import sys
import tempfile
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

FOLDERS = {
    "XDG_DATA_HOME": ".local/share",
    "XDG_CONFIG_HOME": ".config",
    "XDG_CACHE_HOME": ".cache",
    "XDG_STATE_HOME": ".local/state",
}
"""Folders of a user by the variable that moves them, below HOME otherwise."""
_EVENTS = frozenset({"open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename", "os.rmdir"})


def real_folders(environment: dict[str, str]) -> tuple[str, ...]:
    """Folders of whoever runs the suite: as the environment names them, and as the password database does."""
    homes = [environment.get("HOME", "")]
    if sys.platform != "win32":
        import pwd

        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    below = [
        str(Path(home) / path) for home in homes if Path(home).is_absolute() for path in FOLDERS.values()
    ]
    named = [value for name in FOLDERS if Path(value := environment.get(name, "")).is_absolute()]
    return tuple(dict.fromkeys(f"{path.rstrip('/')}/" for path in (*below, *named)))


def of_the_interpreter() -> tuple[str, ...]:
    """Folders that code is read from, which may lie below a user's own: the interpreter's and packages'."""
    given = [sys.prefix, sys.base_prefix, *site.getsitepackages(), os.environ.get("MESHPLAN_PARSERS", "")]
    return tuple(f"{path.rstrip('/')}/" for path in given if path)


class Guard:
    """What was opened below guarded folders since it was last asked."""

    def __init__(self, folders: Iterable[str], allowed: Iterable[str]) -> None:
        """Listen from now on; a hook cannot be taken away."""
        self.folders, self.allowed = tuple(folders), tuple(allowed)
        self.opened: list[str] = []
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in _EVENTS or not arguments or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path = os.fsdecode(arguments[0])
        if f"{path}/".startswith(self.folders) and not f"{path}/".startswith(self.allowed):
            self.opened.append(path)

    def taken(self) -> list[str]:
        """What was opened, once."""
        opened, self.opened = sorted(set(self.opened)), []
        return opened


REMEMBERED = "GUARDED_FOLDERS"
"""Variable by which processes that run tests know whose folders the first one was started in."""


def _start() -> Guard:
    """Guard the real user's folders, and give everything that is started from here others."""
    known = os.environ.get(REMEMBERED)
    folders = tuple(known.split(os.pathsep)) if known else real_folders(dict(os.environ))
    if not known:
        os.environ[REMEMBERED] = os.pathsep.join(folders)
        place = Path(tempfile.mkdtemp(prefix="meshplan-suite-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        for name in FOLDERS:
            os.environ[name] = str(place / name.lower())
    return Guard(folders, of_the_interpreter())


GUARD = _start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Fail a test that opened what is the user's."""
    result = yield
    opened = GUARD.taken()
    if opened:
        pytest.fail(f"the real user's files were opened: {', '.join(opened[:5])}", pytrace=False)
    return result
