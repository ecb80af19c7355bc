"""Where a user's own data are kept: the platform's folder below a home that is named as an absolute path.

Nothing is looked up where the environment names no such home: the folder of whoever runs the process, which
the password database would answer, is read and written by nobody who did not say so.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from topology.base.errors import InputError

APPLICATION = "meshplan"
HOME_VARIABLES = ("USERPROFILE",) if sys.platform == "win32" else ("XDG_DATA_HOME", "HOME")
"""Variables that may name the place, first one first."""


def user_data_folder() -> Path | None:
    """Return the user's data folder of this application; None where no variable names an absolute place.

    Source: XDG Base Directory Specification 0.8: relative paths in its variables are invalid.
    """
    absolute = {
        name: value for name in HOME_VARIABLES if Path(value := os.environ.get(name, "")).is_absolute()
    }
    if sys.platform == "win32":
        from platformdirs import user_data_path

        return user_data_path(APPLICATION) if absolute else None
    if "XDG_DATA_HOME" in absolute:
        return Path(absolute["XDG_DATA_HOME"]) / APPLICATION
    below = "Library/Application Support" if sys.platform == "darwin" else ".local/share"
    return Path(absolute["HOME"]) / below / APPLICATION if "HOME" in absolute else None


def unnamed_home() -> str:
    """Return why there is no folder, in the variables that should name it.

    >>> import os; kept = dict(os.environ)
    >>> os.environ.update(HOME="here"); _ = os.environ.pop("XDG_DATA_HOME", None)
    >>> unnamed_home()
    "XDG_DATA_HOME is not set and HOME is 'here': no absolute path"
    >>> os.environ.clear(); os.environ.update(kept)
    """
    given = {name: os.environ.get(name, "") for name in HOME_VARIABLES}
    words = [f"{name} is {value!r}" if value else f"{name} is not set" for name, value in given.items()]
    return f"{' and '.join(words)}: no absolute path"


def require_user_data_folder() -> Path:
    """Return the user's data folder, or refuse where there is none."""
    folder = user_data_folder()
    if folder is None:
        raise InputError(
            what="there is no folder to keep your data in",
            cause=unnamed_home(),
            fix=f"set {HOME_VARIABLES[0]} to the absolute path of a folder you may write",
        )
    return folder
