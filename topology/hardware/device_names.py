"""Which GPU of the catalog a device is, from the name its driver gives it and the memory it reports.

Drivers name the board: ``NVIDIA H100 80GB HBM3`` is an SXM board, ``NVIDIA H100 PCIe`` another GPU with the
same memory, and a trailing word (``4090 Laptop GPU``, ``MIG 1g.10gb``) makes a different one.
"""

import functools
import re

from topology.base.errors import InputError
from topology.base.names import words
from topology.base.units import GIB, format_bytes
from topology.hardware.datasheets import gpu_aliases, gpu_sheets

SHEET_TOLERANCE = 0.05
"""Share of the nominal memory that a driver may hold back; parts of one family differ by more."""

SHORTEST = 4
"""Characters of the shortest name of a GPU that is taken for one inside a text."""
_MAKERS = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct"})
_ASIDE = frozenset({"oam", "ac", "vf", "gcd"})
"""The module of an AMD board, its cooling by air, a whole board in a virtual machine, a die, as the driver
shows them. A sibling in the same name (``MI250X/MI250``) is a `driver_words` of the part."""
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
    gpu = [
        part
        for part, sheet in gpu_sheets().items()
        if _family(part) == tuple(word for word in _family(name) if word not in sheet.driver_words)
        and _fits(form=_form(name), part=_form(part))
        and abs(memory_bytes / (sheet.memory_gib * GIB) - 1) < SHEET_TOLERANCE
    ]
    if len(gpu) == 1:
        return gpu[0]
    raise InputError(
        what="this GPU is not in the catalog by its own name",
        cause=f"it calls itself {name!r} and has {format_bytes(memory_bytes)}",
        fix="name it with --gpu (see `plan gpus`), or describe the machine with --cluster",
    )


@functools.cache
def _words_of_gpus() -> re.Pattern[str]:
    """Names and short names of the catalog as whole words of a text, longer ones first.

    Shorter ones (`a10`, `l4`) are left out: they are words of other things, too.
    """
    known = [name for name in (*gpu_sheets(), *gpu_aliases()) if len(name) >= SHORTEST]
    longest_first = sorted(known, key=lambda name: (-len(name), name))
    names = "|".join(map(re.escape, longest_first))
    return re.compile(
        rf"(?<![a-z0-9])({names})(?![a-z0-9])(?:[-_ ](?:sxm\d?[-_ ])?(\d{{2,3}}) ?gi?b?(?![a-z0-9]))?",
        re.IGNORECASE,
    )


def gpus_in_text(text: str) -> tuple[str, ...]:
    """Return the catalog's names of the GPUs that a text speaks of, each once, in their order.

    >>> gpus_in_text("8x NVIDIA H100-SXM5-80GB"), gpus_in_text("H200-NVL, or GB200_NVL72")
    (('h100-sxm',), ('h200-nvl', 'gb200'))
    >>> gpus_in_text("llama_a100_40g.sh"), gpus_in_text("a100, 80 GB")
    (('a100-sxm-40gb',), ('a100-sxm-80gb',))
    """
    return tuple(dict.fromkeys(_of_memory(match[1], match[2]) for match in _words_of_gpus().finditer(text)))


def _of_memory(name: str, gib: str | None) -> str:
    """The part of a name with so much memory, where the catalog has one; else the one that the name means."""
    part = gpu_aliases().get(name.lower(), name.lower())
    other = f"{part.rpartition('-')[0]}-{gib}gb"
    return other if gib and other in gpu_sheets() else part


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
