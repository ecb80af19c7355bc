"""From what machines and fabrics say about themselves to a cluster description.

The format is recognised from the text. What a dump leaves open (bandwidths, prices) is filled from the
reference machine of the GPU, and every such assumption is a note.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from topology.base.decode import read_text
from topology.base.errors import InputError
from topology.builders import machine_spec
from topology.discover.fabric import FabricFacts, from_ibnetdiscover, from_topograph
from topology.discover.node import NodeFacts, from_nccl_xml, from_smi_topo
from topology.hardware.datasheets import GpuSheet, machines, sheet_named
from topology.spec import ClusterSpec, NodeSpec, TierSpec

DumpFacts = NodeFacts | FabricFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """A cluster description, and what was assumed or not understood on the way to it."""

    spec: ClusterSpec
    notes: tuple[str, ...]


def read_facts(path: str | Path) -> DumpFacts:
    """Return the facts of a dump, recognising which tool wrote it."""
    return facts_of(read_text(path), str(path))


def facts_of(text: str, where: str = "the text") -> DumpFacts:
    """Return the facts of the text of a dump."""
    if text.lstrip().startswith("<"):
        return from_nccl_xml(text)
    if "switchguid=" in text or "\nSwitch\t" in text:
        return from_ibnetdiscover(text)
    if "GPU0" in text:
        return from_smi_topo(text)
    if "blocks:" in text:
        return from_topograph(text)
    cause = "it is none of nvidia-smi topo -m, an NCCL topology, ibnetdiscover, a topograph model"
    raise InputError(f"{where} is not recognised", cause, "give the unchanged output of one of these tools")


def discover(
    facts: Sequence[DumpFacts], gpu: str = "", hosts: int | None = None, name: str = "discovered"
) -> Discovery:
    """Return the cluster that dumps of one of its nodes and of its fabric describe.

    Args:
        facts: of a node, of the fabric, or of both.
        gpu: the GPU, where no dump names it.
        hosts: how many such nodes, where no dump of the fabric counts them (default 1).
        name: what to call the cluster.
    """
    node = next((fact for fact in facts if isinstance(fact, NodeFacts)), None)
    fabric = next((fact for fact in facts if isinstance(fact, FabricFacts)), None)
    if node is None and fabric is None:
        raise InputError(
            "nothing was discovered", "no dump was given", "give the output of nvidia-smi topo -m"
        )
    sheet = _sheet(gpu or (node.gpu if node else ""))
    reference = machines()[sheet.machine]
    count = hosts or (fabric.hosts if fabric else 1)
    base = machine_spec(reference, reference.gpus_per_node * count)
    spec = replace(base, name=name, nodes=(replace(base.nodes[0], count=count),))
    notes = [f"not in the dumps, taken from {reference.name}: price, latencies, PCIe bandwidth"]
    if node:
        spec = replace(spec, nodes=(_with_node(spec.nodes[0], node, sheet, notes),))
    if fabric:
        spec = _with_fabric(spec, fabric)
    told = tuple(f"{fact.source}: {note}" for fact in facts for note in fact.notes)
    return Discovery(spec=spec, notes=(*notes, *told))


def _sheet(gpu: str) -> GpuSheet:
    if not gpu:
        cause = "the dump does not name it"
        raise InputError("the kind of GPU is not known", cause, "add --gpu, for example --gpu h100-sxm")
    return sheet_named(gpu)


def _with_node(base: NodeSpec, node: NodeFacts, sheet: GpuSheet, notes: list[str]) -> NodeSpec:
    """Return a node entry with what one machine told; notes what stays assumed."""
    if not node.gpus:
        cause = "; ".join(node.notes) or "no GPU is listed in it"
        raise InputError(f"the {node.source} has no GPUs that can be told", cause, "give another dump")
    rate = sheet.scaleup_bandwidth_bytes_per_s
    if node.links_per_gpu and sheet.scaleup_links:
        rate *= node.links_per_gpu / sheet.scaleup_links
    if node.nics and node.nic_bandwidth_bytes_per_s is None:
        notes.append(f"NIC rate taken from {sheet.machine}")
    scaleup = node.scaleup or base.scaleup
    return replace(
        base,
        gpus_per_node=node.gpus,
        scaleup=scaleup,
        scaleup_bandwidth_bytes_per_s=rate if scaleup != "pcie" else 0.0,
        nodes_per_domain=base.nodes_per_domain if scaleup == "nvswitch" else 1,
        nics_per_node=node.nics,
        nic_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s or base.nic_bandwidth_bytes_per_s,
    )


def _with_fabric(spec: ClusterSpec, fabric: FabricFacts) -> ClusterSpec:
    """Return a spec with the tiers, rails and NICs a fabric told."""
    node = spec.nodes[0]
    domain = min(fabric.hosts_per_domain, spec.num_nodes) if node.nodes_per_domain > 1 else 1
    latency_s = spec.tiers[0].latency_s if spec.tiers else 0.0
    tiers = tuple(
        TierSpec(
            name=tier.name,
            nodes_per_unit=-(-tier.hosts_per_unit // domain) * domain,
            oversubscription=tier.oversubscription,
            latency_s=latency_s,
        )
        for tier in fabric.tiers
    )
    node = replace(
        node,
        nodes_per_domain=domain,
        nics_per_node=fabric.nics_per_host or node.nics_per_node,
        nic_bandwidth_bytes_per_s=fabric.nic_bandwidth_bytes_per_s or node.nic_bandwidth_bytes_per_s,
    )
    rails = spec.rail_optimized if fabric.rails is None else fabric.rails > 1
    return replace(spec, nodes=(node,), tiers=tiers, rail_optimized=rails)
