"""Commands in manifests: what a pod, a task or a service of a YAML file starts, as the lines of a script."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile, zip_longest

from planner.audit.server_flags import SERVING_IMAGE
from planner.formats.settings import Setting, whole_or_none

_STARTS = (
    "command", "args", "arguments", "run", "entrypoint", "commands", "start_command", "startCommand",
    "docker_args", "dockerArgs",
)  # fmt: skip
"""Keys whose text or list is a command, or the rest of one."""
_RESTS = ("args", "arguments")
"""Those that go on what the key before them began; so does ``command`` after a service's ``entrypoint``."""
_FLAG = re.compile(r"(?:^|\s)(?:--?[A-Za-z]|[+~]*\w+(?:\.\w+)+=)")


def script_of(settings: Sequence[Setting]) -> str:
    r"""The commands of a file, each on the line on which it stands; empty if there is none.

    >>> told = (("a.command", "x.py"), ("a.args", "-n 8"))
    >>> script_of([Setting(name=name, value=value, line=1) for name, value in told])
    'x.py -n 8'
    """
    commands: list[tuple[int, str, str]] = []
    begins, behind = "", _behind_images(settings)
    rests_first, closed = "", False
    settings = [_served_by_chart(setting, settings) for setting in settings]
    for before_it, setting in zip((None, *settings), settings, strict=False):
        outer, _, key = setting.name.rpartition(".")
        if key.removesuffix("[]") not in _STARTS or not isinstance(setting.value, str):
            continue
        adjacent = before_it is not None and before_it.name.removesuffix("[]") == rests_first
        if adjacent and rests_first == f"{outer}.args" and key.removesuffix("[]") == "command":
            line, _, rest = commands.pop()  # of a container whose keys are sorted
            commands.append((line, outer, f"{setting.value} {rest}"))
            rests_first, closed = "", True
            continue
        if (
            commands
            and not closed
            and commands[-1][1] == outer
            and (key.startswith(_RESTS) or begins == f"{outer}.entrypoint")
        ):
            line, _, before = commands.pop()
            commands.append((line, outer, f"{before} {setting.value}"))
        else:
            commands.append((setting.line, outer, setting.value))
            closed, rests_first = False, setting.name.removesuffix("[]") if key.startswith(_RESTS) else ""
            begins = setting.name.removesuffix("[]")
            if begins in behind and not _PROGRAM.match(setting.value.strip()):
                commands[-1] = (setting.line, outer, f"{_OF_IMAGE} {setting.value.strip()}")
    text = ""
    for line, _, command in commands:
        if _FLAG.search(command) or command.startswith(_OF_IMAGE):
            text += "\n" * max(1 if text else 0, line - 1 - text.count("\n")) + command
    return text


_PARALLELISM = {"tensor": "--tensor-parallel-size", "data": "--data-parallel-size"}
"""Keys of a pool's ``parallelism``, and the flags that the chart of llm-d makes of them."""


def _served_by_chart(setting: Setting, settings: Sequence[Setting]) -> Setting:
    """``modelCommand: vllmServe`` as the command that the chart makes of it (llm-d-modelservice 0.4)."""
    outer, _, key = setting.name.rpartition(".")
    if key != "modelCommand" or setting.value != "vllmServe":
        return setting
    values = {each.name: str(each.value) for each in settings}
    model = values.get("modelArtifacts.name") or values.get("modelArtifacts.uri", "").rpartition("://")[2]
    pool = outer.partition(".")[0]
    degrees = (
        f"{flag} {values.get(f'{pool}.parallelism.{name}', '1')}" for name, flag in _PARALLELISM.items()
    )
    return replace(setting, name=f"{outer}.command", value=" ".join(("vllm serve", model, *degrees)))


_OF_IMAGE = "vllm serve"
"""What the entry point of a serving image starts (docker/Dockerfile of vLLM)."""
_PROGRAM = re.compile(
    r"(?:\S*/)?(?:vllm|python3?|(?:ba|z)?sh|ray|trtllm-serve|exec|env)\b(?!/)|-{0,2}[lic]+ |#!|set "
)
"""How words begin that name a program of their own."""


