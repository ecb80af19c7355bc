"""How many equal servers files start: scripts of several nodes, places of a router, replicas of manifests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from planner.audit.launch import Launch
from planner.audit.read import inner_documents
from planner.audit.serving.pools import REPLICAS, above, servers_of_text
from planner.audit.serving.server import Server
from planner.formats.kinds import UPSTREAM, kind_of
from planner.formats.settings import NOT_KNOWN, Setting, whole_or_none
from planner.formats.structured import yaml_settings
from topology.base.errors import InputError

_FLAGS_OF_PLACE = frozenset({
    "port", "host", "headless", "api_server_count", "nnodes", "node_rank", "master_addr", "master_port",
    "dist_init_addr", "served_model_name", "uvicorn_log_level", "log_level", "nccl_port",
    "data_parallel_size_local", "data_parallel_start_rank", "data_parallel_address", "data_parallel_rpc_port",
})  # fmt: skip
"""Flags by which equal servers differ: where each listens, and who its other nodes are."""
_LATER = ("node_rank", "data_parallel_rank", "data_parallel_start_rank")
"""Flags of a rank or node of one server that begins elsewhere, where they are not 0."""
_WORKERS = re.compile(r"--worker-urls?[ =]+((?:[\"']?https?://[^\s\"'\\]+[\"']?[\s\\]*)+)")
_COMMENT = re.compile(r"#[^\n]*")
_PLACE = re.compile(r"(?:^|[;{\s])server\s+([^\s;]+)([^;]*);")
_URL = re.compile(r"https?://[^\s\"'\\]+")
_FRONT = re.compile(
    r"router|frontend|gateway|proxy|loadbalancer|ingress|epp|monitor|cache|head_?group|worker_?group",
    re.IGNORECASE,
)
"""What of a chart stands before servers or beside them; groups of a Ray cluster are hosts of one."""

_OF_RAY = "num_replicas"
"""Key of the copies of a deployment of Ray Serve."""


def with_copies(server: Server, texts: Mapping[str, str], given: Mapping[str, str]) -> Server:
    """The server with as many replicas as files start of it; what is not counted is said.

    Files of several kinds (scripts, manifests) describe one fleet, so that the larger number holds.
    """
    named = [Counter(_of_scripts(texts, given)), Counter(_of_manifests(texts, given))]
    most = max((count for counted in named for count in counted.values()), default=1)
    if any(len(counted) > 1 for counted in named):
        total = max(sum(counted.values()) for counted in named)
        note = (f"{total} servers are named that differ; one is judged, and the rate is its own",)
        return replace(server, assumed=(*server.assumed, *note))
    copies = max(most, _routed(texts), 1)
    if copies == 1:
        return server
    note = (f"{copies} equal servers share the load evenly: the files start or name as many",)
    return replace(server, replicas=server.replicas * copies, assumed=(*server.assumed, *note))


def _words(launch: Launch) -> str:
    """What a command says of its server, without what is its own among equals."""
    words = {_name(setting): str(setting.value) for setting in launch.settings}
    return repr(sorted(word for word in words.items() if word[0] not in _FLAGS_OF_PLACE))


def _name(setting: Setting) -> str:
    return setting.path[-1].lstrip("-").replace("-", "_")


def begins(launch: Launch) -> bool:
    """Whether a command starts a server, and not a further node or rank of one."""
    flags = {_name(setting): setting.value for setting in launch.settings}
    later = any(whole_or_none(flags[name]) for name in _LATER if name in flags)
    return "headless" not in flags and not later


def _of_scripts(texts: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    """Servers of scripts: those of one script listen at ports of their own, or one is started anew."""
    beside = {Path(name).name: text for name, text in texts.items()}
    for name, text in texts.items():
        if kind_of(text, name) != "shell":
            continue
        places = set()
        for launch, _ in servers_of_text(name, text, given, beside)[0]:
            if begins(launch):
                ports = [str(s.value) for s in launch.settings if _name(s) == "port" and s.value != NOT_KNOWN]
                places.add((_words(launch), *ports[:1]))
        yield from (words for words, *_ in sorted(places))


def _of_manifests(texts: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    """Servers of manifests, as often as each asks for; those of a chart's values, which have no command."""
    for name, text in texts.items():
        if kind_of(text, name) != "yaml":
            continue
        started, settings = servers_of_text(name, text, given, {})
        for launch in {launch.line: launch for launch, _ in started}.values():
            if begins(launch):
                yield from [_words(launch)] * above(settings, launch.line)[1]
        if not started:
            yield from [""] * _asked_by_values(text, name)


def _asked_by_values(text: str, name: str) -> int:
    """Servers that the values of a chart ask for; 0 where several numbers could be meant, or none."""
    try:
        outer = yaml_settings(text, name)
        settings = [*outer, *inner_documents(outer, name)]
    except InputError:
        return 0
    names = (*REPLICAS, _OF_RAY)
    counts = [s for s in settings if s.path[-1] in names and not _FRONT.search(".".join(s.path[:-1]))]
    return whole_or_none(counts[0].value) or 0 if len(counts) == 1 else 0


def _routed(texts: Mapping[str, str]) -> int:
    """Places that a router is told of: by its flags, or in a block ``upstream`` of nginx.

    >>> _routed({"router.sh": "vllm-router --worker-urls http://a:8000 http://b:8000 --port 80"})
    2
    >>> _routed({"nginx.conf": "upstream llm { least_conn; server a:80; server b:80 weight=2; }"})
    2
    """
    places = [set(_URL.findall(match[1])) for text in texts.values() for match in _WORKERS.finditer(text)]
    blocks = [_COMMENT.sub("", match[1]) for text in texts.values() for match in UPSTREAM.finditer(text)]
    places += [
        {place for place, rest in _PLACE.findall(block) if "down" not in rest.split()} for block in blocks
    ]
    return max((len(names) for names in places), default=0)
