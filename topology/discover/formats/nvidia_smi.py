"""`nvidia-smi -q -x` and `-L`: each GPU's product and memory, GPUs that are lost, and their NVLink fabric."""

import re
from collections import Counter
from xml.etree import ElementTree as ET

from topology.base.errors import InputError, shown
from topology.base.units import MIB
from topology.discover.formats.products import gpu_of_product
from topology.discover.node import NodeFacts, parsed_xml, require_few
from topology.discover.places import Figure

_DOCTYPE = re.compile(r"<!DOCTYPE nvidia_smi_log SYSTEM \"[\w.-]{1,64}\">")
_MEMORY = re.compile(r"(\d{1,9}) MiB")
_LOST = re.compile(r"lost|unknown error|requires reset|fallen off", re.IGNORECASE)


_LISTED = re.compile(r"^GPU \d{1,3}: (?P<product>\S.{0,80}?) \(UUID: GPU-", re.MULTILINE)
_SLICE = re.compile(r"^\s+MIG (?P<profile>\S{1,20})\s", re.MULTILINE)
_UNHEALTHY = (
    "summary", "bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery",
    "incorrect_configuration",
)  # fmt: skip
"""What the driver says of the health of a GPU's NVLink fabric (nvmlGpuFabricInfoV, NVML's reference)."""
_WELL = frozenset(("", "n/a", "healthy", "full", "false", "none", "not supported"))


def is_list(text: str) -> bool:
    """Whether a text is what `nvidia-smi -L` prints."""
    return bool(_LISTED.search(text))


def from_list(text: str) -> NodeFacts:
    """Return the facts of a list of GPUs; slices of one are no whole GPUs, and are refused."""
    products = [match["product"] for match in _LISTED.finditer(text)]
    require_few(len(products))
    slices = [match["profile"] for match in _SLICE.finditer(text)]
    if slices:
        raise InputError(
            "this machine offers slices of GPUs (MIG), and plans are for whole ones",
            f"it lists {len(slices)} slices, {shown(slices[0])} the first, on {len(products)} GPUs",
            "plan for the whole GPUs by --gpu and --gpus, or give the list with MIG off",
        )
    if len(set(products)) > 1:
        fix = "plan for the GPUs of one kind: name them with --gpu and --gpus"
        raise InputError(
            "the GPUs of this machine differ", f"they are {', '.join(map(shown, sorted(set(products))))}", fix
        )
    gpu, source = gpu_of_product(products[0]), "nvidia-smi -L"
    notes = () if gpu else (f"{products[0]} is not in the catalog: name a GPU with --gpu",)
    return NodeFacts(source=source, gpus=len(products), nics=0, scaleup="", gpu=gpu, notes=notes)


def is_query(text: str) -> bool:
    """Return whether a text begins as this tool's XML."""
    return "<nvidia_smi_log" in text[:4000]


def query_tree(text: str) -> ET.Element:
    """Return this tool's XML as a tree. Raises InputError for what is none, or is no XML of a tool."""
    return parsed_xml(_DOCTYPE.sub("", text, count=1))


