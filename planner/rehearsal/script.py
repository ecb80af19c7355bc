"""What every process of a rehearsal is told, in one JSON file that an environment variable names.

A plan's scripts say which ports their programs listen on and where others are. In a rehearsal each of these
addresses is a `LocalPort`: a free port of this machine, so that it disturbs nobody and two do not meet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from costmodel.serving.simulation.disaggregated import PoolRules
from topology.base.atomic import write_atomically
from topology.base.decode import read_json, structure, unstructure
from topology.base.errors import InputError

LOOPBACK: Final = "127.0.0.1"
VARIABLE: Final = "MESHPLAN_REHEARSAL"
"""Environment variable with the path of the file."""
NODE: Final = "MESHPLAN_REHEARSAL_NODE"
"""Environment variable with the address, in the plan's words, of the node that a script runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPort:
    """A port of this machine in place of one of the plan's; `role` is its pool's, "" of the only one."""

    port: int
    role: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """The load that the client sends: tokens of each request, and when (s); or how many are in flight."""

    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    cached_tokens: tuple[int, ...]
    arrival_s: tuple[float, ...]
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalScript:
    """The rehearsal: doors by address, pools by role, the load, and how many times slower than planned.

    `transfer_s` and `transfer_s_per_token` move a prompt's cache between two pools. `results` is the file
    that the client writes; no process outlives `life_s` seconds.
    """

    doors: Mapping[str, LocalPort]
    pools: Mapping[str, PoolRules]
    requests: ClientLoad
    results: str
    slowdown: float = 1.0
    transfer_s: float = 0.0
    transfer_s_per_token: float = 0.0
    life_s: float = 600.0

    def door(self, address: str) -> LocalPort:
        """The door of an address such as `http://127.0.0.1:8100`; an InputError where it has none.

        >>> script = RehearsalScript(doors={"node-0:8000": LocalPort(port=40001)}, pools={}, results="",
        ...     requests=ClientLoad(input_tokens=(), output_tokens=(), cached_tokens=(), arrival_s=()))
        >>> script.door("http://node-0:8000/health").port
        40001
        """
        parts = urlsplit(address if "//" in address else f"//{address}")
        known = f"{parts.hostname}:{parts.port}"
        if known not in self.doors:
            raise InputError(
                what=f"the rehearsal has nobody at {known}",
                cause=f"its scripts listen at {', '.join(sorted(self.doors))}",
                fix="save the deployment again, and rehearse it unchanged",
            )
        return self.doors[known]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequests:
    """What the client saw of each request, seconds of the plan's time."""

    ttft_s: tuple[float, ...]
    tpot_s: tuple[float, ...]


def write_script(path: Path, script: RehearsalScript) -> None:
    """Write what the processes read."""
    write_atomically(path, json.dumps(unstructure(script)))


def read_script() -> RehearsalScript:
    """What this process is told."""
    path = os.environ.get(VARIABLE, "")
    return structure(read_json(path), RehearsalScript, path)
