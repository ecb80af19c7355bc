"""Adapters: small matrices that are trained beside frozen weights (LoRA, QLoRA, DoRA).

Legend: ``r`` rank, ``k`` and ``n`` inputs and outputs of an adapted matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from topology.base.errors import InputError, shown

AdapterKind = Literal["lora", "qlora", "dora"]
AdapterTarget = Literal["attention", "mlp"]
BaseFormat = Literal["half", "fp8", "nf4", "int8"]
BesideFormat = Literal["half", "fp32"]

KINDS: tuple[AdapterKind, ...] = get_args(AdapterKind)
TARGETS: tuple[AdapterTarget, ...] = get_args(AdapterTarget)
BASES: tuple[BaseFormat, ...] = get_args(BaseFormat)
BESIDE: tuple[BesideFormat, ...] = get_args(BesideFormat)
QUANTISED: tuple[BaseFormat, ...] = ("nf4", "int8")
KEYS = ("rank", "targets", "base", "dropout", "alpha", "beside")
LARGEST_RANK = 4096
Name = TypeVar("Name", bound=str)
EXAMPLE = "lora:r=16,targets=attention+mlp"

BASE_BYTES: Mapping[BaseFormat, float] = {
    "nf4": (4 + 8 / 64 + 32 / (64 * 256)) / 8,  # four bits, eight-bit scales of 64, their fp32 scales of 256
    "fp8": 1.0,
    "int8": 1.0,  # scales of a row are nothing beside it
}
"""Bytes of a weight of a quantised matrix, scales included.

Source: QLoRA (arXiv 2305.14314) section 3, double quantisation: 0.127 bits a parameter beside four;
LLM.int8() (arXiv 2208.07339) section 2.1.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Which matrices have an adapter of what rank, and in what format the frozen ones are kept.

    Attributes:
        kind: ``lora``; ``qlora``, the same beside a quantised base; ``dora``, with trained norms of rows.
        rank: r.
        targets: Blocks whose matrices have one each.
        base: Format of frozen matrices, ``half`` sixteen bits; embedding, head and norms stay as they are.
            ``fp8`` is what a job in eight bits multiplies, kept alone.
        dropout: Share of an adapter's input that is dropped.
        beside: Type of the weights that are not quantised, and so of hidden states between layers; ``fp32``
            where peft's `prepare_model_for_kbit_training` was called and no engine narrows them again.
        alpha: Numerator of the factor alpha/rank on what it adds; None makes that one. No time depends on it.
    """

    kind: AdapterKind = "lora"
    rank: int = 16
    targets: tuple[AdapterTarget, ...] = TARGETS
    base: BaseFormat = "half"
    dropout: float = 0.0
    alpha: float | None = None
    beside: BesideFormat = "half"

    def __post_init__(self) -> None:
        """Refuse an adapter of nothing, and a base that is not what its kind says."""
        if not 0 < self.rank <= LARGEST_RANK:
            raise _refused(f"rank = {shown(self.rank)}, of which there are 1 to {LARGEST_RANK}")
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise _refused("targets name each block once, and at least one")
        if (self.kind == "qlora") != (self.base in QUANTISED):
            raise _refused(f"{self.kind} over a base in {self.base}: only qlora has one in nf4 or int8")
        if self.beside == "fp32" and self.base not in QUANTISED:
            raise _refused(
                f"beside=fp32 with a base in {self.base}: what is beside quantised weights is widened"
            )
        if not 0 <= self.dropout < 1:
            raise _refused(f"dropout = {shown(self.dropout)} is no share of 0 up to 1")
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise _refused(f"alpha = {shown(self.alpha)} is no positive number")

    @property
    def words(self) -> str:
        """The adapter as it is written on a command line."""
        base = f",base={self.base}" if self.base != "half" else ""
        drops = f",dropout={self.dropout:g}" if self.dropout else ""
        factor = "" if self.alpha is None else f",alpha={self.alpha:g}"
        wide = f",beside={self.beside}" if self.beside != "half" else ""
        return f"{self.kind}:r={self.rank},targets={'+'.join(self.targets)}{base}{drops}{factor}{wide}"

    @property
    def is_wide(self) -> bool:
        """Whether hidden states between layers are in fp32."""
        return self.beside == "fp32"

    @property
    def alpha_or_rank(self) -> float:
        """The numerator of the factor."""
        return self.rank if self.alpha is None else self.alpha

    @property
    def quantised_bytes(self) -> float | None:
        """Bytes of a weight of a frozen matrix; None where the engine's own format holds."""
        return BASE_BYTES.get(self.base)


def parse_adapter(text: str) -> Adapter:
    """Read an adapter as people write it.

    >>> parse_adapter("qlora:r=16").words
    'qlora:r=16,targets=attention+mlp,base=nf4'
    >>> parse_adapter("lora:r=8,targets=attention").targets
    ('attention',)
    """
    name, _, rest = text.strip().lower().partition(":")
    kind = _listed(name, KINDS, "kind")
    adapter: dict[str, str] = {}
    for part in rest.split(",") if rest.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        key = {"r": "rank"}.get(key, key)
        if key not in KEYS or not equals or key in adapter:
            raise _refused(f"{shown(part)} is no {', '.join(KEYS[:-1])} or {KEYS[-1]} not said before")
        adapter[key] = value
    return Adapter(
        kind=kind,
        rank=_whole(adapter.get("rank", "16")),
        targets=tuple(_listed(word.strip(), TARGETS, "target") for word in adapter["targets"].split("+"))
        if "targets" in adapter
        else TARGETS,
        base=_listed(adapter.get("base", "nf4" if kind == "qlora" else "half"), BASES, "base"),
        dropout=_number(adapter.get("dropout", "0"), "dropout"),
        alpha=_number(adapter["alpha"], "alpha") if "alpha" in adapter else None,
        beside=_listed(adapter.get("beside", "half"), BESIDE, "type beside"),
    )


def _listed(word: str, names: tuple[Name, ...], what: str) -> Name:
    """The name that was written, if it is one."""
    for name in names:
        if name == word:
            return name
    raise _refused(f"{shown(word)} is no {what}: there are {', '.join(names)}")


def _whole(text: str) -> int:
    """A rank as text."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_RANK))):
        raise _refused(f"rank = {shown(text)} is no whole number up to {LARGEST_RANK}")
    return int(text)


def _number(text: str, what: str) -> float:
    """A number as text."""
    try:
        return float(text)
    except ValueError:
        raise _refused(f"{what} = {shown(text)} is no number") from None


def _refused(cause: str) -> InputError:
    """The three lines of an adapter that there is not."""
    return InputError("an adapter is not possible", cause, f"write for example --adapter {EXAMPLE}")
