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
from topology.hardware.gpu_names import aliased, part_name, parts_named

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


_COUNTS = (
    r"(?:(?<![\w.])[1-9]\d{0,4}[ ]?[x×*][ ]?|\b(?:one|single|two|three|four|eight)[ ])"
    r"(?:nvidia[- ]|amd[- ])?(?:tesla[- ])?"
)
_MAKER = r"\b(?:nvidia|tesla|geforce|instinct)[-_ ](?:tesla[-_ ])?"
_LABEL = (
    r"(?:gpu|accelerator)s?(?:[-_. ]?(?:name|type|product|kind|model))?[\"']?"
    r"[ \t]{0,4}[:=][ \t]{0,4}[\[{\"']{0,2}"
)
_LISTED = (
    r"\b(?:gpu|accelerator)(?:[-_.]\w{1,12}){0,2}[\"']?,?\s{1,40}(?:operator:\s?[\"']?In[\"']?,?\s{1,40})?"
    r"values:\s{0,4}(?:[\[-]\s{0,12})?[\"']?"
)
_BEFORE = rf"(?:{_COUNTS}|{_MAKER}|{_LABEL}|{_LISTED})"
"""What stands before a short name of a GPU, which is a word of other things elsewhere: a count, its maker, a
label or a key of accelerators."""


@functools.cache
def _words_of_gpus() -> re.Pattern[str]:
    """Names and short names of the catalog as whole words of a text, longer ones first, with their memory.

    Shorter ones (`a10`, `l4`) and bare numbers (`4090`) are left out, being words of other things, too, where
    neither a count, a maker nor a label stands before them (`_short_words_of_gpus`).
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


@functools.cache
def _short_words_of_gpus() -> re.Pattern[str]:
    """Short names and bare numbers of the catalog, behind what makes them those of GPUs."""
    known = [name for name in (*gpu_sheets(), *gpu_aliases()) if len(name) < SHORTEST or name[:4].isdigit()]
    spelled = "|".join(re.escape(name) for name in sorted(known, key=lambda name: (-len(name), name)))
    detail = r"(?:[-_ ](?:(?:sxm|pcie)\d?|\d{2,3} ?gi?b?))*"
    end = rf"(?![a-z0-9])(?![-_ ]?(?:ti|super)\b)(?!{_OF_LAPTOPS})"
    of_gpus = rf"(?<![a-z0-9])(?P<bare>{spelled})(?=[ ]GPUs?\b)"
    return re.compile(rf"{_BEFORE}(?P<told>(?:{spelled}){detail}){end}|{of_gpus}", re.IGNORECASE)


def _spoken_of(text: str) -> list[str]:
    """The words of a text that name GPUs of the catalog, in their order."""
    spelled_parts = [(match.start(1), match[1]) for match in _words_of_gpus().finditer(text)]
    short = _short_words_of_gpus().finditer(text)
    spelled_parts += [
        (match.start("told"), match["told"]) if match["told"] else (match.start(), match["bare"])
        for match in short
    ]
    return [words for _, words in sorted(spelled_parts)]


_IN_FILE_NAMES = re.compile(r"[-_.](?P<name>[a-z]\d{1,2})(?=[-_.])", re.IGNORECASE)


def gpus_in_file_name(name: str) -> tuple[str, ...]:
    """GPUs of short names that parts of a file's name are.

    >>> gpus_in_file_name("serve_t4_bf16.sh"), gpus_in_file_name("t4.sh"), gpus_in_file_name("part_b2.sh")
    (('t4',), ('t4',), ())
    """
    known = {name for name in (*gpu_sheets(), *gpu_aliases()) if len(name) < SHORTEST}
    parts = (match["name"].lower() for match in _IN_FILE_NAMES.finditer(f"_{name}_"))
    return tuple(dict.fromkeys(_spoken(part) for part in parts if part in known))


_CARD = re.compile(
    r"(?<![a-z0-9])(?:"
    r"(?:rtx|gtx)[-_ ]?(?:pro[-_ ]?)?a?\d{3,4}"
    r"(?:[-_ ]?(?:ti|super|ada|d|laptop|mobile|max-?q|blackwell|server))*"
    r"|(?:nvidia|tesla)[-_ ](?:tesla[-_ ])?[a-z]{1,2}\d{1,4}[a-z]?|(?:quadro|titan)[-_ ](?:rtx[-_ ]?)?\w{1,6}"
    r"|arc[-_ ]?(?:pro[-_ ]?)?[ab]\d{2,3}|(?:radeon[-_ ])?rx[-_ ]?\d{4}(?:[-_ ]?xtx?)?"
    r"|mi\d{2,3}[ax]?|gaudi[-_ ]?[23]?"
    r")(?![a-z0-9])",
    re.IGNORECASE,
)
"""Words that look like the name of a card, of whatever maker."""


def unknown_gpus_in_text(text: str) -> tuple[str, ...]:
    """Names of cards in a text that the catalog lacks, as they are written there, each once.

    >>> unknown_gpus_in_text("one RTX 3060 12GB, no RTX 4090"), unknown_gpus_in_text("Tesla P40, NVIDIA-L4")
    (('RTX 3060',), ('Tesla P40',))
    """
    spelled_parts = dict.fromkeys(match[0] for match in _CARD.finditer(text))
    return tuple(
        words
        for words in spelled_parts
        if not parts_named(words, gpu_sheets().values()) and not aliased(words, gpu_aliases())
    )


def gpus_in_text(text: str) -> tuple[str, ...]:
    """Return the catalog's names of the GPUs that a text speaks of, each once, in their order.

    >>> gpus_in_text("8x NVIDIA H100-SXM5-80GB"), gpus_in_text("H200-NVL, or GB200_NVL72")
    (('h100-sxm',), ('h200-nvl', 'gb200'))
    >>> gpus_in_text("llama_a100_40g.sh"), gpus_in_text("a100, 80 GB")
    (('a100-sxm-40gb',), ('a100-sxm-80gb',))

    A text that speaks of slices of cards (MIG) names none, and neither does the part of a laptop.

    >>> gpus_in_text("gpu:a100_3g.20gb:2"), gpus_in_text("NVIDIA GeForce RTX 4090 Laptop GPU")
    ((), ())

    A short name is one behind a count, a maker or a label alone.

    >>> gpus_in_text("2 x H20, Tesla T4"), gpus_in_text("gpu-name: l4"), gpus_in_text("loss at t4: a10")
    (('h20-sxm', 't4'), ('l4',), ())
    """
    if slice_in_text(text):
        return ()
    return tuple(dict.fromkeys(filter(None, map(_spoken, dict.fromkeys(_spoken_of(text))))))


def others_of_bare_names(text: str) -> dict[str, tuple[str, ...]]:
    """GPUs that a text names without their memory, with those of the same name and another memory.

    >>> others_of_bare_names("accelerator_type='A100'"), others_of_bare_names("A100 with 80 GB: A100-80G")
    ({'a100-sxm-80gb': ('a100-sxm-40gb',)}, {})
    """
    sheets, bare, whole = gpu_sheets(), dict[str, tuple[str, ...]](), set[str]()
    for words in () if slice_in_text(text) else _spoken_of(text):
        name = _spoken(words)
        if name and part_name(words).memory_gb:
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
    words = re.sub(r",? ?(?<![a-z])(\d{2,3}) ?gi?b?$", r" \1gb", words, flags=re.IGNORECASE)
    short = {normalize(alias): name for alias, name in gpu_aliases().items()}
    meant = parts_named(words, gpu_sheets().values())
    if normalize(words) in short:
        return short[normalize(words)]
    return meant[0] if len(meant) == 1 else ""
