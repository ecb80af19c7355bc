"""Words that stand only where the numbers beside them carry them, each with the numbers that do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.property.one_truth.lines import Line
from tests.property.one_truth.quantities import Statement
from tests.property.one_truth.values import Interval

PROVEN_WITHIN = 1e-6
"""The gap up to which docs/search.md calls a plan proven: what rounds seconds to whole quanta of the solver."""
FITS_BELOW, DOES_NOT_FIT_ABOVE, KEPT_FROM = 0.05, 0.90, 0.90
"""Chances at which the words of memory and of limits change (docs/glossary and the design say the same)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A word, and the interval in which a stated quantity must lie wherever the word is printed."""

    words: str
    quantity: str
    low: float = float("-inf")
    high: float = float("inf")
    not_in: str = r"^(?:json|csv) ›|Compared ›|Also considered ›|^The best plan |^Times › its memory|^Without headroom ›|layout that surely fits"
    """Places that speak of other plans, or in keys."""


CLAIMS: tuple[Claim, ...] = (
    Claim(words=r"(?<!all of which )(?<!what )(?<!no layout )\bfits\b(?! with)", quantity="out_of_memory_chance", high=FITS_BELOW),
    Claim(
        words=r"^(?:The best plan |Times › its memory).*\bfits\b",
        quantity="best_out_of_memory_chance",
        high=FITS_BELOW,
        not_in=r"^$",
    ),
    Claim(
        words=r"^Without headroom › .*\btight\b",
        quantity="full_out_of_memory_chance",
        low=FITS_BELOW,
        high=DOES_NOT_FIT_ABOVE,
        not_in=r"^$",
    ),
    Claim(words=r"\bno layout fits\b", quantity="out_of_memory_chance", low=FITS_BELOW),
    Claim(words=r"\bdoes not fit\b(?! with a chance)", quantity="out_of_memory_chance", low=DOES_NOT_FIT_ABOVE),
    Claim(words=r"\btight\b", quantity="out_of_memory_chance", low=FITS_BELOW, high=DOES_NOT_FIT_ABOVE),
    Claim(words=r"(?:meets|keeps) the deadline|[Dd]eadline of [^:;·]+:? kept(?! with a chance)|^Campaign › deadline: kept(?! with a chance)", quantity="deadline_chance", low=KEPT_FROM),
    Claim(words=r"(?:meets|keeps) the budget|[Bb]udget of [^:;·]+:? kept(?! with a chance)|^Campaign › budget: kept(?! with a chance)", quantity="budget_chance", low=KEPT_FROM),
    Claim(words=r"\bproven\b(?! best follows)", quantity="gap", high=PROVEN_WITHIN),
    Claim(words=r"[Nn]o level .* carries traffic|carr(?:y|ies) no traffic", quantity="busiest_level", high=0.0),
    Claim(words=r"^Also considered › \d+: .*\(tie\)", quantity="tied", low=1.0, not_in=r"^$"),
)  # fmt: skip


def unsupported(
    lines: Iterable[Line], stated: Mapping[str, Sequence[Statement]], claims: Sequence[Claim] = CLAIMS
) -> list[str]:
    """Words that a stated number contradicts, or that no stated number carries, as sentences."""
    wrong = []
    for line in lines:
        whole = line.whole
        for claim in claims:
            if re.search(claim.not_in, whole) or re.search(claim.words, whole) is None:
                continue
            carried = _numbers(claim, line, stated)
            if not carried:
                wrong.append(f"{line.surface}: “{whole[:160]}” and no {claim.quantity} is stated anywhere")
            elif not all(claim.low <= number.high and number.low <= claim.high for number in carried):
                wrong.append(f"{line.surface}: “{whole[:160]}” beside {claim.quantity} {carried}")
    return wrong


def _numbers(claim: Claim, line: Line, stated: Mapping[str, Sequence[Statement]]) -> list[Interval]:
    """The stated numbers of a claim's quantity; of a row of a table those of the same row, if there are."""
    rows = stated.get(f"{claim.quantity} of {line.label.split(' › ')[0]}")
    return [each.value for each in rows or stated.get(claim.quantity, ()) if isinstance(each.value, Interval)]
