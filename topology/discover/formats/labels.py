"""Node labels that tell where a host stands: topograph's, the clouds', Kueue's levels, and NVLink cliques."""

import re
from collections.abc import Mapping, Sequence

from topology.base.errors import InputError
from topology.base.units import MIB
from topology.discover.formats.products import gpu_of_product
from topology.discover.places import Place

FAMILIES: tuple[tuple[str, ...], ...] = (
    *(
        tuple(f"{prefix}{word}" for word in words)
        for prefix, words in (
            ("network.topology.nvidia.com/", ("datacenter", "core", "spine", "block", "leaf")),
            ("topology.k8s.aws/network-node-layer-", ("1", "2", "3")),
            ("cloud.google.com/gce-topology-", ("block", "subblock")),
            ("oci.oraclecloud.com/rdma.", ("hpc_island_id", "network_block_id", "local_block_id")),
            ("oci.oraclecloud.com/host.", ("hpc_island_id", "network_block_id", "local_block_id", "rack_id")),
        )
    ),
)
"""Keys from the outermost unit in, of which a host has some."""
DOMAINS = (
    "nvidia.com/gpu.clique", "accelerator.topograph.run/sub-domain", "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator", "topology.k8s.aws/ultraserver-id",
    "oci.oraclecloud.com/rdma.gpu_memory_fabric_id",
)  # fmt: skip
"""What names a scale-up domain, smallest first: a clique is an NVLink partition, a sub-domain one rack."""
PARENT = "accelerator.topograph.run/domain"
WORDS = ("zone", "datacenter", "superblock", "block", "subblock", "sub-block", "spine", "row", "rack", "leaf")
"""Last words of keys that an administrator made, from the outermost in."""
_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d)")
_PRODUCTS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "ray.io/accelerator-type",
    "cloud.google.com/gke-accelerator",
)
_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
HOST = "kubernetes.io/hostname"


def label_keys(labels: Mapping[str, str], levels: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the keys of a host's place, outermost first: those given, else of the first family it has."""
    if levels:
        return tuple(key for key in levels if key != HOST)
    tiers = sorted((match[1], key) for key in labels if (match := _TIER.fullmatch(key)))
    if tiers:
        return tuple(key for _, key in reversed(tiers))
    for family in FAMILIES:
        if any(key in labels for key in family):
            return tuple(key for key in family if key in labels)
    result = sorted((WORDS.index(word), key) for key in labels if (word := _last_word(key)) in WORDS)
    return tuple(key for rank, key in result if rank or not key.startswith("topology.kubernetes.io/"))


def _last_word(key: str) -> str:
    name = key.rpartition("/")[2].lower()
    return name if name in WORDS else name.rpartition("-")[2]


def place_of_labels(
    name: str, labels: Mapping[str, str], *, levels: Sequence[str] = (), gpus: int | None = None
) -> Place:
    """Return the place of a host; a rack's name counts only inside its block."""
    keys = label_keys(labels, levels)
    missing = [key for key in keys if not labels.get(key)] if levels else []
    if missing:
        raise InputError(
            f"host {name!r} has no place", f"it has no label {missing[0]}", "label it, or leave it out"
        )
    count = labels.get("nvidia.com/gpu.count", "")
    return Place(
        name=name,
        path=tuple(labels[key] for key in keys),
        domain=domain_of_labels(labels),
        gpus=gpus
        if gpus is not None
        else int(count)
        if count.isascii() and count.isdecimal() and len(count) < 5
        else None,
        gpu=_gpu_of_labels(labels),
        machine=next((labels[key] for key in _TYPES if labels.get(key)), ""),
    )


def domain_of_labels(labels: Mapping[str, str]) -> str:
    """Return the scale-up domain that labels name; a sub-domain's name counts inside its domain."""
    for key in DOMAINS:
        value = labels.get(key, "")
        if value and key.endswith("/sub-domain"):
            return f"{labels.get(PARENT, '')}/{value}"
        if value:
            return value
    return ""


def _gpu_of_labels(labels: Mapping[str, str]) -> str:
    product = next((labels[key] for key in _PRODUCTS if labels.get(key)), "")
    memory = labels.get("nvidia.com/gpu.memory", "")
    known = memory.isascii() and memory.isdecimal() and len(memory) < 9
    return (
        gpu_of_product(product.replace("-", " "), float(memory) * MIB if known else None) if product else ""
    )
