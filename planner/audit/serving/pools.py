"""Two pools as files start them: which commands compute prompts, which outputs, and how many of each run.

A command says its phase in its flags (SGLang and Dynamo `--disaggregation-mode`, vLLM's `kv_role`,
TensorRT-LLM's `--server_role`). Where it does not (`kv_both`), the router in front says it by ports, a
manifest by the keys and labels above the command, a script by the names that the command or its file has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from planner.audit.launch import OPTION_FILES, Launch, servers_started
from planner.audit.manifests import script_of
from planner.audit.read import FILE_OF_ROUTER, mounted_files, read_texts
from planner.audit.serving.both_phases import files_of_phases, workers_of_file
from planner.audit.serving.configured import configs_of
from planner.audit.serving.pair_laws import broken_pair, port_settings
from planner.audit.serving.pool_launch import PoolLaunch
from planner.audit.serving.refused import BrokenLaw
from planner.audit.serving.server import Server, Unknown, server_of
from planner.audit.serving.transport import Transport, transport_of
from planner.formats.kinds import kind_of
from planner.formats.settings import Setting, whole_or_none
from planner.formats.shell import Started, script_of_text
from planner.formats.structured import yaml_settings
from planner.serving.replica import OUTPUT_ONLY, PROMPT_ONLY
from topology.base.errors import InputError

_WORDS = {
    phase: re.compile(words, re.IGNORECASE)
    for phase, words in (
        (PROMPT_ONLY, r"prefill|kv_producer|(?<![a-z])context(?![a-z])|(?<![a-z])ctx(?![a-z])"),
        (OUTPUT_ONLY, r"decod(?:e|er|ing)(?!_)|kv_consumer|(?<![a-z])gen(?:eration)?(?![a-z])"),
    )
}
"""What says the phase of a server, in flags, in names of files, and in keys and labels of manifests."""
_ROLE_FLAGS = (
    "disaggregation_mode", "kv_transfer_config", "server_role", "is_prefill_worker", "is_decode_worker",
)  # fmt: skip
_MOVES = "cache_transceiver_config"
"""What TensorRT-LLM's workers of two pools are told, and others are not."""
_PORT = re.compile(r"(?<!\d)(\d{4,5})(?!\d)")
_PLACES = re.compile(
    r"--(?:static[-_])?(?P<phase>prefill|decode)(?:er|r)?s?"
    r"(?:[-_](?:ports?|hosts?|urls?|addr(?:ess)?(?:es)?|backends?|servers?|endpoints?|instances?|nodes?"
    r"|workers?(?:[-_]urls?)?))?"
)
"""Flags by which routers and proxies are told where workers of a phase listen."""
_PHASE_OF_PLACES = {"prefill": PROMPT_ONLY, "decode": OUTPUT_ONLY}
_DEFAULT_PORTS = {"vLLM": 8000, "SGLang": 30000, "TensorRT-LLM": 8000}
REPLICAS = ("replicas", "replica_count")
"""Keys of how many of a pod a manifest or the values of a chart ask for."""
_SLICES = "slices"
"""Key of how many copies of all its pools a DisaggregatedSet has; replicas are those of one."""
_LABELS = ("type", "name", "role", "pool", "component", "component_type", "sub_component_type")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """A prefill and a decode pool; `replicas` of each are its workers."""

    prefill: Server
    decode: Server
    transport: Transport = ""
    """What their files say that caches travel over."""
    broken: tuple[BrokenLaw, ...] = ()
    """Laws that they break together."""

    @property
    def num_gpus(self) -> int:
        """GPUs of both."""
        return self.prefill.num_gpus + self.decode.num_gpus

    @property
    def is_of_one_kind(self) -> bool:
        """Whether both are on GPUs of one kind."""
        return self.prefill.gpu == self.decode.gpu


