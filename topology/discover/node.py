"""What one machine says about itself: `nvidia-smi topo -m`, and NCCL's topology XML.

Both are read leniently: drivers differ in columns and white space, and what is not understood is listed.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree as ET

from topology.base.decode import lines_of
from topology.base.errors import InputError
from topology.base.units import GBIT, KILO, MIB
from topology.discover.places import Figure
from topology.hardware.datasheets import gpu_sheets
from topology.spec_rules import MOST_NODE_GPUS

GPU_CLASSES = ("0x030200", "0x030000", "0x120000", "0x038000")
NIC_CLASSES = ("0x020000", "0x020700", "0x020701")
_GPU = re.compile(r"GPU\d+$")
_NIC = re.compile(r"(NIC\d+|mlx\d+_\d+|bnxt_re\w+|efa\w*\d+|rdma\w*\d+|roce\w*\d+|hfi\d+_\d+)$")
_NVLINK = re.compile(r"(?:NV|XGMI)(\d{0,3})$")
_WITHOUT_LINKS = re.compile(r"\btopo\s+-mp\b|--matrix-pci\b")
"""The command that prints paths over PCIe alone (`nvidia-smi topo --help`)."""
_LINK_TAGS = ("nvlink", "gpu/nvlink", "xgmi", "gpu/xgmi")
LONGEST_NAME = 32
"""Letters of a device's name that are looked at."""
MOST_NODE_TEXT = MIB
"""Characters of a dump of one machine; real ones have a tenth of it."""
MOST_LINKS = 100
"""Scale-up links of one GPU; none has more than 36."""
MOST_NET_MBIT_PER_S = 1e8
"""A hundred terabits; the fastest NICs have 0.8."""
MOST_NOTES = 20
"""Lines not understood that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of one machine; None and "" where its description does not say.

    `spans_hosts` tells whether its scale-up domain reaches beyond it.
    """

    source: str
    gpus: int
    nics: int
    scaleup: str
    gpu: str = ""
    links_per_gpu: int | None = None
    nic_bandwidth_bytes_per_s: float | None = None
    notes: tuple[str, ...] = ()
    spans_hosts: bool | None = None
    figures: tuple[Figure, ...] = ()


def from_smi_topo(text: str) -> NodeFacts:
    """Return the facts of an `nvidia-smi topo -m` matrix."""
    columns, rows, notes = _matrix(text)
    gpus = [name for name in columns if _GPU.match(name)]
    require_few(len(gpus))
    if not gpus or any(gpu not in rows for gpu in gpus):
        cause = "no complete matrix of GPU0 … GPUn was found in it"
        raise InputError("this is no `nvidia-smi topo -m` output", cause, "give the tool's whole output")
    links = {(a, b): rows[a].get(b, "") for a in gpus for b in gpus if a != b}
    counts = {pair: int(m.group(1) or 1) for pair, word in links.items() if (m := _NVLINK.match(word))}
    scaleup, per_gpu, problem = _scaleup_kind(gpus, counts)
    if _WITHOUT_LINKS.search(text) and not counts:
        scaleup, per_gpu = "", None
        problem = ("topo -mp leaves NVLink out: links are the reference machine's; give topo -m",)
        notes = [note for note in notes if not _WITHOUT_LINKS.search(note)]
    return NodeFacts(
        source="nvidia-smi topo -m",
        gpus=len(gpus),
        nics=sum(1 for name in rows if _NIC.match(name)),
        scaleup=scaleup,
        links_per_gpu=per_gpu,
        notes=(*notes, *problem, *_nics_apart(rows, gpus)),
    )


_SWITCHED = frozenset(("PIX", "PXB"))
"""Words of `nvidia-smi topo -m` for a path over PCIe switches alone."""


def _nics_apart(rows: Mapping[str, Mapping[str, str]], gpus: Sequence[str]) -> Iterator[str]:
    """NICs below no PCIe switch of a GPU, where others are: as those for storage and management are."""
    nics = [name for name in rows if _NIC.match(name)]
    beside = [nic for nic in nics if any(rows[nic].get(gpu, "") in _SWITCHED for gpu in gpus)]
    apart = [nic for nic in nics if nic not in beside]
    if beside and apart:
        yield (
            f"{' and '.join(apart)} share no PCIe switch with a GPU, as {len(beside)} others do, and no rate "
            f"is told: if nodes do not exchange over them, --set cluster.nics_per_node={len(beside)}"
        )