def _behind_images(settings: Sequence[Setting]) -> frozenset[str]:
    """Keys whose words follow the entry point of a serving image.

    A pod's ``command`` takes the place of an entry point, and ``args`` follow it; of compose ``entrypoint``
    takes its place, and ``command`` follows it.
    """
    names = {setting.name.removesuffix("[]") for setting in settings}
    behind = set()
    for setting in settings:
        outer, _, key = setting.name.rpartition(".")
        if key == "image" and SERVING_IMAGE.match(str(setting.value)):
            compose = outer.startswith("services.")
            replaced, key = ("entrypoint", "command") if compose else ("command", "args")
            behind |= set() if f"{outer}.{replaced}" in names else {f"{outer}.{key}"}
    return frozenset(behind)


_TABLES = ("envs", "env", "environment", "secrets")
"""Tables of variables, each under its name."""


def variables_of(settings: Sequence[Setting]) -> dict[str, str]:
    """Variables that a manifest gives to what it starts: as a table, as pairs, as words ``NAME=value``.

    One that is given several values is known of none.

    >>> told = (("envs.MODEL", "a/b"), ("c.env.name", "SEQ"), ("c.env.value", "4096"), ("d.env", "TP=2"))
    >>> variables_of([Setting(name=name, value=value, line=1) for name, value in told])
    {'MODEL': 'a/b', 'SEQ': '4096', 'TP': '2'}
    """
    given: dict[str, set[str]] = {}
    for setting, after in zip_longest(settings, settings[1:]):
        outer, _, key = setting.name.rpartition(".")
        table = outer.rpartition(".")[2].removesuffix("[]")
        text = str(setting.value)
        if table == "env" and key == "name":
            if after is not None and after.name == f"{outer}.value":
                given.setdefault(text, set()).add(str(after.value))
        elif table in _TABLES and not (table == "env" and key == "value"):
            given.setdefault(key, set()).add(text)
        elif key.removesuffix("[]") in _TABLES and "=" in text:
            for name, _, value in (word.partition("=") for word in re.split(r"[\s,]+", text)):
                given.setdefault(name, set()).add(value)
    return {name: values.pop() for name, values in given.items() if len(values) == 1 and name.isidentifier()}


_CONTROLLED = {
    "gpus_per_node": ("SKYPILOT_NUM_GPUS_PER_NODE", "DSTACK_GPUS_PER_NODE", "DSTACK_GPUS_NUM"),
    "num_nodes": ("SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM"),
}
"""Variables in which controllers of tasks tell these what they were given."""


def controlled_variables(settings: Sequence[Setting]) -> dict[str, str]:
    """Variables that SkyPilot and dstack set by a task's nodes and GPUs.

    >>> told = controlled_variables([Setting(name="resources.accelerators", value="H100:8", line=1)])
    >>> told["SKYPILOT_NUM_GPUS_PER_NODE"], told["SKYPILOT_NUM_NODES"]
    ('8', '1')
    """
    if not any(_DEVICES.search(setting.name) for setting in settings):
        return {}
    counts = {"num_nodes": 1} | {each.name: each.value for each in machines_of(settings)}
    return {
        name: str(counts[what]) for what, names in _CONTROLLED.items() if what in counts for name in names
    }


_OF_POD = re.compile(
    r"(?:limits|requests|requests_per_node)\.(?:nvidia|amd)\.com/gpu$|\bresources\.(?:limits|requests)\.gpu$"
)
"""GPUs that a pod or a node asks for, by a device plugin's name or as Dynamo's graphs say it."""
_REPLICAS = re.compile(r"(?:^|\.)\w*[rR]eplica_?[sS]pecs\.\w+\.replicas$")
_PARALLEL = re.compile(r"(?:^|\.)(?:spec|jobs?)\S*\.parallelism$|^spec\.parallelism$")
_WORKERS = re.compile(r"(?:^|\.)(?:num_?[nN]odes|nodes|leaderWorkerTemplate\.size|multinode\.nodeCount)$")
_DEVICES = re.compile(r"(?:^|\.)(?:resources\.(?:gpu|accelerator)|accelerators)$")
_RESERVED = re.compile(r"^services\..*\.devices\.(?:count|device_ids)$")
"""GPUs that compose reserves for a service: how many, or which."""