def pools_of(
    texts: Mapping[str, str],
    given: Mapping[str, str],
    *,
    model: str | None,
    gpu: str | None,
    cluster: str | None = None,
) -> Pools | Unknown | None:
    """The two pools that files start; None where they start other than one kind of each.

    Raises:
        InputError: A value of the files is not possible.
    """
    texts = {**texts, **mounted_files(texts), **files_of_phases(texts)}
    launches = pool_launches(texts, given)
    phases = {launch.phase for launch in launches}
    if phases != {PROMPT_ONLY, OUTPUT_ONLY}:
        return None
    kinds = _kinds_of_pools(gpu)
    pools = {
        phase: _server(texts, given, launches, phase, model=model, gpu=kinds[phase], cluster=cluster)
        for phase in phases
    }
    missing = [why for pool in pools.values() if isinstance(pool, Unknown) for why in pool.missing]
    prefill, decode = pools[PROMPT_ONLY], pools[OUTPUT_ONLY]
    if isinstance(prefill, Unknown) or isinstance(decode, Unknown):
        return Unknown(missing=tuple(dict.fromkeys(missing)))
    if prefill.model.name != decode.model.name or prefill.engine != decode.engine:
        return Unknown(missing=("two pools of one model and one engine",))
    if prefill.weights != decode.weights:
        return Unknown(missing=("two pools of one precision of weights",))
    if {prefill.gpu, decode.gpu} > {prefill.gpu} and not (prefill.knows_gpu and decode.knows_gpu):
        return Unknown(missing=("the kind of GPU of both pools: --gpu says those of prefill and decode",))
    return Pools(
        prefill=prefill,
        decode=decode,
        transport=transport_of(texts.values()),
        broken=broken_pair(prefill, decode, launches),
    )


def _kinds_of_pools(gpu: str | None) -> dict[str, str | None]:
    """The kind of GPU of each phase, as `--gpu` says it: one of both, or that of prefill before decode's.

    >>> _kinds_of_pools("h100-sxm,h20-sxm"), _kinds_of_pools(None)
    ({'prefill': 'h100-sxm', 'decode': 'h20-sxm'}, {'prefill': None, 'decode': None})
    """
    first, _, second = (gpu or "").partition(",")
    return {PROMPT_ONLY: first or None, OUTPUT_ONLY: second or first or None}


def pool_launches(texts: Mapping[str, str], given: Mapping[str, str]) -> tuple[PoolLaunch, ...]:
    """Every command that starts a worker of a pool, where its phase is known."""
    beside = {Path(name).name: text for name, text in texts.items()}
    ports, moves = _ports_of_routers(texts.values()), any(_MOVES in text for text in texts.values())
    launches: list[PoolLaunch] = []
    silent: list[PoolLaunch] = []
    for name, text in texts.items():
        if (alone := workers_of_file(name, text)) is not None:
            launches.append(PoolLaunch(phase=alone[0], workers=alone[1], file=name, line=0))
            continue
        started, settings = servers_of_text(name, text, given, beside)
        counts = Counter(launch.line for launch, _ in started)
        commands = {launch.line: (launch, command) for launch, command in started}.values()
        around = {line: above(settings, line) if settings else ((), 1) for line in counts}
        phases = {
            launch.line: _phase(
                replace(launch, settings=(*launch.settings, *_of_options(launch, beside))),
                command,
                around[launch.line][0],
                Path(name).name,
                ports,
                moves=moves,
            )
            for launch, command in commands
        }
        rounds = _rounds(commands, phases)
        for launch, command in commands:
            phase = phases[launch.line]
            workers = counts[launch.line] * around[launch.line][1] * rounds[launch.line]
            pool = PoolLaunch(
                phase=phase or "",
                workers=workers,
                file=name,
                line=launch.line,
                options=_options(launch),
                settings=port_settings((*launch.settings, *_of_options(launch, beside)), text),
                program=command.words[0].text if command.words else "",
                sure=command.sure,
                is_script=not settings,
                registers=any(word.text.startswith("dynamo.") for word in command.words),
            )
            if phase is not None:
                launches.append(pool)
            elif pool.registers:
                silent.append(pool)
    if {launch.phase for launch in launches} == {PROMPT_ONLY}:  # a worker of Dynamo decodes unless told
        launches += [replace(pool, phase=OUTPUT_ONLY) for pool in silent]
    return tuple(_as_many_as_routed(launches, ports))


