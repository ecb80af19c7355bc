"""Packages with plain names (`app`, `planner`) can be hidden by others of the same name: say by which.

Checked when a name of the library is first used and when the program starts, before anything of theirs is
imported; only the standard library is needed for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("topology", "costmodel", "planner", "executor", "app")
ROOT: Final = Path(__file__).resolve().parents[1]


class ForeignPackageError(ImportError):
    """Another package stands where one of ours is imported from; three lines say which, and what to do."""

    def __init__(self, name: str, place: str, fix: str) -> None:
        """Word the three lines; `place` is the other package's place, `name` that of both."""
        what = f"error: the package {name} that Python finds is not meshplan's"
        super().__init__(f"{what}\ncause: {place}; meshplan's is {ROOT / name}\nhelp:  {fix}", name=name)


def require_own_packages(names: Sequence[str] = PACKAGES) -> None:
    """Raise ForeignPackageError unless each of these packages stands beside this one."""
    for name in names:
        places = _places(name)
        if (ROOT / name) not in places:
            raise ForeignPackageError(name, *_other(name, places))


def _places(name: str) -> list[Path]:
    """Folders (or the file) that a top-level name is, or would be, imported from; none when it is missing."""
    module = sys.modules.get(name)
    spec = find_spec(name) if module is None else module.__spec__
    if spec is None:
        return [Path(str(getattr(module, "__file__", None) or "built in"))] if module is not None else []
    places = spec.submodule_search_locations or [spec.origin or ""]
    return [Path(place).resolve() for place in places]


def _other(name: str, places: Sequence[Path]) -> tuple[str, str]:
    """Where the other package stands and what to do about it."""
    if not places:
        return f"there is no package {name}", "install meshplan again: pip install --force-reinstall meshplan"
    place = places[0]
    owner = _distribution(name, place)
    if owner:
        fix = f"uninstall {owner}, or give meshplan an environment of its own"
        return f"it is {place}, of the distribution {owner}", fix
    fix = f"start from a folder without {place.name}, and keep {place.parent} off PYTHONPATH"
    return f"it is {place}", fix


def _distribution(name: str, place: Path) -> str:
    """Distribution that put a package there; empty when none did."""
    from importlib.metadata import distribution, packages_distributions

    for owner in packages_distributions().get(name, ()):
        if owner != "meshplan" and Path(str(distribution(owner).locate_file(name))).resolve() == place:
            return owner
    return ""