def machines_of(settings: Sequence[Setting]) -> Iterator[Setting]:
    """Nodes and GPUs of each, as the controller of a manifest starts them.

    Of a PyTorchJob or MPIJob the replicas of all kinds, of a Job or JobSet its parallel pods, of a TrainJob
    or a task of SkyPilot or dstack its nodes; of each the GPUs that a pod or a node asks for.

    >>> rows = {"spec.pytorchReplicaSpecs.Master.replicas": 1, "spec.pytorchReplicaSpecs.Worker.replicas": 3}
    >>> [(s.name, s.value) for s in machines_of([Setting(name=n, value=v, line=1) for n, v in rows.items()])]
    [('num_nodes', 4)]
    """
    pods = {count for setting in settings if _OF_POD.search(setting.name) and (count := _count(setting))}
    if len(pods) == 1:
        yield Setting(name="gpus_per_node", value=pods.pop(), line=_line_of(settings, _OF_POD))
    reserved = {_reserved(setting) for setting in settings if _RESERVED.search(setting.name)} - {0}
    if len(reserved) == 1 and not pods:
        yield Setting(name="gpus_per_node", value=reserved.pop(), line=_line_of(settings, _RESERVED))
    for setting in settings:
        if _DEVICES.search(setting.name) and (match := re.search(r":(\d{1,2})\b", str(setting.value))):
            yield Setting(name="gpus_per_node", value=int(match.group(1)), line=setting.line)
    replicas = [count for setting in _with_gpus(settings) if (count := _count(setting))]
    parallel = [
        count for setting in settings if _PARALLEL.search(setting.name) and (count := _count(setting))
    ]
    workers = [count for setting in settings if _WORKERS.search(setting.name) and (count := _count(setting))]
    nodes = sum(replicas) or math.prod(parallel) * bool(parallel) or (workers[0] if workers else 0)
    pattern = _REPLICAS if replicas else _PARALLEL if parallel else _WORKERS
    if nodes:
        yield Setting(name="num_nodes", value=nodes, line=_line_of(settings, pattern))


def machines_of_command(settings: Sequence[Setting], line: int) -> Iterator[Setting]:
    """Nodes and GPUs of the pod in which the command of a line runs, where pods of a file differ.

    Those of a service, a pool or a container are told in the tables around its command. No count is known
    where a chart lays a pool over several pods.

    >>> gpu, rows = "resources.limits.gpu", {"a.args": "x", "b.args": "y"}
    >>> rows |= {f"a.{gpu}": 1, f"b.{gpu}": 2}
    >>> told = [Setting(name=name, value=value, line=at) for at, (name, value) in enumerate(rows.items())]
    >>> [each.value for each in machines_of_command(told, 1)]
    [2]
    """
    if any(setting.name == "multinode" and setting.value is True for setting in settings):
        return
    commands = [each for each in settings if each.path[-1].removesuffix("[]") in (*_STARTS, "modelCommand")]
    command = min(commands, key=lambda each: abs(each.line - line), default=None)
    if command is None:
        yield from machines_of(settings)
        return
    counts = [each for each in settings if _OF_POD.search(each.name) or _WORKERS.search(each.name)]
    for pattern in (_OF_POD, _WORKERS):
        some = [each for each in counts if pattern.search(each.name)]
        most = max((_shared_parts(each.name, command.name) for each in some), default=0)
        far = {each.name for each in some if _shared_parts(each.name, command.name) < most}
        settings = [each for each in settings if each.name not in far]
    yield from machines_of(settings)


def _shared_parts(key: str, command: str) -> int:
    """Tables in which two keys stand together."""
    pairs = zip(key.split("."), command.split("."), strict=False)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


def _with_gpus(settings: Sequence[Setting]) -> list[Setting]:
    """Counts of replicas, of those kinds alone that ask for GPUs where some do: a launcher has none."""
    counts = [setting for setting in settings if _REPLICAS.search(setting.name)]
    asking = (setting.name.split(".") for setting in settings if _OF_POD.search(setting.name))
    tables = {".".join(parts[:length]) for parts in asking for length in range(len(parts))}
    kinds = [setting for setting in counts if setting.name.removesuffix(".replicas") in tables]
    return kinds or counts


def _count(setting: Setting) -> int:
    """A whole number above zero; else 0."""
    return max(0, whole_or_none(setting.value) or 0)


def _reserved(setting: Setting) -> int:
    """GPUs of a service of compose: a count, or as many as are listed; 0 where it takes all."""
    if setting.name.endswith(".device_ids"):
        return len([part for part in str(setting.value).split(",") if part.strip()])
    return _count(setting)


def _line_of(settings: Sequence[Setting], pattern: re.Pattern[str]) -> int:
    """Where the first setting of a kind stands."""
    return next(setting.line for setting in settings if pattern.search(setting.name))