def _rounds(commands: Iterable[tuple[Launch, Started]], phases: Mapping[int, str | None]) -> dict[int, int]:
    """How often loops start each command, by its line: those around servers of one phase alone.

    A loop around both pools starts them anew, as one that tries several loads does.
    """
    inside: dict[int, set[str | None]] = {}
    for launch, command in commands:
        for loop, _ in command.loops:
            inside.setdefault(loop, set()).add(phases[launch.line])
    return {
        launch.line: prod(count for loop, count in command.loops if len(inside[loop]) == 1)
        for launch, command in commands
    }


def _as_many_as_routed(launches: Sequence[PoolLaunch], ports: Mapping[int, str]) -> Iterator[PoolLaunch]:
    """Launches; one command of a phase, such as that of a loop, runs as often as a router has places."""
    for launch in launches:
        alone = sum(other.phase == launch.phase for other in launches) == 1
        routed = sum(phase == launch.phase for phase in ports.values())
        yield replace(launch, workers=max(launch.workers, routed)) if alone else launch


def servers_of_text(
    name: str, text: str, given: Mapping[str, str], beside: Mapping[str, str]
) -> tuple[list[tuple[Launch, Started]], list[Setting]]:
    """Servers of a script or a manifest with their commands, and the settings of the manifest."""
    kind = kind_of(text, name)
    if kind == "shell":
        others = {other: content for other, content in beside.items() if content is not text}
        return servers_started(text, given, others), []
    if kind != "yaml":
        return [], []
    try:
        settings = yaml_settings(text, name)
    except InputError:
        return [], []
    return servers_started(script_of(settings), given, {}), settings


def above(settings: Sequence[Setting], line: int) -> tuple[tuple[Setting, ...], int]:
    """Keys and labels of a manifest that hold for the command of a line, and its replicas."""
    command = min(settings, key=lambda setting: (abs(setting.line - line), -len(setting.name)))
    around = [
        s for s in settings if command.name.startswith(f"{s.name.rpartition('.')[0]}.") or "." not in s.name
    ]
    counts = [s for s in around if s.path[-1] in REPLICAS and whole_or_none(s.value)]
    before = [s for s in counts if s.line <= line]
    if counts and _stand_behind(counts[0], settings):
        before = [s for s in counts if s.line >= line][:1]
    chosen = before[-1] if before else next(iter(counts), None)
    labels = [s for s in settings if s.path[-1] in _LABELS and s.line <= line][-4:]
    copies = whole_or_none(chosen.value) if chosen is not None else None
    slices = prod(whole_or_none(s.value) or 1 for s in around if s.path[-1] == _SLICES)
    return (command, *reversed(labels)), (copies or 1) * slices


def _stand_behind(count: Setting, settings: Sequence[Setting]) -> bool:
    """Whether replicas are told behind the command that they are of, as where all keys are sorted."""
    table = f"{count.name.rpartition('.')[0]}."
    return any(
        s.line < count.line
        and s.name.startswith(table)
        and s.path[-1].removesuffix("[]") in ("args", "command")
        for s in settings
    )


def _ports_of_routers(texts: Iterable[str]) -> dict[int, str]:
    """Phases by the ports that routers and proxies are told of each.

    Flags of servers whose names speak of a phase (``--chunked-prefill-size 8192``) name no port, nor does
    what stands behind a place: the port at which a prefill worker meets others (SGLang's router).

    >>> _ports_of_routers(["proxy --prefiller-ports 8100 8101 --decoder-ports=8200 --port 9000"])
    {8100: 'prefill', 8101: 'prefill', 8200: 'decode'}
    >>> _ports_of_routers(["router --prefill http://a:30000 8998 --decode http://b:30001"])
    {30000: 'prefill', 30001: 'decode'}
    """
    ports: dict[int, set[str]] = {}
    for text in texts:
        phase, key, is_behind = "", "", False
        for line in text.splitlines():
            if (stated := FILE_OF_ROUTER.match(line)) is not None:
                key = PROMPT_ONLY if stated["phase"] == "context" else OUTPUT_ONLY
            elif line[:1].strip():
                key = ""
            for word in line.split():
                if word.startswith("--"):
                    places = _PLACES.fullmatch(word.partition("=")[0])
                    phase = "" if places is None else _PHASE_OF_PLACES[places["phase"]]
                    is_behind = False
                if phase and is_behind and word.isdecimal():
                    continue  # behind a place: where a prefill worker meets others
                is_behind = is_behind or ":" in word
                for port in _PORT.findall(word) if phase or key else ():
                    ports.setdefault(int(port), set()).add(phase or key)
            phase = phase if line.rstrip().endswith("\\") else ""
    return {port: phases.pop() for port, phases in ports.items() if len(phases) == 1}


