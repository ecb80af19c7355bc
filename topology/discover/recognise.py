"""Which tool wrote a dump, told from its text alone."""

import re
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
    slurm_yaml,
    topograph,
)
from topology.discover.formats.infiniband import from_ibnetdiscover
from topology.discover.node import NodeFacts, from_nccl_xml, from_smi_topo
from topology.discover.trees import Tree, trees_of

DumpFacts = NodeFacts | FabricFacts
KNOWN = (
    "Slurm topology or node list, Kubernetes, AWS, Google, OCI, Ray or NetQ nodes, topograph, ibnetdiscover, "
    "nvidia-smi topo -m or -q -x, rocm-smi --showtopo, NCCL"
)
_YAML = re.compile(r"^(?:---|\s*- \w+:|\w+:(?:\s|$))", re.MULTILINE)


def read_facts(path: str | Path) -> DumpFacts:
    """Return the facts of a dump, recognising which tool wrote it."""
    return dump_facts(read_text(path), str(path))


def dump_facts(text: str, where: str = "the text") -> DumpFacts:
    """Return the facts of the text of a dump."""
    start = text.lstrip()[:1]
    if start == "<":
        return nvidia_smi.from_query(text) if nvidia_smi.is_query(text) else from_nccl_xml(text)
    if "switchguid=" in text or "caguid=" in text or "\nSwitch\t" in text:
        return from_ibnetdiscover(text)
    if rocm.is_topology(text):
        return rocm.from_topology(text)
    if start not in ("{", "[") and "GPU0" in text and "SLURM_" not in text:
        return from_smi_topo(text)
    if slurm_conf.is_topology_conf(text):
        return slurm_conf.from_topology_conf(text)
    if re.search(
        r"^(?:\d+:\s+)?(?:export |declare -x )?SLURM_(?:\w*NODELIST|TOPOLOGY_ADDR|JOB_ID)=",
        text,
        re.MULTILINE,
    ):
        return node_list.from_environment(text)
    if node_list.is_node_list(text):
        return node_list.from_node_list(text)
    if diagram.is_diagram(text):
        return diagram.from_diagram(text)
    if kubernetes.is_label_table(text):
        return kubernetes.from_label_table(text)
    if start in ("{", "[") or _YAML.search(text):
        return _of_documents(trees_of(text, where), where)
    raise _unknown(where)


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
