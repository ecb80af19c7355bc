"""Clusters from a user's TOML file: what the file leaves out is taken from the named machine or GPU."""

import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from topology.base.decode import as_text, read_toml, structure, unstructure
from topology.base.errors import InputError, UnknownNameError
from topology.builders import gpu_named, machine_node
from topology.fabric.degraded import degraded
from topology.hardware.datasheets import Machine, gpu_sheets, machine_named, reference_machine, sheet_named
from topology.hardware.described import described_gpu, host_of
from topology.hardware.prices import Price, price_of_machine
from topology.spec import ClusterSpec, NodeSpec

FILE_ENDS = (".toml", ".txt", ".xml", ".json", ".yaml", ".yml", ".conf", ".out", ".log")


def is_path(name: str | Path) -> bool:
    """Return whether a cluster is named by a file: it ends as files do, has a separator, or exists."""
    text = str(name)
    return (
        isinstance(name, Path)
        or text.lower().endswith(FILE_ENDS)
        or "/" in text
        or "\\" in text
        or os.path.exists(text)  # noqa: PTH110 - Path.exists raises on a name that is too long
    )


def read_cluster(path: str | Path) -> ClusterSpec:
    """Return the spec a TOML file describes.

    A `[[nodes]]` table needs `count` and either `gpu` or `machine`; every other key overrides that
    machine's. A `[[gpus]]` table whose `name` is a catalog GPU overrides its keys for this cluster; another
    card is described by four keys, its node by none: the rest is that of the nearest card
    (`topology.hardware.described`).
    Nodes of several kinds without a price have the catalog's, unless the cluster states one for all.
    Hosts of `without` are left out, and `degraded` names those of broken GPUs or slow NICs.
    """
    raw = read_toml(path)
    _require_no_torus(raw, str(path))
    without, faults = (_words(raw, key, str(path)) for key in ("without", "degraded"))
    raw.setdefault("name", as_text(Path(path).stem))
    if isinstance(raw.get("gpus"), list):
        raw["gpus"] = [_fill_gpu(table, f"{path}: gpus[{i}]") for i, table in enumerate(raw["gpus"])]
        if "nodes" not in raw and len(raw["gpus"]) == 1 and isinstance(raw["gpus"][0], dict):
            raw["nodes"] = [{"gpu": raw["gpus"][0].get("name"), "count": 1}]
    if isinstance(raw.get("nodes"), list):
        described = {
            table["name"]: table for table in _tables(raw.get("gpus")) if isinstance(table.get("name"), str)
        }
        given = raw["nodes"]
        filled = [_fill_node(table, described, f"{path}: nodes[{i}]") for i, table in enumerate(given)]
        raw["nodes"] = [table for table, _ in filled]
        raw |= _prices(raw, given, [price for _, price in filled])
    return degraded(structure(raw, ClusterSpec, str(path)), without, faults)


TORUS = ("torus", "torus3d", "rings", "dims", "dimensions")
"""Words by which a torus is described elsewhere."""


def _require_no_torus(raw: Mapping[str, Any], where: str) -> None:
    """Refuse a torus, whose rings share links as no tree does, and name the tree of its bisection."""
    tables = [raw, *_tables(raw.get("tiers")), *_tables(raw.get("switches"))]
    text = next((key for key in TORUS if any(key in table for table in tables)), None)
    if text is not None:
        raise InputError(
            what=f"{where} describes a torus, which is not planned for",
            cause=f"{text}: rings of a dimension share links with those of others, a fabric here is a tree",
            fix="plan for its bisection: a tier of nodes_per_unit = 1 whose oversubscription is"
            " links of a node x longest ring / 4, then one of all nodes",
        )


