"""The catalog: GPUs, machines and clusters by name, and clusters from a user's file."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from topology.base.counts import counted
from topology.base.errors import InputError
from topology.builders import build, gpu_named, machine_spec
from topology.cluster import Cluster
from topology.hardware.datasheets import gpu_sheets, machine_named, machines, sheet_named
from topology.hardware.gpu import Gpu
from topology.hardware.prices import Price, price_of

if TYPE_CHECKING:
    from topology.discover.cluster import Discovery


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


def cluster(name_or_path: str | Path, num_gpus: int | None = None, gpu_of_dumps: str = "") -> Cluster:
    """Return a cluster: a machine of the catalog, `num_gpus` in it, or the one that a file describes.

    Args:
        name_or_path: a catalog name ("aws-p5.48xlarge"), a TOML file, or dumps with commas between.
        num_gpus: how many GPUs; without it one machine, rack or scalable unit, or the whole file.
        gpu_of_dumps: the GPU, where dumps do not name it.
    """
    from topology.cluster_file import is_path, read_cluster, resized

    dumps = dumps_named(name_or_path)
    if dumps:
        discovery = discovered(dumps, gpu_of_dumps, num_gpus)
        return replace(build(discovery.spec), notes=discovery.notes)
    if is_path(name_or_path):
        spec = read_cluster(name_or_path)
        return build(spec if num_gpus is None else resized(spec, num_gpus))
    return machine_cluster(str(name_or_path), num_gpus)


def dumps_named(name: str | Path) -> tuple[Path, ...]:
    """Return the dumps that a cluster is named by, none where it is a name or a TOML file."""
    if isinstance(name, str) and "," in name:
        paths = tuple(Path(part.strip()) for part in name.split(","))
    else:
        paths = (Path(name),)
    try:
        return paths if all(path.suffix != ".toml" and path.is_file() for path in paths) else ()
    except (OSError, ValueError):  # a name that no file system takes
        return ()


def discovered(dumps: Sequence[str | Path], gpu: str = "", num_gpus: int | None = None) -> "Discovery":
    """Return the cluster that dumps describe, with as many of its nodes as hold the GPUs asked for."""
    from topology.discover.cluster import discover, read_facts

    facts = [read_facts(path) for path in dumps]
    discovery = discover(facts, gpu)
    per_node = discovery.spec.nodes[0].gpus_per_node
    if num_gpus is None or num_gpus == discovery.spec.num_gpus:
        return discovery
    if 0 < num_gpus < per_node:
        result = discover(facts, gpu, hosts=1)
        (node,) = result.spec.nodes
        return replace(result, spec=replace(result.spec, nodes=(node.part(num_gpus),)))
    if num_gpus > discovery.spec.num_gpus and discovery.counts_hosts:
        hosts, kind = counted(discovery.spec.num_nodes, "host"), discovery.spec.nodes[0].gpu
        raise InputError(
            what=f"--gpus {num_gpus} asks for more than the dumps have",
            cause=f"they list {hosts} with {discovery.spec.num_gpus} GPUs together",
            fix=f"use --gpus {discovery.spec.num_gpus}, or plan without the dumps: --gpu {kind}",
        )
    if num_gpus < 1 or num_gpus % per_node:
        below = max(1, num_gpus // per_node) * per_node
        raise InputError(
            what=f"{num_gpus} GPUs do not fill nodes of {per_node}",
            cause=f"{num_gpus} % {per_node} = {num_gpus % per_node}; only a single node can be used in part",
            fix=f"ask for {below} or {below + per_node} GPUs",
        )
    return discover(facts, gpu, hosts=num_gpus // per_node)


def machine_cluster(name: str, num_gpus: int | None = None) -> Cluster:
    """Return a cluster of a machine of the catalog; no file is looked for, so the name may be anybody's."""
    machine = machine_named(name)
    whole = (machine.nodes or machine.nodes_per_domain) * machine.gpus_per_node
    return build(machine_spec(machine, whole if num_gpus is None else num_gpus))


def price(gpu_name: str) -> Price | None:
    """Return the dated on-demand price of a GPU, by a lenient name, or None where none was seen.

    >>> price("h100-sxm").as_of
    '2026-07-20'
    """
    return price_of(sheet_named(gpu_name).name)
