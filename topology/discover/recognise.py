"""Which tool wrote a dump, told from its text alone."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from topology.base.errors import InputError
from topology.base.files import read_text
from topology.discover.fabric import FabricFacts
from topology.discover.formats import (
    clouds,
    diagram,
    kubernetes,
    netq,
    node_list,
    nvidia_smi,
    rocm,
    slurm_conf,
    slurm_nodes,
    slurm_yaml,
    topograph,
)
from topology.discover.formats.ibstat import from_ibstat, is_ibstat
from topology.discover.formats.infiniband import from_ibnetdiscover
from topology.discover.node import NodeFacts, from_nccl_xml, from_smi_topo
from topology.discover.trees import Tree, trees_of

DumpFacts = NodeFacts | FabricFacts
KNOWN = (
    "Slurm topology or node list, scontrol show node or job, sinfo, Kubernetes, AWS, Google, OCI, Ray or "
    "NetQ nodes, topograph, ibnetdiscover, ibstat, nvidia-smi topo -m, -q -x or -L, rocm-smi --showtopo, NCCL"
)
_ENVIRONMENT = re.compile(
    r"^(?:\d+:\s+)?(?:export |declare -x )?SLURM_(?:\w*NODELIST|TOPOLOGY_ADDR|JOB_ID)=", re.MULTILINE
)
_YAML = re.compile(r"^(?:---|\s*- \w+:|\w+:(?:\s|$))", re.MULTILINE)


def read_facts(path: str | Path) -> DumpFacts:
    """Return the facts of a dump, recognising which tool wrote it."""
    return dump_facts(read_text(path), str(path))


def dump_facts(text: str, where: str = "the text") -> DumpFacts:
    """Return the facts of the text of a dump."""
    reader = next((read for recognised, read in _READERS if recognised(text)), None)
    if reader is not None:
        return reader(text)
    if text.lstrip()[:1] in ("{", "[") or _YAML.search(text):
        return _of_documents(trees_of(text, where), where)
    raise _unknown(where)


def _is_matrix(text: str) -> bool:
    return text.lstrip()[:1] not in ("{", "[") and "GPU0" in text and "SLURM_" not in text


def _is_environment(text: str) -> bool:
    return bool(_ENVIRONMENT.search(text))


_READERS: Sequence[tuple[Callable[[str], bool], Callable[[str], DumpFacts]]] = (
    (nvidia_smi.is_query, nvidia_smi.from_query),
    (lambda text: text.lstrip()[:1] == "<", from_nccl_xml),
    (lambda text: any(mark in text for mark in ("switchguid=", "caguid=", "\nSwitch\t")), from_ibnetdiscover),
    (rocm.is_topology, rocm.from_topology),
    (_is_matrix, from_smi_topo),
    (nvidia_smi.is_list, nvidia_smi.from_list),
    (is_ibstat, from_ibstat),
    (slurm_nodes.is_of_job, slurm_nodes.from_job),
    (slurm_nodes.is_of_nodes, slurm_nodes.from_nodes),
    (kubernetes.is_description, kubernetes.from_description),
    (slurm_conf.is_topology_conf, slurm_conf.from_topology_conf),
    (_is_environment, node_list.from_environment),
    (node_list.is_node_list, node_list.from_node_list),
    (diagram.is_diagram, diagram.from_diagram),
    (kubernetes.is_label_table, kubernetes.from_label_table),
)
"""What recognises the text of a tool, and what reads it: the first holds."""


def _of_documents(documents: list[Tree], where: str) -> DumpFacts:
    """Return the facts of JSON or YAML documents."""
    first = documents[0] if documents else None
    if slurm_yaml.is_topology_yaml(first):
        return slurm_yaml.from_topology_yaml(first)
    if topograph.is_model(first):
        return topograph.from_model(first)
    if kubernetes.is_cliques(first):
        return kubernetes.from_cliques(first)
    if netq.is_compute_nodes(first):
        return netq.from_compute_nodes(first)
    if netq.is_graph(first):
        return netq.from_graph(first)
    objects = kubernetes.objects_of(documents)
    if objects:
        return kubernetes.from_objects(objects)
    reader = clouds.reader_of(first)
    if reader is not None:
        return reader(first)
    raise _unknown(where)


def _unknown(where: str) -> InputError:
    return InputError(
        f"{where} is not recognised",
        f"it is none of: {KNOWN}",
        "give the unchanged output of one of these tools",
    )
