"""Servers that files start on the same GPUs, each of which takes a share of a GPU's memory.

Commands that a script sends to the background without GPUs of their own all start at its host's first one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from costmodel.serving.engine import at_version, serving_stack
from planner.audit.launch import VISIBLE, Launch
from planner.audit.serving.copies import begins
from planner.audit.serving.pools import servers_of_text
from planner.audit.serving.server import Server, SharedDevice
from planner.formats.settings import Setting, number
from planner.formats.shell import Started

_SHARES = ("gpu_memory_utilization", "mem_fraction_static")
_VARIABLES = (VISIBLE.lower(), "nvidia_visible_devices")
_DEVICE = re.compile(r"device=([\d,]+)")
_LIST = re.compile(r"\d+(?:,\d+)*")
_FIRST = "0"
"""The GPU at which servers begin that are given none."""
_GIVEN = re.compile(r"visible_devices|--gpus[= ](?!.?all\b)|gpu.ids?\b|--device|kvcached", re.IGNORECASE)
"""Words by which a script gives GPUs, wherever it stands, or lets servers share one."""
_ELSEWHERE = re.compile(r"\b(?:ssh|srun|pdsh|clush|mpirun|kubectl|oc|nomad|sbatch|ray)\b")
"""Programs that may start a command on another host."""
_SCRIPT = re.compile(r"\A#!|^\s*wait\b", re.MULTILINE)
"""What a file has that is run as a whole, and is no list of commands for several hosts."""
_COMMENT = re.compile(r"(?:^|\s)#[^\n]*")
_BEHIND = re.compile(r"(?<![&>])&(?![&>\d])\s*(?:[);}]|done\b|$)")
"""A command's end that sends it to the background."""


def with_shared_device(server: Server, texts: Mapping[str, str], given: Mapping[str, str]) -> Server:
    """The server with the GPU on which shares of several servers are more than all its memory."""
    usual = at_version(serving_stack(server.engine), server.version).memory_fraction
    crowded = (each for each in _shared(usual, texts, given) if sum(each.shares) > 1)
    return replace(server, shares=next(crowded, None))


def _shared(usual: float, texts: Mapping[str, str], given: Mapping[str, str]) -> Iterator[SharedDevice]:
    """Devices of several servers of a file; `usual` is the share that each takes unless it is told."""
    for name, text in texts.items():
        started, settings = servers_of_text(name, text, given, {})
        on: dict[str, list[float]] = defaultdict(list)
        for launch in {launch.line: launch for launch, _ in started}.values():
            for device in _devices(launch, settings):
                on[device].append(_share(launch, usual))
        first = () if settings else _at_first_gpu(started, text)
        on[_FIRST] += [_share(launch, usual) for launch in first]
        composed = bool(first) or any(setting.name.startswith("services.") for setting in settings)
        for device, shares in on.items():
            if len(shares) > 1:
                yield SharedDevice(device=device, shares=tuple(shares), one_host=composed)


def _at_first_gpu(started: Sequence[tuple[Launch, Started]], text: str) -> Sequence[Launch]:
    """Servers of a script that run beside each other, none of which is given GPUs."""
    commands = _COMMENT.sub("", text)
    if not _SCRIPT.search(text) or _GIVEN.search(commands) or _ELSEWHERE.search(commands):
        return ()
    lines = text.split("\n")
    begun = {launch.line: launch for launch, command in started if command.sure and begins(launch)}
    beside = [launch for launch in begun.values() if _BEHIND.search(_command_of(lines, launch.line))]
    return beside if len(beside) > 1 else ()


def _command_of(lines: Sequence[str], line: int) -> str:
    """The text of a command that begins at a line, over the lines that continue it."""
    end = line
    while end < len(lines) and lines[end - 1].rstrip().endswith("\\"):
        end += 1
    return " ".join(_COMMENT.sub("", part).rstrip().rstrip("\\") for part in lines[line - 1 : end]).rstrip()


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
