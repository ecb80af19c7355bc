"""Servers that files start on the same GPUs, each of which takes a share of a GPU's memory."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from costmodel.serving.engine import serving_stack
from planner.audit.launch import VISIBLE, Launch
from planner.audit.serving.pools import servers_of_text
from planner.audit.serving.server import Server, SharedDevice
from planner.formats.settings import Setting, number

_SHARES = ("gpu_memory_utilization", "mem_fraction_static")
_VARIABLES = (VISIBLE.lower(), "nvidia_visible_devices")
_DEVICE = re.compile(r"device=([\d,]+)")
_LIST = re.compile(r"\d+(?:,\d+)*")


def with_shared_device(server: Server, texts: Mapping[str, str], given: Mapping[str, str]) -> Server:
    """The server with the GPU on which shares of several servers are more than all its memory."""
    crowded = (each for each in _shared(server.engine, texts, given) if sum(each.shares) > 1)
    return replace(server, shares=next(crowded, None))


def _shared(engine: str, texts: Mapping[str, str], given: Mapping[str, str]) -> Iterator[SharedDevice]:
    """Devices of several servers of a file."""
    usual = serving_stack(engine).memory_fraction
    for name, text in texts.items():
        started, settings = servers_of_text(name, text, given, {})
        on: dict[str, list[float]] = defaultdict(list)
        for launch in {launch.line: launch for launch, _ in started}.values():
            for device in _devices(launch, settings):
                on[device].append(_share(launch, usual))
        composed = any(setting.name.startswith("services.") for setting in settings)
        for device, shares in on.items():
            if len(shares) > 1:
                yield SharedDevice(device=device, shares=tuple(shares), one_host=composed)


def _share(launch: Launch, usual: float) -> float:
    """The share of a GPU's memory that a server takes: as it is stated, else its engine's."""
    named = (s.value for s in launch.settings if s.path[-1] in _SHARES)
    return next((share for value in named if (share := number(value))), usual)


def _devices(launch: Launch, settings: Sequence[Setting]) -> tuple[str, ...]:
    """GPUs that a server is given by their numbers; none where no word says them."""
    stated = [str(s.value) for s in launch.settings if s.path[-1] in _VARIABLES]
    stated += [match[1] for s in launch.settings if (match := _DEVICE.search(str(s.value)))]
    if settings:
        command = min(settings, key=lambda setting: (abs(setting.line - launch.line), -len(setting.name)))
        service = ".".join(command.name.split(".")[:2])
        beside = [s for s in settings if s.name.startswith(f"{service}.")]
        stated += [str(s.value) for s in beside if s.path[-1] in ("device_ids", *_VARIABLES)]
    listed = next((text for text in stated if _LIST.fullmatch(text)), "")
    return tuple(dict.fromkeys(listed.split(","))) if listed else ()
