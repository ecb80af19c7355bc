"""Which GPU of the catalog a device is, from the name its driver gives it and the memory it reports.

Drivers name the board: ``NVIDIA H100 80GB HBM3`` is an SXM board, ``NVIDIA H100 PCIe`` another GPU with the
same memory, and a trailing word (``4090 Laptop GPU``, ``MIG 1g.10gb``) makes a different one.
"""

import functools
import re

from topology.base.errors import InputError
from topology.base.names import normalize
from topology.base.units import GIB, format_bytes
from topology.hardware.datasheets import gpu_aliases, gpu_sheets
from topology.hardware.gpu_names import part_name, parts_named

SHEET_TOLERANCE = 0.05
"""Share of the nominal memory that a driver may hold back; parts of one family differ by more."""

SHORTEST = 4
"""Characters of the shortest name of a GPU that is taken for one inside a text."""


def gpu_of_device(name: str, memory_bytes: float) -> str:
    """Return the catalog's name of a device.

    >>> from topology.base.units import GIB
    >>> gpu_of_device("NVIDIA A100-SXM4-40GB", 39.4 * GIB), gpu_of_device("NVIDIA H100 NVL", 93.1 * GIB)
    ('a100-sxm-40gb', 'h100-nvl')

    Args:
        name: as the driver gives it.
        memory_bytes: what the device reports.
    """
    sheets = gpu_sheets()
    gpu = [
        part
        for part in parts_named(name, sheets.values(), memory_bytes / GIB)
        if abs(memory_bytes / (sheets[part].memory_gib * GIB) - 1) < SHEET_TOLERANCE
    ]
    if len(gpu) == 1:
        return gpu[0]
    raise InputError(
        what="this GPU is not in the catalog by its own name",
        cause=f"it calls itself {name!r} and has {format_bytes(memory_bytes)}",
        fix="name it with --gpu (see `plan gpus`), or describe the machine with --cluster",
    )


_OF_LAPTOPS = r"[-_ ](?:laptop|mobile|max-?q)\b"
"""What follows the name of a card in that of a laptop's part, which is another GPU."""
_SLICE = re.compile(
    r"(?<![a-z0-9])\d{1,2}g\.\d{1,3}gb(?![a-z0-9])(?![\"']?\s*[:=]\s*[\"']?0\b)", re.IGNORECASE
)
"""The profile of a slice of a card, as `1g.10gb`; of none where its count is 0."""


@functools.cache
def _words_of_gpus() -> re.Pattern[str]:
    """Names and short names of the catalog as whole words of a text, longer ones first, with their memory.

    Shorter ones (`a10`, `l4`) are left out, being words of other things, too, and bare numbers (`4090`) where
    they do not follow a count (`8x4090`).
    """
    known = [name for name in (*gpu_sheets(), *gpu_aliases()) if len(name) >= SHORTEST]
    numbers = "|".join(name for name in known if name.isdigit())
    counted = rf"(?:(?<=[1-9]x)|(?<=[1-9] x )|(?<=[1-9]×)|(?<=[1-9] × ))(?:{numbers})"
    words = (name for name in known if not name.isdigit())
    longest_first = sorted(words, key=lambda name: (-len(name), name))
    spelled = "|".join(re.escape(name).replace(r"\-", "[-_ ]?") for name in longest_first)
    detail = r"(?:(?:[-_ ]|, )(?:(?:sxm|pcie)\d?|nvl|\d{2,3} ?gi?b?))*"
    named = rf"(?<![a-z0-9])(?:{spelled}){detail}"
    return re.compile(rf"({named}|{counted})(?![a-z0-9])(?!{_OF_LAPTOPS})", re.IGNORECASE)


def gpus_in_text(text: str) -> tuple[str, ...]:
    """Return the catalog's names of the GPUs that a text speaks of, each once, in their order.

    >>> gpus_in_text("8x NVIDIA H100-SXM5-80GB"), gpus_in_text("H200-NVL, or GB200_NVL72")
    (('h100-sxm',), ('h200-nvl', 'gb200'))
    >>> gpus_in_text("llama_a100_40g.sh"), gpus_in_text("a100, 80 GB")
    (('a100-sxm-40gb',), ('a100-sxm-80gb',))

    A text that speaks of slices of cards (MIG) names none, and neither does the part of a laptop.

    >>> gpus_in_text("gpu:a100_3g.20gb:2"), gpus_in_text("NVIDIA GeForce RTX 4090 Laptop GPU")
    ((), ())
    """
    if slice_in_text(text):
        return ()
    return tuple(
        dict.fromkeys(filter(None, (_spoken(match[1]) for match in _words_of_gpus().finditer(text))))
    )


def others_of_bare_names(text: str) -> dict[str, tuple[str, ...]]:
    """GPUs that a text names without their memory, with those of the same name and another memory.

    >>> others_of_bare_names("accelerator_type='A100'"), others_of_bare_names("A100 with 80 GB: A100-80G")
    ({'a100-sxm-80gb': ('a100-sxm-40gb',)}, {})
    """
    sheets, bare, whole = gpu_sheets(), dict[str, tuple[str, ...]](), set[str]()
    for match in () if slice_in_text(text) else _words_of_gpus().finditer(text):
        name = _spoken(match[1])
        if name and part_name(match[1]).memory_gb:
            whole.add(name)
        elif name and name not in bare:
            bare[name] = tuple(other for other in sheets if other != name and _differs_in_memory(name, other))
    return {name: others for name, others in bare.items() if others and name not in whole}


def _differs_in_memory(name: str, other: str) -> bool:
    """Whether the catalog tells two parts of one family and form apart by their memories."""
    first, second = part_name(name), part_name(other)
    return bool(first.memory_gb) and (first.family, first.form) == (second.family, second.form)


def slice_in_text(text: str) -> str:
    """The profile of the first slice of a card (MIG) that a text speaks of; empty where it names none.

    >>> slice_in_text("nvidia.com/mig-1g.10gb: 4"), slice_in_text("nvidia.com/mig-1g.10gb: 0, gpu: 8")
    ('1g.10gb', '')
    """
    profile = _SLICE.search(text)
    return profile[0] if profile else ""


def _spoken(words: str) -> str:
    """The part that words of a text name: by a short name, else by itself; "" where it could be several."""
    words = re.sub(r",? ?(\d{2,3}) ?gi?b?$", r" \1gb", words, flags=re.IGNORECASE)
    short = {normalize(alias): name for alias, name in gpu_aliases().items()}
    meant = parts_named(words, gpu_sheets().values())
    if normalize(words) in short:
        return short[normalize(words)]
    return meant[0] if len(meant) == 1 else ""
