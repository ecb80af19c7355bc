"""GPUs that files give one server: of its pod, its service of compose, its container, or by a variable."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.audit.facts import meaning
from planner.audit.launch import VISIBLE
from planner.audit.read import Reading
from planner.audit.words import MACHINE_WORDS
from planner.formats.settings import NOT_KNOWN, Setting, whole_or_none

_BEYOND_HOST = frozenset({
    "node_rank", "headless", "master_addr", "dist_init_addr", "data_parallel_size_local",
    "data_parallel_rank", "data_parallel_start_rank", "data_parallel_address", "data_parallel_external_lb",
    "data_parallel_hybrid_lb", "ray_spec", "ray_cluster_spec", "num_ray_workers",
})  # fmt: skip
"""Words of servers whose ranks are of several pods or hosts, each with GPUs of its own."""
_NAMED = re.compile(r"^[\"']*device=(?P<list>[\w,.:-]+)")
"""GPUs of a container by name, as `docker run --gpus` takes them."""


def gpus_of_machine(reading: Reading) -> tuple[int, str] | None:
    """How many GPUs the files give one server, and where they say it; None where they do not.

    The least counts of those that hold for one pod or host, times its pods where the files count these.
    """
    names = {part for setting in reading.settings for part in setting.path}
    nodes = max(_machine_counts(reading, "said.nodes"), default=(1, 0))[0]
    spread = "ray" in str(reading.facts.value("said.executor") or "").lower()
    if spread or (names & _BEYOND_HOST and nodes == 1):
        return None
    counts = [(gpus * nodes, where) for gpus, where in _counts(reading)]
    return min(counts, default=None)


def compared_with_machine(reading: Reading, gpus: int) -> tuple[str, tuple[str, ...]]:
    """What is wrong where a server takes more GPUs than files give it, and what is idle where it takes fewer.

    Args:
        reading: What the files say.
        gpus: How many its degrees multiply to.
    """
    machine = gpus_of_machine(reading)
    if machine is None and (local := _ranks_of_host(reading)) > (reading.most_counted_gpus or local):
        why = f"its ranks of one host take {local} GPUs (data_parallel_size_local · tp · pp)"
        return f"{why}, and a comment counts {reading.most_counted_gpus}", ()
    if machine is None or machine[0] == gpus:
        return "", ()
    if gpus > machine[0]:
        return f"its degrees multiply to {gpus} GPUs, and {machine[1]}", ()
    return "", (f"the server takes {gpus} of its GPUs, and the rest is idle: {machine[1]}",)


def _ranks_of_host(reading: Reading) -> int:
    """GPUs of the data-parallel ranks that a command starts on its own host; 0 where it does not say."""
    stated = {setting.path[-1]: setting.value for setting in reading.settings}
    local = whole_or_none(stated.get("data_parallel_size_local")) or 0
    if "ray" in str(reading.facts.value("said.executor") or "").lower():
        return 0
    return local * (reading.facts.count("layout.tp") or 1) * (reading.facts.count("layout.pp") or 1)


def _counts(reading: Reading) -> Iterator[tuple[int, str]]:
    """GPUs of one pod or host, with the words that count them."""
    for gpus, line in _machine_counts(reading, "said.gpus_per_node"):
        yield gpus, f"line {line} gives it {gpus}"
    if (asked := reading.facts.count("said.replica_gpus")) is not None:
        yield asked, f"line {reading.facts.by_field['said.replica_gpus'].line} gives it {asked}"
    for setting in reading.settings:
        if setting.path[-1] == "gpus" and (gpus := _of_container(setting)):
            yield gpus, f"its container is given {gpus} (line {setting.line})"
    shown = [setting for setting in reading.settings if setting.name == VISIBLE]
    for setting in shown or [each for name, each in reading.variables.items() if name == VISIBLE]:
        listed = "" if setting.value == NOT_KNOWN else str(setting.value).strip("'\"")
        if gpus := len([part for part in listed.split(",") if part.strip()]):
            yield gpus, f"{VISIBLE} {listed} shows it {gpus} (line {setting.line})"


def _machine_counts(reading: Reading, field: str) -> list[tuple[int, int]]:
    """What words of machines count, with their lines."""
    stated = (setting for setting in reading.settings if meaning(setting, MACHINE_WORDS) == field)
    return [(count, setting.line) for setting in stated if (count := whole_or_none(setting.value) or 0) > 0]


def _of_container(setting: Setting) -> int:
    """GPUs of ``docker run --gpus``; 0 where it gives all."""
    listed = _NAMED.match(str(setting.value))
    if listed is not None:
        return len([part for part in (listed["list"], *setting.more) for part in part.split(",") if part])
    return whole_or_none(setting.value) or 0
