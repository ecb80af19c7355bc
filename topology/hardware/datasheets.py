"""The data files of this package: GPUs, generations, machines and fabrics, each fact with source and date.

Units in the files are those of data sheets (TFLOP/s, GiB, GB/s, Gbit/s, µs); they become SI here.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from topology.base.decode import read_toml, structure
from topology.base.entries import referred, structured_entries
from topology.base.errors import AmbiguousNameError, InputError, UnknownNameError, shown
from topology.base.names import normalize, resolve, suggest
from topology.base.units import GB, GBIT, GIB, TERA, US
from topology.hardware.gpu import Gpu
from topology.hardware.gpu_names import LONGEST_NAME, aliased, part_name, parts_named

UNLISTED = "other"
"""The entry of generations.toml that stands for architectures which it does not list."""
DATA = Path(__file__).parents[1] / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSheet:
    """A GPU in data-sheet units; `machine` names the reference machine it is planned in by default.

    Of a module whose dies are devices of their own a rank has one: the numbers are that die's, and
    `module_dies` says how many a module has. CUDA hands out `cuda_gib` of its memory; 0 where no log says.
    """

    name: str
    aliases: tuple[str, ...] = ()
    architecture: str
    peak_tflop_per_s: Mapping[str, float] = field(hash=False)
    memory_gib: float
    cuda_gib: float = 0.0
    memory_bandwidth_gb_per_s: float
    tdp_w: float
    scaleup_gb_per_s: float
    scaleup_links: int = 0
    pci_device: str = ""
    host_gb_per_s: float
    machine: str
    module_dies: int = 1
    vertex_accelerator: str = ""
    skypilot_accelerator: str = ""
    bridge_deepep: bool = True
    driver_words: tuple[str, ...] = ()
    peer_to_peer: bool = True
    shares_host_memory: bool = False
    source: str
    as_of: str
    unverified: tuple[str, ...] = ()
    note: str = ""

    def gpu(self) -> Gpu:
        """Return the GPU in SI units."""
        return Gpu(
            name=self.name,
            architecture=self.architecture,
            peak_flop_per_s={dtype: peak * TERA for dtype, peak in self.peak_tflop_per_s.items()},
            memory_bytes=self.memory_gib * GIB,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_gb_per_s * GB,
            tdp_w=self.tdp_w,
            peer_to_peer=self.peer_to_peer,
            source=self.source,
            as_of=self.as_of,
            unverified=self.unverified,
        )

    @property
    def scaleup_bandwidth_bytes_per_s(self) -> float:
        """Return all scale-up links of one GPU, per direction."""
        return self.scaleup_gb_per_s * GB

    @property
    def host_bandwidth_bytes_per_s(self) -> float:
        """Return the GPU's path to its host, per direction."""
        return self.host_gb_per_s * GB


