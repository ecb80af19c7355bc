"""Settings such as `layout.tp=8`: sorted by what they belong to, and put into a model, a job or a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING
from costmodel.models.spec import ModelSpec
from costmodel.switches.switch import switch, switches
from topology.base.decode import json_value, structure, unstructure
from topology.base.errors import InputError
from topology.base.names import suggest
from topology.hardware.datasheets import sheet_named
from topology.spec import ClusterSpec, NodeSpec, TierSpec
from topology.spec_rules import require_valid

T = TypeVar("T")


def settings_by_group(settings: Sequence[str]) -> dict[str, dict[str, str]]:
    """Sort `layout.tp=8` style settings by the object they belong to; a bare layout field is one too."""
    groups: dict[str, dict[str, str]] = {"layout": {}, "job": {}, "model": {}, "cluster": {}, "switch": {}}
    for setting in settings:
        path, equals, value = setting.partition("=")
        group, dot, name = _home(path.strip()).partition(".")
        if not dot:
            group, name = "layout", group
        if not equals or not name or not value.strip():
            raise InputError(
                what=f"--set {setting} is not a setting", cause="it needs a field and a value",
                fix="write for example --set layout.tp=8",
            )  # fmt: skip
        if group not in groups:
            raise InputError(
                what=f"--set {setting} names nothing known", cause=f"groups are {', '.join(groups)}",
                fix="write for example --set layout.tp=8",
            )  # fmt: skip
        if groups[group].get(name, value.strip()) != value.strip():
            raise InputError(
                what=f"{group}.{name} is set twice", cause=f"to {groups[group][name]} and to {value.strip()}",
                fix="keep one of them",
            )  # fmt: skip
        groups[group][name] = value.strip()
    return groups


def _home(path: str) -> str:
    """Where a setting stands: what a layout or a job says is a switch under that name too.

    >>> _home("switch.cp_kind"), _home("switch.loss")
    ('layout.cp_kind', 'switch.loss')
    """
    group, _, name = path.partition(".")
    return (group == "switch" and name in switches() and switches()[name].home) or path


def stated_switches(settings: Mapping[str, str], model: ModelSpec, job: TrainingJob) -> dict[str, str]:
    """Switches that settings state, in the order of their application; refuses those of another job."""
    for name, value in settings.items():
        narrow = switch(name).value_of(value).narrow_products or switch(name).of == "casts"
        if narrow and not TRAINING[job.precision].is_low:
            raise InputError(
                what=f"--set switch.{name}={value} is of products in eight or four bits",
                cause=f"the job multiplies in {job.precision}",
                fix="leave it out, or add --precision fp8",
            )
        if switch(name).of == "experts" and not model.is_moe:
            raise InputError(
                what=f"{model.name} has no experts",
                cause=f"--set switch.{name}={value}: {switch(name).title} is of a mixture of experts",
                fix="leave it out, or name a mixture of experts",
            )
    return {name: settings[name] for name in switches() if name in settings}


TEXTS = ("str", "str | None")
"""Types of fields that hold text, which may look like a number: their own reader says what there is."""


def override(value: T, settings: Mapping[str, str], group: str) -> T:
    """Replace fields of a dataclass by text, decoded as a file's would be."""
    if not settings:
        return value
    known = [field.name for field in fields(value)]  # type: ignore[arg-type]  # T is always a dataclass here
    _require_known(settings, known, group)
    texts = {field.name for field in fields(value) if field.type in TEXTS}  # type: ignore[arg-type]
    plain = {name: _plain(text) for name, text in settings.items()}
    numbers = {name for name, value in plain.items() if isinstance(value, int | float)} & texts
    data = unstructure(value) | plain | {name: settings[name] for name in numbers}
    return structure(data, type(value), f"--set {group}.…")


def override_cluster(spec: ClusterSpec, settings: Mapping[str, str]) -> ClusterSpec:
    """Replace fields of a cluster; fields of its nodes and tiers are replaced in every node and tier."""
    if not settings:
        return spec
    if "gpu" in settings and settings["gpu"] not in {gpu.name for gpu in spec.gpus}:
        settings = {**settings, "gpu": sheet_named(settings["gpu"]).name}
    kinds: tuple[type, ...] = (ClusterSpec, NodeSpec, TierSpec)
    known = {kind: {f.name for f in fields(kind)} for kind in kinds}
    _require_known(settings, sorted(known[ClusterSpec] | known[NodeSpec] | known[TierSpec]), "cluster")

    def chosen(kind: type) -> dict[str, str]:
        outer = known[ClusterSpec] if kind is not ClusterSpec else set()
        return {name: text for name, text in settings.items() if name in known[kind] - outer}

    nodes = tuple(
        _with_nics(node, override(node, chosen(NodeSpec), "cluster"), settings) for node in spec.nodes
    )
    if "usd_per_gpu_hour" in settings:  # one price of all
        nodes = tuple(replace(node, usd_per_gpu_hour=None) for node in nodes)
        spec = replace(spec, price_source="", price_as_of="")  # it is the user's, of no list and no date
    tiers = tuple(override(tier, chosen(TierSpec), "cluster") for tier in spec.tiers)
    if "gpu" in settings and {node.gpu for node in nodes} != {node.gpu for node in spec.nodes}:
        nodes, spec = _without_prices(nodes, spec)
    changed = override(replace(spec, nodes=nodes, tiers=tiers), chosen(ClusterSpec), "cluster")
    require_valid(changed)
    return changed


def _without_prices(
    nodes: tuple[NodeSpec, ...], spec: ClusterSpec
) -> tuple[tuple[NodeSpec, ...], ClusterSpec]:
    """Nodes of other GPUs than the price is of have none; `--set cluster.usd_per_gpu_hour` gives one."""
    unpriced = replace(spec, usd_per_gpu_hour=None, price_source="", price_as_of="")
    return tuple(replace(node, usd_per_gpu_hour=None) for node in nodes), unpriced


def _with_nics(before: NodeSpec, node: NodeSpec, settings: Mapping[str, str]) -> NodeSpec:
    """A node of another size has network cards in proportion, unless their number is set too."""
    if "nics_per_node" in settings or "gpus_per_node" not in settings or node.gpus_per_node < 1:
        return node
    return replace(node, nics_per_node=-(-before.nics_per_node * node.gpus_per_node // before.gpus_per_node))


def _require_known(settings: Mapping[str, str], known: Sequence[str], group: str) -> None:
    """Refuse fields that do not exist, all of them at once."""
    unknown = [name for name in settings if name not in known]
    if unknown:
        close = suggest(unknown[0], known, count=3)
        raise InputError(
            what=f"--set names no field: {', '.join(f'{group}.{name}' for name in unknown)}",
            cause=f"{group} has {', '.join(known)}",
            fix=f"did you mean {' or '.join(close)}?" if close else "use one of those",
        )


def _plain(text: str) -> Any:
    """Read a value as JSON, else as text (which may be a number with a unit)."""
    try:
        return json_value(text)
    except (ValueError, RecursionError):
        return text
