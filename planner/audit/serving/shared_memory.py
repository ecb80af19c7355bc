"""Whether ranks of a container have the usual 64 MB of shared memory alone, which NCCL and engines outgrow.

A container's ``/dev/shm`` has 64 MB unless its pod mounts a volume there, its service or command says
``ipc`` or ``shm_size`` (docs.docker.com, `docker run`; sglang issue 4259, production-stack issue 276).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.audit.serving.pools import servers_of_text
from planner.formats.settings import Setting
from planner.formats.shell import Started

_WIDENS = ("ipc", "shm_size", "hostipc", "ipc_mode", "sharedmemory", "sharedmemorysize")
_FLAGS = ("--ipc", "--shm-size", "--tmpfs", "/dev/shm")  # noqa: S108 - a mount, and no file of ours


def has_little_shared_memory(texts: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Whether a server of these texts runs in a container that nothing gives more shared memory."""
    for name, text in texts.items():
        started, settings = servers_of_text(name, text, given, {})
        if settings and started and _is_of_container(settings) and not _is_wider(settings):
            return True
        if any(_in_docker(command) for _, command in started):
            return True
    return False


def _is_of_container(settings: Sequence[Setting]) -> bool:
    """Whether a manifest is of pods or of Compose's services."""
    return any(".containers." in setting.name or setting.name.startswith("services.") for setting in settings)


def _is_wider(settings: Sequence[Setting]) -> bool:
    """Whether anything of a manifest gives containers more; the operator of Dynamo's graphs gives 8 GiB."""
    if any(setting.value == "DynamoGraphDeployment" for setting in settings):
        return True
    return any(
        setting.path[-1].replace("_", "").lower() in {word.replace("_", "") for word in _WIDENS}
        or "/dev/shm" in str(setting.value)  # noqa: S108 - same
        for setting in settings
    )


def _in_docker(command: Started) -> bool:
    """Whether a command runs a container with the usual shared memory."""
    words = [word.text for word in command.words]
    runs = words[:1] in (["docker"], ["podman"], ["nerdctl"]) or words[:2] == ["sudo", "docker"]
    return runs and "run" in words[:3] and not any(flag in word for word in words for flag in _FLAGS)