def capability(text: str) -> tuple[int, int]:
    """Return a compute capability as numbers, which compare as versions do.

    >>> capability("8.9") < capability("10.0")
    True
    """
    major, minor = text.split(".")
    return int(major), int(minor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What GPUs of one architecture have in common; the data file says what each trait means."""

    name: str
    asynchronous_matmul: bool
    tensor_memory: bool = False
    splits_accumulation: bool = False
    device_sized_experts: bool = False
    nvfp4: bool = False
    mxfp8: bool = False
    one_operand_layout: bool = False
    fp8_fnuz: bool = False
    nvidia_driver: int = 0
    compute_capability: str = "10.0"
    softmax_channels: float = 32
    fused_attention_slowdown: float = 1.0
    kernels_of: str = ""
    maker: Literal["nvidia", "amd"] = "nvidia"
    source: str
    as_of: str
    unverified: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a compute capability that is none."""
        if not re.fullmatch(r"\d{1,2}\.\d", self.compute_capability):
            raise ValueError(f"compute_capability = {shown(self.compute_capability)} is not like 9.0")

    @property
    def capability(self) -> tuple[int, int]:
        """Return the compute capability as numbers, which compare as versions do."""
        return capability(self.compute_capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A reference design or an instance type; `nodes` is how many make one whole (a scalable unit)."""

    name: str
    provider: str
    gpu: str
    gpus_per_node: int
    scaleup: str
    nodes_per_domain: int = 1
    nics_per_node: int
    nic_gbit_per_s: float
    fabric: str
    rail_optimized: bool
    nodes: int = 0
    host_memory_gib: float = 0.0
    host_memory_gb_per_s: float = 0.0
    usd_per_hour: float | None = None
    region: str = ""
    price_as_of: str = ""
    vertex_accelerator: str = ""
    source: str
    as_of: str
    unverified: tuple[str, ...] = ()
    note: str = ""

    @property
    def nic_bandwidth_bytes_per_s(self) -> float:
        """Return one NIC, per direction."""
        return self.nic_gbit_per_s * GBIT

    @property
    def nic_gbit_per_s_per_gpu(self) -> float:
        """Return the rate of a node's NICs over its GPUs, per direction; 0 without NICs."""
        return self.nics_per_node * self.nic_gbit_per_s / self.gpus_per_node

    @property
    def host_memory_bytes(self) -> float:
        """Return the host memory of a node, 0 where it is not known."""
        return self.host_memory_gib * GIB

    @property
    def host_memory_bandwidth_bytes_per_s(self) -> float:
        """Return the rate of that memory, all sockets together, 0 where it is not known."""
        return self.host_memory_gb_per_s * GB

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Return the on-demand price of one GPU for an hour, where one was seen."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricTier:
    """A tier of a fabric: how many scale-up domains hang below one group of its switches."""

    name: str
    domains_per_unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The tiers a kind of fabric is built in."""

    name: str
    tiers: tuple[FabricTier, ...]
    source: str
    as_of: str
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSheet:
    """The latency of a kind of link."""

    kind: str
    latency_us: float
    source: str
    as_of: str
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRate:
    """The data rate of an InfiniBand port generation, as `ibnetdiscover` names it (4xNDR)."""

    name: str
    gbit_per_s: float
    source: str
    as_of: str

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Return the rate of the port, per direction."""
        return self.gbit_per_s * GBIT


@dataclass(frozen=True, slots=True, kw_only=True)
class _GpuDefaults:
    """Kinds of GPU that are taken where nobody names one; the head of gpus.toml."""

    default: str
    fleets: tuple[str, ...]
    offered: tuple[str, ...]


GPU_FILE, GENERATION_FILE, MACHINE_FILE, FABRIC_FILE = (
    "gpus.toml", "generations.toml", "machines.toml", "fabrics.toml",
)  # fmt: skip
_GPU_HELPS = {
    "scaleup_gb_per_s": "GB/s of all its NVLink or xGMI links, one way; 0 for a card that has PCIe alone",
    "host_gb_per_s": "GB/s to its host, one way; 32 for PCIe 4.0 x16, 64 for PCIe 5.0 x16",
    "machine": f"the name of its reference machine in {MACHINE_FILE}",
    "architecture": f"the name of its generation in {GENERATION_FILE}",
    "peak_tflop_per_s": "dense TFLOP/s by type, { bf16 = ..., fp8 = ... }",
    "source": "where the numbers were read", "as_of": "when, as 2026-11-26",
}  # fmt: skip
"""What to write for a key of a GPU that is missing."""


@lru_cache(maxsize=1)
def gpu_sheets() -> Mapping[str, GpuSheet]:
    """Return every GPU sheet by name."""
    sheets = structured_entries(_gpu_document(), "gpu", GpuSheet, GPU_FILE, helps=_GPU_HELPS)
    return {sheet.name: sheet for sheet in sheets}


def allocatable_bytes(gpu: Gpu) -> float:
    """Return what CUDA hands out of a GPU's memory: less than `nvidia-smi` reports, by what the driver keeps.

    A GPU of which no log says so, or one that a user describes with less, has what it is said to have.

    >>> round(allocatable_bytes(gpu_sheets()["rtx-4090"].gpu()) / GIB, 2)
    23.55
    """
    sheet = gpu_sheets().get(gpu.name)
    return min(gpu.memory_bytes, sheet.cuda_gib * GIB) if sheet and sheet.cuda_gib else gpu.memory_bytes


def shares_host_memory(gpu: Gpu) -> bool:
    """Return whether a GPU and its CPU have one memory; False of a GPU without a data sheet.

    >>> shares_host_memory(gpu_sheets()["gb10"].gpu()), shares_host_memory(gpu_sheets()["gh200-96gb"].gpu())
    (True, False)
    """
    sheet = gpu_sheets().get(gpu.name)
    return sheet is not None and sheet.shares_host_memory


def default_gpu() -> str:
    """Return the kind of GPU that is planned where nobody names one."""
    return _gpu_defaults().default


def fleet_gpus() -> tuple[str, ...]:
    """Return the kinds of GPU that fleets of servers are compared on where none is named."""
    return _gpu_defaults().fleets


def offered_gpus() -> tuple[str, ...]:
    """Return the kinds of GPU that are offered beside the user's own."""
    return _gpu_defaults().offered


@lru_cache(maxsize=1)
def _gpu_document() -> Mapping[str, Any]:
    return read_toml(DATA / GPU_FILE)


@lru_cache(maxsize=1)
def _gpu_defaults() -> _GpuDefaults:
    head = {name: value for name, value in _gpu_document().items() if name != "gpu"}
    defaults = structure(head, _GpuDefaults, f"the head of {GPU_FILE}")
    for name in (defaults.default, *defaults.fleets, *defaults.offered):
        referred(gpu_sheets(), name, by=f"the head of {GPU_FILE} names", table="gpu", file=GPU_FILE)
    return defaults


@lru_cache(maxsize=1)
def gpu_aliases() -> Mapping[str, str]:
    """Return what the short name of a GPU family means."""
    return {alias: name for name, sheet in gpu_sheets().items() for alias in sheet.aliases}


def sheet_named(name: str) -> GpuSheet:
    """Return the sheet of a GPU by a lenient name: as people, drivers, schedulers and clouds write it.

    >>> sheet_named("A100").name, sheet_named("NVIDIA H100 80GB HBM3").name
    ('a100-sxm-80gb', 'h100-sxm')

    Raises:
        UnknownNameError: it names no part of the catalog, or several.
    """
    sheets = gpu_sheets()
    known = name.strip().lower()
    if known in sheets:
        return sheets[known]
    if short := aliased(name, gpu_aliases()):
        return sheets[short]
    meant = parts_named(name, sheets.values())
    if len(meant) == 1:
        return sheets[meant[0]]
    if meant:
        raise AmbiguousNameError("GPU", name, meant)
    if counted := _counted_part(name):
        number, part = counted
        cause = f"it says {part} and how many"
        raise UnknownNameError(
            f"{shown(name)} is no GPU", cause, f"use --gpu {part} --gpus {number}", (part,)
        )
    if machine := machine_of_type(name):
        cause = f"it is a machine of {machine.gpus_per_node} {machine.gpu}"
        raise UnknownNameError(
            f"{shown(name)} is no GPU", cause, f"use --cluster {machine.name}", (machine.gpu,)
        )
    close = _close_to(name)
    raise UnknownNameError(
        f"unknown GPU {shown(name)}",
        f"none of the {len(sheets)} GPUs here, of {_makers()}, has that name (plan gpus)",
        (f"did you mean: {', '.join(close)}? Else describe" if close else "describe")
        + " the card by four keys in a file for --cluster (docs/clusters.md)",
        close,
    )


_COUNTED = re.compile(r"(?i)(?:(\d+) ?[x×] ?)?(\D.*?)(?: ?[x×:] ?(\d+))?")


def _counted_part(name: str) -> tuple[str, str] | None:
    """How many of which part a name says, as `8xH100` does; None of any other."""
    match = _COUNTED.fullmatch(name.strip()[:LONGEST_NAME])
    number = match and (match[1] or match[3])
    if match is None or not number:
        return None
    meant = parts_named(match[2], gpu_sheets().values())
    short = aliased(match[2], gpu_aliases()) or (meant[0] if len(meant) == 1 else "")
    return (number, short) if short else None


def _makers() -> str:
    return " and ".join(sorted({generation.maker.upper() for generation in generations().values()}))


def _close_to(name: str) -> tuple[str, ...]:
    """Parts whose family begins as a name does, else those that are spelled most like it."""
    wanted = part_name(name[:LONGEST_NAME]).family
    families = {part: part_name(part).family for part in gpu_sheets()}
    alike = [part for part, family in families.items() if family and wanted.startswith(family)]
    if alike:
        longest = max(len(families[part]) for part in alike)
        return tuple(part for part in alike if len(families[part]) == longest)
    by_family: dict[str, list[str]] = {}
    for part, family in families.items():
        by_family.setdefault(family, []).append(part)
    return tuple(part for family in suggest(wanted, by_family) for part in by_family[family])


def die_notes(names: Iterable[str]) -> tuple[str, ...]:
    """What of GPUs by these names is a part of what is bought: a rank has a die, as rocm-smi counts them.

    >>> die_notes(["h100-sxm", "mi250x-gcd"])
    ('mi250x-gcd is one of the 2 dies of a module: 8 of them are 4 modules',)
    """
    result = (gpu_sheets().get(name) for name in names)
    return tuple(
        f"{gpu_sheet.name} is one of the {dies} dies of a module: {4 * dies} of them are 4 modules"
        for gpu_sheet in result
        if gpu_sheet is not None and (dies := gpu_sheet.module_dies) > 1
    )


@lru_cache(maxsize=1)
def generations() -> Mapping[str, Generation]:
    """Return every generation by name."""
    document = read_toml(DATA / GENERATION_FILE)
    entries = structured_entries(document, "generation", Generation, GENERATION_FILE)
    result = {generation.name: generation for generation in entries}
    referred(result, UNLISTED, by="unlisted architectures are of", table="generation", file=GENERATION_FILE)
    return result


def generation_of(gpu: Gpu) -> Generation:
    """Return the generation of a GPU; of one whose architecture is not listed, what is built today."""
    known = generations()
    return known.get(gpu.architecture) or known[UNLISTED]


@lru_cache(maxsize=1)
def machines() -> Mapping[str, Machine]:
    """Return every machine by name."""
    entries = structured_entries(read_toml(DATA / MACHINE_FILE), "machine", Machine, MACHINE_FILE)
    return {machine.name: machine for machine in entries}


def machine_named(name: str, kind: str = "cluster") -> Machine:
    """Return a machine by a lenient name: also as its cloud calls the type of instance.

    >>> machine_named("Standard_ND96isr_H100_v5").name, machine_named("gpu_8x_h100_sxm5").name
    ('azure-nd96isr-h100-v5', 'lambda-8x-h100-sxm5')
    """
    return machine_of_type(name) or machines()[resolve(_bare(name), machines(), kind)]


def machine_of_type(name: str) -> Machine | None:
    """Return the machine that an instance type is, whichever cloud sells it.

    >>> machine_of_type("p5en.48xlarge").gpus_per_node, machine_of_type("m5.large")
    (8, None)
    """
    wanted = normalize(_bare(name))
    alike = [
        machine
        for known, machine in machines().items()
        if wanted in (normalize(known), normalize(known.removeprefix(f"{machine.provider.lower()}-")))
    ]
    return alike[0] if len(alike) == 1 else None


def machines_in_text(text: str) -> tuple[Machine, ...]:
    """Return the machines whose instance types a text names as whole words, each once.

    A type is a word that only clouds use: of letters and digits, with a dot or a dash in it.

    >>> [machine.gpu for machine in machines_in_text("instance-type: p4de.24xlarge  # a3-megagpu-8g")]
    ['a100-sxm-80gb', 'h100-sxm']
    >>> machines_in_text("p4de.24xlarge_backup, m5.large")
    ()
    """
    named = (machine_of_type(word) for word in dict.fromkeys(_types().findall(text)))
    return tuple(dict.fromkeys(machine for machine in named if machine is not None))


def without_machines(text: str) -> str:
    """Return a text without its instance types, whose names have letters of GPUs that are others' too.

    >>> without_machines("instance-type: Standard_NC80adis_H100_v5 # two H100 NVL")
    'instance-type:  # two H100 NVL'
    """
    return _types().sub("", text)


@lru_cache(maxsize=1)
def _types() -> re.Pattern[str]:
    """Every instance type of the catalog, as a word."""
    sold = (
        machine for machine in machines().values() if machine.name.startswith(f"{machine.provider.lower()}-")
    )
    names = sorted((machine.name.partition("-")[2] for machine in sold), key=len, reverse=True)
    spelled = "|".join(re.escape(name).replace(r"\-", "[-_]") for name in names)
    return re.compile(rf"(?i)(?<![\w.-])(?:ml\.|Standard_)?({spelled})(?![\w-])")


def _bare(name: str) -> str:
    return _INSTANCE.sub("", name.strip()) or name


_INSTANCE = re.compile(r"(?i)^(?:standard|gpu)_|\s+(?:rack|scalable unit)$")
"""What clouds write around the name of an instance type, and data sheets behind that of a whole."""


def reference_machine(sheet: GpuSheet) -> Machine:
    """Return the machine that a GPU is planned in by default."""
    by = f'gpu "{sheet.name}" of {GPU_FILE} names machine'
    return referred(machines(), sheet.machine, by=by, table="machine", file=MACHINE_FILE)


def sheet_of(machine: Machine) -> GpuSheet:
    """Return the GPU of a machine."""
    by = f'machine "{machine.name}" of {MACHINE_FILE} names gpu'
    return referred(gpu_sheets(), machine.gpu, by=by, table="gpu", file=GPU_FILE)


def fabric_of(machine: Machine) -> Fabric:
    """Return the kind of fabric that a machine is sold with."""
    by = f'machine "{machine.name}" of {MACHINE_FILE} names fabric'
    return referred(fabrics(), machine.fabric, by=by, table="fabric", file=FABRIC_FILE)


@lru_cache(maxsize=1)
def fabrics() -> Mapping[str, Fabric]:
    """Return every kind of fabric by name."""
    entries = structured_entries(_fabric_document(), "fabric", Fabric, FABRIC_FILE)
    return {fabric.name: fabric for fabric in entries}


def link_latency_s(kind: str) -> float:
    """Return the latency of a kind of link (nvlink, pcie, nic, switch) in seconds."""
    return referred(_links(), kind, by="a fabric has a link", table="link", file=FABRIC_FILE).latency_us * US


@lru_cache(maxsize=1)
def port_rates() -> Mapping[str, PortRate]:
    """Return the rates of InfiniBand port generations by name."""
    entries = structured_entries(_fabric_document(), "port", PortRate, FABRIC_FILE)
    return {port.name: port for port in entries}


@lru_cache(maxsize=1)
def _links() -> Mapping[str, LinkSheet]:
    entries = structured_entries(_fabric_document(), "link", LinkSheet, FABRIC_FILE, key="kind")
    return {link.kind: link for link in entries}


@lru_cache(maxsize=1)
def _fabric_document() -> Mapping[str, Any]:
    document = read_toml(DATA / FABRIC_FILE)
    if unknown := document.keys() - {"link", "fabric", "port"}:
        raise InputError(
            f"{FABRIC_FILE} has tables of no known kind",
            ", ".join(sorted(unknown)),
            "use link, fabric or port",
        )
    return document