def from_nccl_xml(text: str) -> NodeFacts:
    """Return the facts of an NCCL topology file (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`)."""
    root = parsed_xml(text)
    require_few(sum(1 for _ in root.iter("gpu")))
    if root.tag != "system":
        fix = "give the file of NCCL_TOPO_DUMP_FILE"
        if root.tag == "graphs":
            cause = (
                f"its root is <graphs>: {len(root.findall('graph'))} searched graphs of channels, no machine"
            )
            raise InputError("this is no NCCL topology", cause, fix)
        raise InputError("this is no NCCL topology", f"its root is <{root.tag}>, not <system>", fix)
    devices = list(root.iter("pci"))
    gpus = [pci for pci in devices if pci.get("class") in GPU_CLASSES or pci.find("gpu") is not None]
    nics = [pci for pci in devices if pci.get("class") in NIC_CLASSES or pci.find("nic") is not None]
    nets = list(root.iter("net"))
    unknown = [pci for pci in devices if not pci.get("class") and pci not in gpus and pci not in nics]
    notes = (
        [f"{len(unknown)} PCI devices have no class: GPUs and NICs cannot be told apart"] if unknown else []
    )
    require_few(len(gpus))
    scaleup, links, problem = _xml_scaleup(gpus)
    speeds = [_number(net.get("speed"), MOST_NET_MBIT_PER_S) for net in nets]
    known = [speed for speed in speeds if speed]
    if nets and len(known) < len(nets):
        notes.append(f"{len(nets) - len(known)} of {len(nets)} NICs have no speed that is understood")
    return NodeFacts(
        source="NCCL topology",
        gpus=len(gpus),
        nics=max(len(nics), len(nets)),
        scaleup=scaleup,
        gpu=_gpu_of_ids({pci.get("device", "") for pci in gpus}),
        links_per_gpu=links,
        nic_bandwidth_bytes_per_s=min(known) / KILO * GBIT if known else None,
        notes=(*notes, *problem),
        figures=_nccl_figures(root, len(gpus), max(len(nics), len(nets)), known),
    )


def _nccl_figures(root: ET.Element, gpus: int, nics: int, speeds: list[float]) -> tuple[Figure, ...]:
    """Return what a file lists: devices, CPUs' NUMA nodes, and scale-up links by their width."""
    links = Counter(
        (link.tag, (link.get("count") or "?")[:8]) for link in root.iter() if link.tag in ("nvlink", "xgmi")
    )
    listed = "; ".join(f"{count} {tag} of width {width}" for (tag, width), count in sorted(links.items())[:8])
    rates = f", {', '.join(f'{speed:.0f}' for speed in sorted(set(speeds))[:4])} Mbit/s" if speeds else ""
    nccl_figures = (
        ("GPUs per node", str(gpus)),
        ("NICs per node", f"{nics}{rates}"),
        ("NUMA nodes", str(sum(1 for _ in root.iter("cpu")))),
        ("scale-up links", listed or "none listed: NCCL fills them in"),
    )
    return tuple(Figure(name=name, value=value, source="NCCL topology") for name, value in nccl_figures)


def _matrix(text: str) -> tuple[list[str], dict[str, dict[str, str]], list[str]]:
    """Return the columns, the cells by row and column, and lines that were not understood."""
    columns: list[str] = []
    rows: dict[str, dict[str, str]] = {}
    odd: list[str] = []
    if len(text) > MOST_NODE_TEXT:
        raise _too_large(f"it has more than {MOST_NODE_TEXT:,} characters")
    for line in lines_of(text, "the dump"):
        words = [word[:LONGEST_NAME] for word in re.sub(r"\x1b\[[0-9;]*m", "", line).split()]
        if not words or "=" in words or words[0] in ("Legend:", "NIC") or words[0].endswith(":"):
            continue
        if not columns and _GPU.match(words[0]) and "X" not in words:
            columns = [word for word in words if _GPU.match(word) or _NIC.match(word)]
        elif columns and (_GPU.match(words[0]) or _NIC.match(words[0])):
            rows[words[0]] = dict(zip(columns, words[1 : len(columns) + 1], strict=False))
        else:
            odd.append(f"line not understood: {line.strip()[:60]!r}")
    more = [f"{len(odd) - MOST_NOTES} more lines not understood"] if len(odd) > MOST_NOTES else []
    return columns, rows, [*odd[:MOST_NOTES], *more]


def require_few(gpus: int) -> None:
    """Refuse more GPUs than a machine has, before they are paired."""
    if gpus > MOST_NODE_GPUS:
        raise _too_large(f"it lists {gpus:,} GPUs, more than the {MOST_NODE_GPUS:,} that can be")


