"""Which GPU of the catalog a product is, by the name that a driver or a label gives it; "" where none is."""

from topology.base.errors import InputError
from topology.base.names import words
from topology.base.units import GIB
from topology.hardware.datasheets import gpu_aliases, gpu_sheets
from topology.hardware.device_names import gpu_of_device
from topology.hardware.gpu_names import LONGEST_NAME, NAME_TOLERANCE, aliased, parts_named


def gpu_of_product(name: str, memory_bytes: float | None = None) -> str:
    """Return the GPU of the catalog that a product is.

    >>> gpu_of_product("NVIDIA H100 80GB HBM3"), gpu_of_product("NVIDIA-GB200"), gpu_of_product("Tesla P4")
    ('h100-sxm', 'gb200', '')
    >>> gpu_of_product("NVIDIA-A100-SXM4-80GB"), gpu_of_product("a100-sxm4-40gb"), gpu_of_product("A100-SXM4")
    ('a100-sxm-80gb', 'a100-sxm-40gb', '')
    """
    if not name or len(name) > LONGEST_NAME:
        return ""
    if memory_bytes:
        try:
            return gpu_of_device(name, memory_bytes)
        except InputError:
            pass
    sheets = gpu_sheets()
    short = aliased(name, gpu_aliases())
    meant = [short] if short else parts_named(name, sheets.values())
    fits = [part for part in meant if _fits(sheets[part].memory_gib * GIB, memory_bytes)]
    return fits[0] if len(fits) == 1 else ""


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
    return not memory_bytes or abs(memory_bytes / nominal_bytes - 1) < NAME_TOLERANCE
