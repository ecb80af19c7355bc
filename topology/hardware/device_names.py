"""Which GPU of the catalog a device is, from the name its driver gives it and the memory it reports.

Drivers name the board: ``NVIDIA H100 80GB HBM3`` is an SXM board, ``NVIDIA H100 PCIe`` another GPU with the
same memory, and a trailing word (``4090 Laptop GPU``, ``MIG 1g.10gb``) makes a different one.
"""

import re

from topology.base.errors import InputError
from topology.base.names import words
from topology.base.units import GIB, format_bytes
from topology.hardware.datasheets import gpu_sheets

SHEET_TOLERANCE = 0.05
"""Share of the nominal memory that a driver may hold back; parts of one family differ by more."""

_MAKERS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct"})
_ASIDE = frozenset({"oam", "ac", "vf", "gcd", "mi250"})
"""The module of an AMD board, its cooling by air, a whole board in a virtual machine, a die, as the driver
shows them, and the sibling in ``MI250X/MI250``, one name that drivers have for both: the same GPU."""
_FORM = re.compile(r"(sxm|pcie|nvl)\d?")
_MEMORY = re.compile(r"\d+gb|hbm\d\w?")


def gpu_of_device(name: str, memory_bytes: float) -> str:
    """Return the catalog's name of a device.

    >>> from topology.base.units import GIB
    >>> gpu_of_device("NVIDIA A100-SXM4-40GB", 39.4 * GIB), gpu_of_device("NVIDIA H100 NVL", 93.1 * GIB)
    ('a100-sxm-40gb', 'h100-nvl')

    Args:
        name: as the driver gives it.
        memory_bytes: what the device reports.
    """
    found = [
        part
        for part, sheet in gpu_sheets().items()
        if _family(part) == _family(name)
        and _fits(form=_form(name), part=_form(part))
        and abs(memory_bytes / (sheet.memory_gib * GIB) - 1) < SHEET_TOLERANCE
    ]
    if len(found) == 1:
        return found[0]
    raise InputError(
        what="this GPU is not in the catalog by its own name",
        cause=f"it calls itself {name!r} and has {format_bytes(memory_bytes)}",
        fix="name it with --gpu (see `plan gpus`), or describe the machine with --cluster",
    )


def _family(name: str) -> tuple[str, ...]:
    """Words of a name that are neither maker, form, memory nor what is aside."""
    return tuple(
        word
        for word in words(name)
        if word not in _MAKERS | _ASIDE and not _FORM.fullmatch(word) and not _MEMORY.fullmatch(word)
    )


def _form(name: str) -> str:
    """How a board is attached: sxm, pcie or nvl; empty when the name does not say."""
    return next((match[1] for word in words(name) if (match := _FORM.fullmatch(word))), "")


def _fits(*, form: str, part: str) -> bool:
    """Whether a device of a form may be a part of a form; a device that does not say is no PCIe board."""
    return part in ({form} if form else {"", "sxm"})