def _phase(
    launch: Launch,
    command: Started,
    outside: Sequence[Setting],
    file: str,
    ports: Mapping[int, str],
    *,
    moves: bool,
) -> str | None:
    """What a server of a pool computes; None where it serves whole requests, or nothing says it."""
    flags = {setting.path[-1]: str(setting.value) for setting in launch.settings}
    roles = [f"{name} {flags[name]}" for name in _ROLE_FLAGS if name in flags]
    for text in roles:
        if (phase := _named(text)) is not None:
            return phase
    names = (*(f"{s.name} {s.value}" if i == 0 else str(s.value) for i, s in enumerate(outside)), file)
    options = " ".join(_options(launch))
    transfers = bool(roles) or (moves and _named(options) is not None)
    transfers |= any("disagg" in word.text.lower() for word in command.words)
    port = int(flags["port"]) if flags.get("port", "").isdecimal() else _DEFAULT_PORTS.get(launch.family.name)
    if port is not None and port in ports and (transfers or len(set(ports.values())) > 1):
        return ports[port]
    if not transfers:
        return None
    return next((phase for text in (options, *names) if (phase := _named(text)) is not None), None)


def _options(launch: Launch) -> tuple[str, ...]:
    """Files of options that a command names."""
    named = (setting for setting in launch.settings if setting.path[-1].replace("-", "_") in OPTION_FILES)
    return tuple(Path(str(setting.value)).name for setting in named)


def _of_options(launch: Launch, beside: Mapping[str, str]) -> Iterator[Setting]:
    """What says its phase in the files of options that a command names."""
    for name in _options(launch):
        try:
            settings = yaml_settings(beside.get(name, ""), name)
        except InputError:
            continue
        for setting in settings:
            if (word := setting.path[-1].replace("-", "_")) in (
                *_ROLE_FLAGS,
                "port",
                "page_size",
                "block_size",
            ):
                yield replace(setting, name=word)


def _named(text: str) -> str | None:
    """The one phase that a text names."""
    phases = [phase for phase, words in _WORDS.items() if words.search(text)]
    return phases[0] if len(phases) == 1 else None


def _server(
    texts: Mapping[str, str],
    given: Mapping[str, str],
    launches: Sequence[PoolLaunch],
    phase: str,
    *,
    model: str | None,
    gpu: str | None,
    cluster: str | None,
) -> Server | Unknown:
    """The workers of a phase: all of its commands must start the same."""
    servers: list[Server] = []
    for launch in launches:
        if launch.phase == phase:
            reading = read_texts(dict(_texts_for(texts, launches, launch)), given, mounts=False)
            server = server_of(
                reading, model=model, gpu=gpu, cluster=cluster, configs=configs_of(texts), of_pool=True
            )
            if isinstance(server, Unknown):
                return server
            assumed = tuple(dict.fromkeys((*reading.doubts, *server.assumed)))
            servers.append(replace(server, replicas=server.replicas * launch.workers, assumed=assumed))
    alike = {replace(server, replicas=1, assumed=()) for server in servers}
    if len(alike) > 1:
        return Unknown(missing=(f"a {phase} pool of equal workers: its commands differ",))
    return replace(servers[0], replicas=sum(server.replicas for server in servers))


def _texts_for(
    texts: Mapping[str, str], launches: Sequence[PoolLaunch], wanted: PoolLaunch
) -> Iterator[tuple[str, str]]:
    """The command of a worker, with the files that start nothing."""
    if not wanted.line:  # a file of its own says all of them
        yield wanted.file, texts[wanted.file]
        return
    yield f"{wanted.file}::{wanted.line}", texts[wanted.file]
    left_out = {launch.file for launch in launches} | {wanted.file}
    left_out |= {name for launch in launches for name in launch.options} - set(wanted.options)
    for name, text in texts.items():
        starts = kind_of(text, name) in ("shell", "page") and script_of_text(text).started
        if not {name, Path(name).name} & left_out and not starts and not FILE_OF_ROUTER.search(text):
            yield name, text
