"""`nvidia-smi -q -x`: each GPU's product and memory, GPUs that are lost, and their NVLink fabric."""

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
