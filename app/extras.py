"""Optional parts of the installation that some commands need."""

from __future__ import annotations

from importlib.util import find_spec

from topology.base.errors import InputError


def require_library(name: str, command: str) -> None:
    """Refuse a model of a library that is not there; none of them is a dependency."""
    if find_spec(name) is None:
        raise InputError(
            what=f"{command} needs {name}",
            cause=f"{name} is not installed",
            fix=f'pip install "meshplan[run]" {name}, which builds what the catalog has not; or --module',
        )


def require_extra(name: str, command: str) -> None:
    """Refuse a command whose library is an extra of the same name that is not installed."""
    if find_spec(name) is None:
        raise InputError(
            what=f"{command} needs {name}",
            cause=f"{name} is not installed",
            fix=f'pip install "meshplan[{name}]"',
        )


def require_torch(command: str) -> None:
    """Refuse a command that cannot work without torch."""
    if find_spec("torch") is None:
        raise InputError(
            what=f"{command} needs torch",
            cause="torch is not installed",
            fix='pip install "meshplan[run]"',
        )
