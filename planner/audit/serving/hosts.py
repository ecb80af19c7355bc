"""On which hosts a server lies: GPUs of each as files say, or a cluster that is described.

With ``--nnodes`` an engine starts the ranks of a replica evenly on so many hosts (SGLang 0.5.23,
`_calculate_rank_ranges`; vLLM 0.33, `ParallelConfig.local_world_size`). Ranks that split a layer and
lie on several hosts meet over the network at every layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.audit.manifests import machines_of
from planner.audit.serving.server import Server
from planner.formats.kinds import kind_of
from planner.formats.settings import whole_or_none
from planner.formats.structured import yaml_settings
from planner.questions.serving.understand import Asked
from topology.base.errors import InputError
from topology.base.units import format_bandwidth
from topology.builders import default_cluster
from topology.fabric.hierarchy import Hierarchy

_RAY = re.compile(r"\bray start\b[^\n]*--num-gpus[= ](\d{1,2})\b")


def with_hosts(server: Server, texts: Mapping[str, str]) -> Server:
    """The server on hosts of as many GPUs as its pods have, or Ray is told of, where a replica needs more.

    What ``--nnodes`` says holds over both.
    """
    if server.host_gpus is not None or server.cluster:
        return server
    each = {int(count) for text in texts.values() for count in _RAY.findall(text)}
    for name, text in texts.items():
        each |= set(_of_pods(name, text))
    few = len(each) == 1 and 0 < min(each) < server.layout.num_gpus
    return replace(server, host_gpus=min(each)) if few and server.layout.num_gpus % min(each) == 0 else server


def _of_pods(name: str, text: str) -> Iterator[int]:
    """GPUs of a pod, of a manifest."""
    if kind_of(text, name) != "yaml":
        return
    try:
        settings = yaml_settings(text, name)
    except InputError:
        return
    counts = (whole_or_none(s.value) for s in machines_of(settings) if s.name == "gpus_per_node")
    yield from (count for count in counts if count)


def on_hosts(server: Server, asked: Asked) -> Asked:
    """A question on the hosts of a server."""
    if server.cluster:
        return asked
    requests = tuple((request, hierarchy_of(server, fabric)) for request, fabric in asked.requests)
    return replace(asked, requests=requests)


def hierarchy_of(server: Server, usual: Hierarchy) -> Hierarchy:
    """The fabric of a server: hosts of as many GPUs as its files say, else as in usual machines.

    Links within a host and between hosts are those of the usual machine of the GPU.
    """
    each = server.host_gpus
    if each is None or each >= usual.gpus_per_host:
        return usual
    hosts = -(-usual.num_gpus // each)
    return default_cluster(server.gpu, hosts * each, gpus_per_node=each).hierarchy


def spanned(server: Server, hierarchy: Hierarchy) -> Iterator[tuple[str, str]]:
    """Tensor parallelism over hosts: what it costs, and what helps."""
    tp, each = server.layout.tp, hierarchy.gpus_per_node
    if tp <= each:
        return
    hosts, network = -(-tp // each), hierarchy.levels[-1] if hierarchy.levels else None
    taken = "" if server.cluster else ", as its usual machine has (--cluster)"
    rate = "" if network is None else f" at {format_bandwidth(network.uplink_bytes_per_s)} a GPU{taken}"
    inside = max((size for size in range(1, each + 1) if tp % size == 0), default=1)
    where = f"tp {tp} spans {hosts} hosts of {each} GPU{'s' * (each > 1)}"
    stages = f"lay stages over hosts: tp {inside}, pp {server.layout.pp * tp // inside}"
    more = "take hosts of more GPUs, or " if inside == 1 else "keep tp in a host and "
    yield f"{where}: every all-reduce of every layer crosses the network{rate}", f"{more}{stages}"
