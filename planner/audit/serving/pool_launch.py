"""A command that starts a worker of one of two pools."""

from __future__ import annotations

from dataclasses import dataclass

from planner.formats.settings import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLaunch:
    """A command that starts a worker of a pool: its phase, how many of it run, and its files of options.

    `program` is its first word, `sure` whether it is started whatever a branch decides, and `registers`
    whether it is found by a runtime with which it registers (Dynamo), and listens at no port of requests.
    """

    phase: str
    workers: int
    file: str
    line: int
    options: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    """What it says of handing over caches, and of where it listens."""
    program: str = ""
    sure: bool = True
    is_script: bool = False
    registers: bool = False