def from_query(text: str) -> NodeFacts:
    """Return the facts of one machine; what counts are the GPUs that still answer."""
    root = query_tree(text)
    gpus = root.findall("gpu")
    require_few(len(gpus))
    lost = [gpu for gpu in gpus if _is_lost(gpu)]
    well = [gpu for gpu in gpus if not _is_lost(gpu)]
    if not well:
        cause = f"{len(lost)} GPUs are lost" if lost else "no <gpu> is listed in it"
        raise InputError(
            "this machine has no GPU that answers", cause, "give the output of a healthy machine"
        )
    products = {(_text(gpu, "product_name"), _memory_mib(gpu)) for gpu in well}
    names = {name for name, _ in products}
    if len(names) > 1:
        fix = "plan for the GPUs of one kind: name them with --gpu and --gpus"
        raise InputError(
            "the GPUs of this machine differ", f"they are {', '.join(map(shown, sorted(names)))}", fix
        )
    name, memory_mib = min(products, key=lambda product: product[1] or 0)
    notes = [f"{len(lost)} of {len(gpus)} GPUs is lost, and not planned with"] if lost else []
    attached = _text(root, "attached_gpus")
    if attached.isdecimal() and int(attached[:9]) != len(gpus):
        cause = f"attached_gpus is {attached[:9]}, and {len(gpus)} are listed"
        raise InputError("this machine's output contradicts itself", cause, "give the tool's whole output")
    if any(_text(gpu, "mig_mode/current_mig") == "Enabled" for gpu in well):
        notes.append("MIG is enabled: plans are for whole GPUs")
    notes += _unhealthy(well)
    spans, fabric = _fabric(well)
    gpu = gpu_of_product(name, memory_mib * MIB if memory_mib else None)
    if not gpu:
        notes.append(f"{name or 'its product'} is not in the catalog: name a GPU with --gpu")
    source = "nvidia-smi -q -x"
    return NodeFacts(
        source=source,
        gpus=len(well),
        nics=0,
        scaleup="",
        gpu=gpu,
        spans_hosts=spans,
        notes=tuple(notes),
        figures=(
            Figure(name="GPUs per node", value=str(len(well)), source=source),
            Figure(
                name="product",
                value=f"{name}, {memory_mib:,} MiB" if memory_mib else name,
                source=f"{source}: product_name",
            ),
            Figure(name="scale-up domain", value=fabric, source=f"{source}: fabric"),
        ),
    )


def _unhealthy(gpus: list[ET.Element]) -> list[str]:
    """What the driver says is wrong with the NVLink fabric of GPUs; a collective waits for the slowest."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        values = {name: _text(gpu, f"fabric/health/{name}") for name in _UNHEALTHY}
        for name, value in values.items():
            if value.lower() not in _WELL:
                word = f"{name} {value[:20]}"
                counts[word] = counts.get(word, 0) + 1
        state = _text(gpu, "fabric/state")
        if state not in ("", "N/A", "Completed"):
            counts[f"fabric {state[:20]}"] = counts.get(f"fabric {state[:20]}", 0) + 1
    if not counts:
        return []
    words = ", ".join(f"{word} on {count} of {len(gpus)} GPUs" for word, count in counts.items())
    return [f"the NVLink fabric is not healthy: {words}; it is planned at full rate, so mend it first"]


def _text(element: ET.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _memory_mib(gpu: ET.Element) -> int | None:
    match = _MEMORY.fullmatch(_text(gpu, "fb_memory_usage/total"))
    return int(match[1]) if match else None


def _is_lost(gpu: ET.Element) -> bool:
    is_lost = (
        _text(gpu, "fb_memory_usage/total"),
        _text(gpu, "fabric/state"),
        _text(gpu, "uuid"),
        _text(gpu, "product_name"),
    )
    return any(_LOST.search(text) for text in is_lost)


def _fabric(gpus: list[ET.Element]) -> tuple[bool | None, str]:
    """Return whether the NVLink domain spans hosts, and what is said of it; a zero UUID is the machine."""
    states = Counter(_text(gpu, "fabric/state") for gpu in gpus)
    if set(states) <= {"", "N/A"}:
        return None, "no NVLink fabric is reported"
    if set(states) != {"Completed"}:
        return None, f"not ready: {', '.join(sorted(states))[:80]}"
    values = {(_text(gpu, "fabric/clusterUuid"), _text(gpu, "fabric/cliqueId")) for gpu in gpus}
    if len(values) > 1:
        raise InputError(
            "the GPUs of this machine contradict each other",
            f"they are in {len(values)} NVLink cliques",
            "give the output of one machine",
        )
    uuid, clique = values.pop()
    if not set(uuid) - set("0-"):
        return False, "the machine itself (its cluster UUID is zero)"
    return True, f"clique {clique[:20]} of {uuid[:40]}, which spans machines"
