"""What clouds say about instances: AWS and OCI topology, Google's hosts; and Ray's nodes."""

import re
from collections.abc import Callable, Mapping, Sequence

from topology.base.errors import InputError
from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.formats.labels import place_of_labels
from topology.discover.formats.products import gpu_of_product
from topology.discover.places import Figure, Place
from topology.discover.trees import Tree, small_whole, table_in, tables_in, word
from topology.hardware.datasheets import machine_of_type

_ORACLE = (
    ("hpcislandid", "customerhpcislandid"), ("networkblockid", "networkblock", "customernetworkblock"),
    ("localblockid", "localblock", "customerlocalblock"),
)  # fmt: skip
_ORACLE_DOMAIN = ("gpumemoryfabricid", "customergpumemoryfabric", "gpumemoryfabric")


def reader_of(document: Tree) -> Callable[[Tree], FabricFacts] | None:
    """Return the reader of a document that a cloud or Ray wrote."""
    items = items_of(document)
    if not items:
        return None
    for is_of, reader in (
        (lambda item: "NetworkNodes" in item, from_aws),
        (lambda item: any(key in _oracle(item) for keys in _ORACLE for key in keys), from_oracle),
        (
            lambda item: (
                "physicalHostTopology" in table_in(item.get("resourceStatus"))
                or "physicalHost" in table_in(item.get("resourceStatus"))
            ),
            from_google,
        ),
        (_is_ray, from_ray),
    ):
        if any(is_of(item) for item in items):
            return reader
    return None


def items_of(document: Tree) -> Sequence[Mapping[str, Tree]]:
    """Return the instances of a document: a list, or the list under the key that the tool writes."""
    if isinstance(document, list):
        nested = [
            entry
            for item in tables_in(document)
            if "Instances" in item
            for entry in tables_in(item["Instances"])
        ]
        return nested or tables_in(document)
    for key in ("Instances", "items", "nodes", "data", "result"):
        inside = table_in(document).get(key)
        if isinstance(inside, list):
            return tables_in(inside)
        if isinstance(inside, dict):
            return items_of(inside)
    return [document] if isinstance(document, dict) else []


def from_aws(document: Tree) -> FabricFacts:
    """Return the facts of `aws ec2 describe-instance-topology`: ids run from the top to the closest."""
    places = []
    for item in items_of(document):
        nodes, kind = item.get("NetworkNodes"), word(item.get("InstanceType"))
        machine, name = machine_of_type(kind), word(item.get("InstanceId"))
        if not name or not isinstance(nodes, list) or not all(word(node) for node in nodes):
            raise InputError(
                "this instance topology is not understood",
                f"instance {name or '?'} has no NetworkNodes",
                "give it unchanged",
            )
        block = word(item.get("CapacityBlockId"))
        spans = machine is not None and machine.nodes_per_domain > 1 and block not in ("", "null")
        places.append(
            Place(
                name=name, path=tuple(word(node) for node in nodes), domain=block if spans else "",
                gpus=machine.gpus_per_node if machine else None, gpu=machine.gpu if machine else "",
                machine=kind, is_host=False,
            )
        )  # fmt: skip
    return fabric_facts(
        source="AWS instance topology", places=places, figures=_figures(places, "describe-instance-topology")
    )


def from_oracle(document: Tree) -> FabricFacts:
    """Return the facts of Oracle's RDMA topology: island, network block, local block, GPU memory fabric."""
    places = []
    for number, item in enumerate(items_of(document)):
        oracle = _oracle(item)
        path = tuple(
            value for keys in _ORACLE if (value := next((oracle[key] for key in keys if oracle.get(key)), ""))
        )
        name = next(
            (
                oracle[key]
                for key in ("displayname", "hostname", "instanceid", "customerhostid", "hostid", "id")
                if oracle.get(key)
            ),
            "",
        )
        domain = next((oracle[key] for key in _ORACLE_DOMAIN if oracle.get(key)), "")
        places.append(
            Place(
                name=name or f"host-{number}", path=path, domain=domain, machine=oracle.get("shape", ""),
                is_host="hostname" in oracle or "displayname" in oracle,
            )
        )  # fmt: skip
    return fabric_facts(
        source="OCI RDMA topology", places=places, figures=_figures(places, "OCI topology data")
    )


def _oracle(item: Mapping[str, Tree]) -> dict[str, str]:
    """Return the scalars of an item and of the tables in it, keys in small letters without punctuation."""
    oracle: dict[str, str] = {}
    for key, value in item.items():
        inside = value if isinstance(value, dict) else {key: value}
        for name, scalar in inside.items():
            if word(scalar):
                oracle[re.sub(r"[^a-z]", "", str(name).lower())] = word(scalar)
    return oracle


def from_google(document: Tree) -> FabricFacts:
    """Return the facts of Google's instances: cluster, block and sub-block of the physical host."""
    places = []
    for item in items_of(document):
        status = table_in(item.get("resourceStatus"))
        known = table_in(status.get("physicalHostTopology"))
        path = tuple(word(known.get(key)) for key in ("cluster", "block", "subblock") if word(known.get(key)))
        if not path:
            path = tuple(part for part in word(status.get("physicalHost")).split("/") if part)[:-1]
        kind = word(item.get("machineType")).rpartition("/")[2]
        machine = machine_of_type(kind)
        places.append(
            Place(name=word(item.get("name")), path=path, gpus=machine.gpus_per_node if machine else None,
                  gpu=machine.gpu if machine else "", machine=kind)
        )  # fmt: skip
    return fabric_facts(source="Google instances", places=places, figures=_figures(places, "resourceStatus"))


def _is_ray(item: Mapping[str, Tree]) -> bool:
    return any(key in item for key in ("NodeID", "node_id")) and any(
        key in item for key in ("Labels", "labels", "Resources", "resources_total")
    )


def from_ray(document: Tree) -> FabricFacts:
    """Return the facts of `ray.nodes()` or `ray list nodes`: nodes alive with GPUs, their labels."""
    places = []
    for item in items_of(document):
        resources = table_in(item.get("Resources") or item.get("resources_total"))
        gpus = small_whole(resources.get("GPU"))
        alive = word(item.get("Alive", item.get("state", "ALIVE"))).lower()
        if alive not in ("true", "alive") or not gpus:
            continue
        labels = {
            key: word(value) for key, value in table_in(item.get("Labels") or item.get("labels")).items()
        }
        kinds = [key.partition(":")[2] for key in resources if key.startswith("accelerator_type:")]
        name = next(
            (
                word(item[key])
                for key in ("NodeManagerHostname", "node_name", "node_ip", "NodeName", "NodeID", "node_id")
                if word(item.get(key))
            ),
            "",
        )
        place = place_of_labels(name, labels, gpus=gpus)
        gpu = place.gpu or (gpu_of_product(kinds[0].replace("_", " ")) if kinds else "")
        places.append(Place(name=name, path=place.path, domain=place.domain, gpus=gpus, gpu=gpu))
    return fabric_facts(
        source="Ray nodes", places=places, figures=_figures(places, "Ray resources and labels"), of_job=True
    )


def _figures(places: Sequence[Place], source: str) -> list[Figure]:
    """Return how many hosts, and what machines they are."""
    figures = [Figure(name="nodes", value=f"{len(places):,}", source=source)]
    kinds = sorted({place.machine for place in places if place.machine})
    gpus = sorted({place.gpus for place in places if place.gpus})
    if kinds:
        figures.append(Figure(name="machines", value=", ".join(kinds[:8]), source=source))
    if gpus:
        figures.append(Figure(name="GPUs per node", value=", ".join(map(str, gpus)), source=source))
    return figures
