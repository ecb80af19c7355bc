"""From what machines and fabrics say about themselves to a cluster description.

What a dump leaves open (bandwidths, prices) is filled from the reference machine of the GPU, and every such
assumption is a note; every figure that was read carries its source.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from topology.base.errors import InputError, shortened, shown
from topology.builders import machine_node, machine_spec
from topology.discover.fabric import FabricFacts
from topology.discover.formats.products import gpu_of_product, is_kind
from topology.discover.layout import (
    hosts_in_order,
    known_gpu,
    most_hosts_per_domain,
    node_entries,
    one_fabric_of,
    require_possible_domain,
    taken,
    tiers_of,
)
from topology.discover.merge import one_fabric, one_node
from topology.discover.node import NodeFacts
from topology.discover.places import Figure, Place, domains_of, sizes
from topology.discover.recognise import DumpFacts, dump_facts, read_facts
from topology.hardware.datasheets import GpuSheet, gpu_sheets, machine_of_type, reference_machine, sheet_named
from topology.spec import ClusterSpec, NodeSpec, TierSpec
from topology.spec_rules import MAX_GPUS, MOST_DRAWN

__all__ = ["Discovery", "DumpFacts", "discover", "discover_files", "dump_facts", "read_facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """A cluster description, what was read and where, and what was assumed or not understood on the way.

    `counts_hosts` says that a dump lists the hosts, so that there are no more than it has.
    """

    spec: ClusterSpec
    notes: tuple[str, ...]
    figures: tuple[Figure, ...] = ()
    counts_hosts: bool = False


def discover_files(paths: Sequence[str | Path], gpu: str = "", hosts: int | None = None) -> Discovery:
    """Return the cluster that files describe."""
    return discover([read_facts(path) for path in paths], gpu, hosts)


def discover(
    facts: Sequence[DumpFacts], gpu: str = "", hosts: int | None = None, name: str = "discovered"
) -> Discovery:
    """Return the cluster that dumps of its nodes, of its fabric and of a job's allocation describe.

    Args:
        facts: of a node, of the fabric, of the hosts, in any number.
        gpu: the GPU, where no dump names it.
        hosts: how many such nodes, where no dump of the fabric counts them (default 1).
        name: what to call the cluster.
    """
    node = one_node([fact for fact in facts if isinstance(fact, NodeFacts)])
    fabric = one_fabric([fact for fact in facts if isinstance(fact, FabricFacts)])
    if node is None and fabric is None:
        raise InputError(
            "nothing was discovered", "no dump was given", "give the output of nvidia-smi topo -m"
        )
    sheet = _sheet(gpu, node, fabric)
    reference = reference_machine(sheet)
    count = hosts or (len(fabric.places) if fabric else 1)
    base = machine_spec(reference, reference.gpus_per_node)
    entry = replace(
        machine_node(reference, 1), nodes_per_domain=min(reference.nodes_per_domain, count), count=count
    )
    notes = [f"not in the dumps, taken from {reference.name}: price, latencies, PCIe bandwidth"]
    if node:
        entry = _with_node(entry, node, sheet, notes)
    spec = replace(base, name=name, nodes=(entry,))
    if fabric:
        spec = _with_fabric(spec, fabric, sheet, hosts, notes)
    else:
        whole = machine_spec(reference, reference.gpus_per_node * count)
        spec = replace(spec, tiers=whole.tiers)
    values = tuple(
        f"{fact.source}: {note}" for fact in facts if isinstance(fact, NodeFacts) for note in fact.notes
    )
    values += tuple(f"{fabric.source}: {note}" for note in fabric.notes) if fabric else ()
    figures = tuple(figure for fact in facts for figure in (fact.figures or _figures(fact)))
    return Discovery(
        spec=spec, notes=(*values, *notes), figures=figures, counts_hosts=bool(fabric and fabric.places)
    )


def _figures(fact: DumpFacts) -> tuple[Figure, ...]:
    """Return what a dump of a node told, where its reader does not say it itself."""
    if isinstance(fact, FabricFacts):
        return ()
    figures = [("GPUs per node", str(fact.gpus))]
    figures += [("NICs per node", str(fact.nics))] if fact.nics else []
    figures += [("GPU", fact.gpu)] if fact.gpu else []
    figures += [("scale-up links", fact.scaleup)] if fact.scaleup else []
    if fact.nic_bandwidth_bytes_per_s:
        figures.append(("NIC rate", f"{fact.nic_bandwidth_bytes_per_s:.4g} bytes/s"))
    return tuple(Figure(name=name, value=value, source=fact.source) for name, value in figures)


def _sheet(gpu: str, node: NodeFacts | None, fabric: FabricFacts | None) -> GpuSheet:
    """Return the GPU that is planned for; one that is named must not contradict what the dumps say."""
    of_node = node.gpu if node else ""
    of_hosts = tuple(dict.fromkeys(place.gpu for place in fabric.places if place.gpu)) if fabric else ()
    text = of_node or (known_gpu(fabric.places) if fabric else "")
    if not (gpu or text):
        cause = "the dump does not name it"
        raise InputError("the kind of GPU is not known", cause, "add --gpu, for example --gpu h100-sxm")
    sheet = sheet_named(gpu or gpu_of_product(text) or text)
    source, chosen = ("--gpu", shown(gpu)) if gpu else (node.source if node else "", shown(of_node))
    if gpu and node and of_node and not is_kind(of_node, sheet.name):
        raise _contradiction(f"{source} {chosen}", f"{node.source} {shown(of_node)}", of_node)
    if fabric and of_hosts and not any(is_kind(kind, sheet.name) for kind in of_hosts):
        kinds = " and ".join(map(shown, of_hosts))
        raise _contradiction(f"{source} {chosen}", f"{fabric.source} {kinds}", of_hosts[0])
    return sheet


def _contradiction(first: str, second: str, kind: str) -> InputError:
    """Return the refusal of two kinds of GPU for the same hosts."""
    return InputError(
        what="two kinds of GPU are stated for the same hosts",
        cause=f"{first}, and {second}",
        fix=f"leave --gpu out, or use --gpu {kind} or another dump",
    )


def _with_node(base: NodeSpec, node: NodeFacts, sheet: GpuSheet, notes: list[str]) -> NodeSpec:
    """Return a node entry with what one machine told; notes what stays assumed."""
    if not node.gpus:
        cause = "; ".join(node.notes) or "no GPU is listed in it"
        raise InputError(
            f"the {node.source} has no GPUs that can be told",
            cause,
            "give a dump of its GPUs too: nvidia-smi topo -m",
        )
    rate = sheet.scaleup_bandwidth_bytes_per_s
    if node.links_per_gpu and sheet.scaleup_links:
        rate *= node.links_per_gpu / sheet.scaleup_links
    if node.nics and node.nic_bandwidth_bytes_per_s is None:
        notes.append(f"NIC rate taken from {sheet.machine}")
    scaleup = node.scaleup or base.scaleup
    if scaleup == "pcie" and base.scaleup != "pcie" and node.gpus > 1:
        notes.append(
            f"no link joins the GPUs of {node.source}, and {sheet.name} has {base.scaleup}: PCIe is planned "
            "for; a driver without its fabric manager shows so, and topo -mp leaves links out"
        )
    spans = scaleup == "nvswitch" and node.spans_hosts is not False
    listed = node.source.startswith(("nvidia-smi -q", "nvidia-smi -L", "rocm-smi")) and not node.nics
    return replace(
        base,
        gpus_per_node=node.gpus,
        scaleup=scaleup,
        scaleup_bandwidth_bytes_per_s=rate if scaleup != "pcie" else 0.0,
        nodes_per_domain=base.nodes_per_domain if spans else 1,
        nics_per_node=-(-base.nics_per_node * node.gpus // base.gpus_per_node) if listed else node.nics,
        nic_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s or base.nic_bandwidth_bytes_per_s,
    )


def _with_fabric(
    spec: ClusterSpec, fabric: FabricFacts, sheet: GpuSheet, hosts: int | None, notes: list[str]
) -> ClusterSpec:
    """Return a spec with the hosts, tiers, rails and NICs a fabric told."""
    (node,) = spec.nodes
    node = replace(
        node,
        nics_per_node=fabric.nics_per_host or node.nics_per_node,
        nic_bandwidth_bytes_per_s=fabric.nic_bandwidth_bytes_per_s or node.nic_bandwidth_bytes_per_s,
    )
    places, values = one_fabric_of(fabric.places)
    notes += values
    if values and fabric.of_job and len(fabric.places) > len(places) and fabric.known == {}:
        notes.append("no job spans separate fabrics: check the list of nodes")
    most = most_hosts_per_domain(sheet.name)
    require_possible_domain(places, sheet.name, fabric.domain_word or "domain", node.gpus_per_node)
    places = taken(hosts_in_order(places), hosts)
    domains = domains_of(places)
    if most > 1 and not domains and len(places) > 1:
        notes.append(
            f"which hosts share a scale-up domain is not said: each host of {sheet.name} is planned for alone"
        )
    if most == 1 and domains:
        word = fabric.domain_word or "domain"
        notes.append(
            f"{sheet.name} has no scale-up links between hosts: {word}s of {sizes(domains.values())} nodes "
            "are groups only"
        )
        places = tuple(replace(place, domain="") for place in places)
    entries = node_entries(
        places,
        lambda place: _node_of_place(node, place, sheet),
        spans=most > 1 and node.scaleup == "nvswitch",
    )
    total = sum(entry.count * entry.gpus_per_node for entry in entries)
    if total > MAX_GPUS:
        fix = "plan on a part: give the job's list of nodes"
        raise InputError(
            "this allocation is not possible", f"it has {total:,} GPUs, more than {MAX_GPUS:,}", fix
        )
    latency_s = spec.tiers[0].latency_s if spec.tiers else 0.0
    tiers, cut = tiers_of(places, fabric.tiers, latency_s)
    notes += dict.fromkeys(cut)
    rails = spec.rail_optimized if fabric.rails is None else fabric.rails > 1
    if not tiers:
        ratio = fabric.tiers[0].oversubscription
        tiers = [
            TierSpec(name="leaf", nodes_per_unit=len(places), latency_s=latency_s, oversubscription=ratio)
        ]
    return _drawable(replace(spec, nodes=entries, tiers=tuple(tiers), rail_optimized=rails), notes)


def _node_of_place(node: NodeSpec, place: Place, sheet: GpuSheet) -> NodeSpec:
    """Return a node with what its host's own source told: its machine, its GPU, how many."""
    machine = machine_of_type(place.machine) if place.machine else None
    if machine is not None and machine.gpu == sheet.name:
        node = replace(machine_node(machine, 1), nic_latency_s=node.nic_latency_s)
    elif place.gpu in gpu_sheets() and not is_kind(place.gpu, sheet.name):
        node = machine_node(
            machine if machine and machine.gpu == place.gpu else reference_machine(gpu_sheets()[place.gpu]),
            1,
        )
    if place.gpus and place.gpus != node.gpus_per_node:
        nics = -(-node.nics_per_node * place.gpus // node.gpus_per_node)
        node = replace(node, gpus_per_node=place.gpus, nics_per_node=nics)
    return node


def _drawable(spec: ClusterSpec, notes: list[str]) -> ClusterSpec:
    """Return a spec whose graph can be drawn: racks that differ, unless they are too many."""
    if not any(tier.units for tier in spec.tiers):
        return spec
    drawn = sum(node.count * (node.gpus_per_node + node.nics_per_node) for node in spec.nodes)
    if drawn <= MOST_DRAWN // 2:
        return spec
    notes.append(
        f"{shortened(spec.name)} is too large to draw racks that differ: it is planned for as one tier"
    )
    tier = replace(spec.tiers[0], nodes_per_unit=spec.num_nodes, units=None)
    return replace(spec, tiers=(tier,))
