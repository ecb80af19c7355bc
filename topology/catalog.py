"""The catalog: GPUs, machines and clusters by name, and clusters from a user's file."""

from collections.abc import Mapping
from pathlib import Path

from topology.base.names import resolve
from topology.builders import build, gpu_named, machine_spec
from topology.cluster import Cluster
from topology.hardware.datasheets import gpu_sheets, machines, sheet_named
from topology.hardware.gpu import Gpu
from topology.hardware.prices import Price, price_of


def gpus() -> Mapping[str, Gpu]:
    """Return every GPU of the catalog by name."""
    return {name: sheet.gpu() for name, sheet in gpu_sheets().items()}


def gpu_name(name: str) -> str:
    """Return the full name of a GPU from a lenient one."""
    return sheet_named(name).name


def gpu(name: str) -> Gpu:
    """Return a GPU by a lenient name.

    >>> gpu("H100").name
    'h100-sxm'
    """
    return gpu_named(name)


def cluster_names() -> tuple[str, ...]:
    """Return the machines a cluster can be made of by name."""
    return tuple(machines())


def cluster(name_or_path: str | Path, num_gpus: int | None = None) -> Cluster:
    """Return a cluster: a machine of the catalog, `num_gpus` in it, or the one a TOML file describes.

    Args:
        name_or_path: a catalog name ("aws-p5.48xlarge"), or a path to a TOML file.
        num_gpus: how many GPUs; without it one machine, rack or scalable unit, or the whole file.
    """
    from topology.cluster_file import is_path, read_cluster, resized

    if is_path(name_or_path):
        spec = read_cluster(name_or_path)
        return build(spec if num_gpus is None else resized(spec, num_gpus))
    return machine_cluster(str(name_or_path), num_gpus)


def machine_cluster(name: str, num_gpus: int | None = None) -> Cluster:
    """Return a cluster of a machine of the catalog; no file is looked for, so the name may be anybody's."""
    machine = machines()[resolve(name, machines(), "cluster")]
    whole = (machine.nodes or machine.nodes_per_domain) * machine.gpus_per_node
    return build(machine_spec(machine, whole if num_gpus is None else num_gpus))


def price(gpu_name: str) -> Price | None:
    """Return the dated on-demand price of a GPU, by a lenient name, or None where none was seen.

    >>> price("h100-sxm").as_of
    '2026-07-20'
    """
    return price_of(sheet_named(gpu_name).name)