def resized(spec: ClusterSpec, num_gpus: int) -> ClusterSpec:
    """Return a cluster of one kind of node with another number of GPUs: whole nodes, or a part of one.

    Only a regular fabric can grow or shrink; a tree of named switches is what it is.
    """
    if num_gpus == spec.num_gpus:
        return spec
    if len(spec.nodes) != 1 or spec.switches:
        cause = f"it describes {spec.num_gpus} GPUs, and its nodes or switches are not all alike"
        raise InputError(
            f"cluster {spec.name!r} cannot have {num_gpus} GPUs", cause, f"use --gpus {spec.num_gpus}"
        )
    (node,) = spec.nodes
    if any(tier.units for tier in spec.tiers):
        cause = "its racks differ in size: fewer of its nodes are another fabric"
        raise InputError(
            f"cluster {spec.name!r} cannot have {num_gpus} GPUs", cause, f"use --gpus {spec.num_gpus}"
        )
    if 0 < num_gpus < node.gpus_per_node:
        return replace(spec, nodes=(node.part(num_gpus),))
    if num_gpus <= 0 or num_gpus % node.gpus_per_node:
        cause = f"its nodes have {node.gpus_per_node} GPUs, and {num_gpus} is not a multiple"
        closest = max(1, round(num_gpus / node.gpus_per_node)) * node.gpus_per_node
        raise InputError(f"cluster {spec.name!r} cannot have {num_gpus} GPUs", cause, f"use --gpus {closest}")
    return replace(spec, nodes=(node.times(num_gpus // node.gpus_per_node),))


def to_toml(spec: ClusterSpec) -> str:
    """Return a spec as the text of a TOML file that `read_cluster` reads back."""
    plain = unstructure(spec)
    lines = [f"{key} = {_toml_value(plain[key])}" for key in plain if _is_plain(plain[key])]
    for key, tables in plain.items():
        if isinstance(tables, list | tuple):
            for table in () if _is_plain(tables) else tables:
                lines += ["", f"[[{key}]]"]
                lines += [
                    f"{name} = {_toml_value(value)}" for name, value in table.items() if value is not None
                ]
    return "\n".join(lines) + "\n"


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, str) for item in value)
    return value is not None and not isinstance(value, dict)


def _toml_value(value: object) -> str:
    """Return a value as TOML; text is quoted as JSON quotes it, which TOML reads."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml_value(item)}" for name, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _words(raw: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    """Return and take out a list of words."""
    return structure(raw.pop(key, []), tuple[str, ...], f"{where}: {key}")


def _tables(value: object) -> list[dict[str, Any]]:
    return [table for table in value if isinstance(table, dict)] if isinstance(value, list) else []


def _prices(raw: dict[str, Any], given: list[object], prices: list[Price | None]) -> dict[str, Any]:
    """Return node tables and facts of a cluster of several kinds that states no price, with the catalog's."""
    tables = [table if isinstance(table, dict) else {} for table in given]
    stated = ["usd_per_gpu_hour" in table for table in tables]
    kinds = {(str(table.get("machine")), str(table.get("gpu"))) for table in tables}
    if "usd_per_gpu_hour" in raw or all(stated) or (len(kinds) == 1 and not any(stated)):
        return {}
    open_ = [price if not is_stated else None for price, is_stated in zip(prices, stated, strict=True)]
    used = list(dict.fromkeys(price for price in open_ if price is not None))
    facts = {
        "price_source": "; ".join(f"{price.machine} on demand, {price.source}" for price in used),
        "price_as_of": min((price.as_of for price in used), default=""),
    }
    nodes = [
        table if price is None else {**table, "usd_per_gpu_hour": price.usd_per_gpu_hour}
        for table, price in zip(raw["nodes"], open_, strict=True)
    ]
    return {"nodes": nodes} | {name: value for name, value in facts.items() if value and name not in raw}


def _fill_node(
    table: object, described: Mapping[str, Mapping[str, Any]], where: str
) -> tuple[object, Price | None]:
    """Return a node table with the keys it leaves out, from the machine or the GPU it names; its price."""
    if not isinstance(table, dict):
        return table, None
    given = dict(table)
    machine = given.pop("machine", None)
    gpu = given.get("gpu")
    if isinstance(machine, str):
        base = _machine(machine, where)
    elif isinstance(gpu, str) and gpu not in described:
        given["gpu"] = _gpu(gpu, where)
        base = reference_machine(gpu_sheets()[given["gpu"]])
    elif isinstance(gpu, str) and gpu in gpu_sheets():
        base = reference_machine(gpu_sheets()[gpu])
    elif isinstance(gpu, str) and described[gpu].get("derived_from"):
        base = host_of(described[gpu])
    else:
        return given if machine is None else {**given, "machine": machine}, None
    defaults = unstructure(machine_node(base, 1))
    optional = {field.name for field in fields(NodeSpec)} - {"count", "name", "switch", "usd_per_gpu_hour"}
    price = price_of_machine(base) if given.get("gpu", base.gpu) == base.gpu else None
    return {key: value for key, value in defaults.items() if key in optional} | given, price


def _fill_gpu(table: object, where: str) -> object:
    """Return a GPU table with the keys it leaves out: of its name in the catalog, or of the nearest card."""
    name = table.get("name") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(name, str):
        return table
    if name in gpu_sheets():
        base = unstructure(gpu_named(name))
        peaks = table.get("peak_flop_per_s", {})
        merged = base["peak_flop_per_s"] | peaks if isinstance(peaks, dict) else peaks
        return base | table | {"peak_flop_per_s": merged}
    return described_gpu(table, where)


def _gpu(name: str, where: str) -> str:
    """Return the full name of a GPU, saying in which file and table an unknown one stands."""
    try:
        return sheet_named(name).name
    except UnknownNameError as error:
        raise UnknownNameError(f"{where}: {error.what}", error.cause, error.fix, error.suggestions) from None


def _machine(name: str, where: str) -> Machine:
    """Return a machine, saying in which file and table an unknown one stands."""
    try:
        return machine_named(name, "machine")
    except UnknownNameError as error:
        raise UnknownNameError(f"{where}: {error.what}", error.cause, error.fix, error.suggestions) from None
