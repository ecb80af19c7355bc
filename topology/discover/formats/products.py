"""Which GPU of the catalog a product is, by the name that a driver or a label gives it; "" where none is."""

import re

from topology.base.errors import InputError
from topology.base.names import resolve, words
from topology.base.units import GIB
from topology.hardware.datasheets import Machine, gpu_aliases, gpu_sheets, machines, plain_form
from topology.hardware.device_names import gpu_of_device

LONGEST_PRODUCT = 100
_NOISE = frozenset(
    {"nvidia", "amd", "tesla", "instinct", "geforce", "oam", "shared", "hbm3", "hbm3e", "hbm2e"}
)
_MEMORY = re.compile(r"\d{1,4}gb")
MEMORY_TOLERANCE = 0.1
"""Share by which reported and nominal memory of one product may differ; boards of a family differ by more."""


def gpu_of_product(name: str, memory_bytes: float | None = None) -> str:
    """Return the GPU of the catalog that a product is.

    >>> gpu_of_product("NVIDIA H100 80GB HBM3"), gpu_of_product("NVIDIA-GB200"), gpu_of_product("Tesla T4")
    ('h100-sxm', 'gb200', '')
    >>> gpu_of_product("NVIDIA-A100-SXM4-80GB"), gpu_of_product("a100-sxm4-40gb"), gpu_of_product("A100-SXM4")
    ('a100-sxm-80gb', 'a100-sxm-40gb', '')
    """
    if not name or len(name) > LONGEST_PRODUCT:
        return ""
    if memory_bytes:
        try:
            return gpu_of_device(name, memory_bytes)
        except InputError:
            pass
    kept = [word for word in words(plain_form(name)) if word not in _NOISE]
    stated_gb = [int(word[:-2]) for word in kept if _MEMORY.fullmatch(word)]
    spoken = [word for word in kept if not word.endswith("gb")]
    for text in ("-".join(kept), "-".join(spoken)):
        try:
            gpu = resolve(text, gpu_sheets(), "GPU", gpu_aliases()) if text else ""
        except InputError:
            continue
        sheet = gpu_sheets().get(gpu)
        if sheet is None or any(not _fits(sheet.memory_gib, gb) for gb in stated_gb):
            continue
        if set(words(gpu)) & set(words(text)) and _fits(sheet.memory_gib * GIB, memory_bytes):
            return gpu
    return ""


def is_kind(stated: str, name: str) -> bool:
    """Return whether a kind that a dump states may be a GPU of the catalog: itself, or one of its family.

    A scheduler's word (`a100`) names a family, which a user may state more exactly; one that no GPU of the
    catalog has contradicts none.

    >>> is_kind("a100", "a100-sxm-40gb"), is_kind("gb300", "h100-sxm"), is_kind("accelerator", "h100-sxm")
    (True, False, True)
    """
    known = stated if stated in gpu_sheets() else gpu_of_product(stated)
    return known in ("", name) or set(words(stated)) < set(words(name))


def _fits(nominal_bytes: float, memory_bytes: float | None) -> bool:
    return not memory_bytes or abs(memory_bytes / nominal_bytes - 1) < MEMORY_TOLERANCE


def machine_of_type(name: str) -> Machine | None:
    """Return the machine of the catalog that an instance type is, whichever cloud sells it.

    >>> machine_of_type("p5en.48xlarge").gpus_per_node, machine_of_type("m5.large")
    (8, None)
    """
    known = machines()
    for prefix in ("", "aws-", "gcp-", "azure-", "oci-"):
        machine = known.get(prefix + name.lower().replace("standard_", "").replace("_", "-"))
        if machine:
            return machine
    return None
