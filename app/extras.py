"""Optional parts of the installation that some commands need."""

from __future__ import annotations

from importlib.util import find_spec

from topology.base.errors import InputError


def require_torch(command: str) -> None:
    """Refuse a command that cannot work without torch."""
    if find_spec("torch") is None:
        raise InputError(
            what=f"{command} needs torch",
            cause="torch is not installed",
            fix='pip install "meshplan[run]"',
        )