def _too_large(cause: str) -> InputError:
    """Say that no machine is so large."""
    return InputError("this is no dump of one machine", cause, "give the tool's unchanged output")


def _number(text: str | None, most: float) -> float | None:
    """Return a positive number of an attribute, None where it holds none: "N/A", empty, or absurd."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= most else None


def _scaleup_kind(
    gpus: list[str], counts: Mapping[tuple[str, str], int]
) -> tuple[str, int | None, tuple[str, ...]]:
    """Return how GPUs are joined, links of one GPU, and what was simplified."""
    if not counts:
        return "pcie", 0, ()
    peers, links = Counter(a for a, _ in counts), Counter[str]()
    for (a, _), count in counts.items():
        links[a] += count
    per_gpu = max(links.values())
    if len(counts) == len(gpus) * (len(gpus) - 1):
        most = max(sheet.scaleup_links for sheet in gpu_sheets().values())
        if len(gpus) > 2 and per_gpu > most:
            return "nvswitch", max(counts.values()), ()
        return "nvlink-mesh", per_gpu, ()
    if set(peers.values()) == {1} and len(peers) == len(gpus):
        return "nvlink-pairs", per_gpu, ()
    note = "links join some GPUs only, not in pairs: the slowest path, PCIe, is planned for"
    without = [gpu for gpu in gpus if not peers[gpu]]
    if without and len(without) < len(gpus) / 2:
        note = f"{', '.join(without)} without NVLink beside others with it: PCIe is planned for"
    return "pcie", 0, (note,)


def _xml_scaleup(gpus: list[ET.Element]) -> tuple[str, int | None, tuple[str, ...]]:
    """Return scale-up facts from `<nvlink>` elements, where a dump carries them."""
    of_gpu = [[link for tag in _LINK_TAGS for link in pci.findall(tag)] for pci in gpus]
    links = [link for elements in of_gpu for link in elements]
    if not links and any(pci.find("gpu") is not None for pci in gpus):
        return "pcie", 0, ("GPUs are described and no link between them is: PCIe is planned for",)
    if not links:
        return "", None, ("NVLink is not described: the reference machine of the GPU fills it in",)
    numbers = [[_number(link.get("count"), MOST_LINKS) or 0.0 for link in elements] for elements in of_gpu]
    counts = [int(sum(number)) for number in numbers]
    if not all(number for item in numbers for number in item) or max(counts) > MOST_LINKS:
        return "", None, ("numbers of NVLinks are not understood: the reference machine fills them in",)
    buses = {pci.get("busid") for pci in gpus}
    targets = [link.get("target") for link in links]
    if any(target not in buses for target in targets):
        return "nvswitch", max(counts), ()
    if len(gpus) > 1 and len(links) == len(gpus) * (len(gpus) - 1):
        return "nvlink-mesh", max(counts), ()
    peers = [
        {link.get("target") for link in elements} - {pci.get("busid")}
        for pci, elements in zip(gpus, of_gpu, strict=True)
    ]
    if not any(peers):
        return "pcie", 0, ("NVLinks are listed from each GPU to itself: read as none",)
    if all(len(others) == 1 for others in peers):
        return "nvlink-pairs", max(counts), ()
    if any(link.tag == "xgmi" for link in links):
        pairs = len({(at, peer) for at, others in enumerate(peers) for peer in others})
        some = f"{pairs} of {len(gpus) * (len(gpus) - 1)} ordered pairs"
        return (
            "",
            None,
            (f"xGMI joins {some}: the reference machine of the GPU fills in what a GPU gets",),
        )
    return "pcie", 0, ("links join some GPUs only, not in pairs: the slowest path, PCIe, is planned for",)


def _gpu_of_ids(ids: Iterable[str]) -> str:
    """Return the GPU whose PCI device id all of them share, or nothing."""
    known = {sheet.pci_device: name for name, sheet in gpu_sheets().items() if sheet.pci_device}
    names = {known.get(device, "") for device in ids}
    return names.pop() if len(names) == 1 else ""


def parsed_xml(text: str) -> ET.Element:
    """Parse XML without document types, which these files never have and attacks do."""
    if len(text) > MOST_NODE_TEXT:
        raise _too_large(f"it has more than {MOST_NODE_TEXT:,} characters")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError("this XML is refused", "it declares a document type", "remove the declaration")
    try:
        return ET.fromstring(text)  # noqa: S314 - document types and entities are refused above
    except (ET.ParseError, ValueError, LookupError) as error:
        raise InputError("this is not valid XML", str(error), "the file may be truncated") from None
