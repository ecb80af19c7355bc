"""Two plans side by side, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

from app.quantities import format_percent, format_share, format_usd
from app.reports.answer import Answer, Section, Table, json_text
from costmodel.estimate import PART_NAMES
from planner.analysis.compare import Comparison, compare
from planner.analysis.diff import QuantityChange, diff
from planner.plan import Plan
from topology.base.units import format_bytes, format_chance, format_seconds, three_digits

LONGEST_LIST = 16
"""Elements of a list that a cell holds one by one."""


def diff_answer(first: Plan, second: Plan, first_name: str = "A", second_name: str = "B") -> Answer:
    """Everything `plan diff` says."""
    plan_diff = diff(first, second)
    choices, changes = plan_diff.choices, plan_diff.quantities
    sections: list[Section] = [_choices_table(choices), _quantities_table(changes)]
    document = {
        "first": first_name,
        "second": second_name,
        "choices": {name: {"first": a, "second": b} for name, (a, b) in choices.items()},
        "quantities": {
            change.name: {"first": change.first, "second": change.second, "relative": change.relative}
            for change in changes
        },
    }
    return Answer(
        headline=f"A = {first_name} · B = {second_name} · {throughput_verdict(compare(first, second))}",
        sections=tuple(sections),
        document=lambda: json_text(document),
        records=tuple(plan_diff.rows()),
    )


def throughput_verdict(comparison: Comparison) -> str:
    """Say how many tokens per second B does for each of A.

    >>> throughput_verdict(Comparison(speed=2.0, same_work=True, same_model=True, tied=False))
    'B does 2 × the tokens/s of A (+100.0 %)'
    >>> throughput_verdict(Comparison(speed=1.02, same_work=False, same_model=True, tied=True))
    'B does 1.02 × the tokens/s of A (+2.0 %): a tie, within the error band'
    """
    change = format_share(comparison.speed - 1, signed=True)
    words = f"B does {three_digits(comparison.speed)} × the tokens/s of A ({change})"
    return f"{words}: a tie, within the error band" if comparison.tied else words


def _choices_table(choices: Mapping[str, tuple[Any, Any]]) -> Table:
    """Choices that differ."""
    rows = tuple((name, _cell(a), _cell(b)) for name, (a, b) in choices.items())
    return Table(
        title="Chosen differently", columns=("", "A", "B"), rows=rows or (("nothing", "", ""),), align="lll"
    )


def _quantities_table(changes: tuple[QuantityChange, ...]) -> Table:
    """Quantities of both, with the change; parts that both lack are left out.

    What a whole run costs is blank where a plan has no end, as its days are; a missing price is said.
    """
    days = next((change for change in changes if change.name == "days"), None)
    rows = tuple(
        (
            _label(change.name),
            *(
                "" if change.name == "usd" and end is None else _write(change.name)(value)
                for value, end in (
                    (change.first, days and days.first),
                    (change.second, days and days.second),
                )
            ),
            _change(change),
        )
        for change in changes
        if change.first or change.second
    )
    return Table(title="Estimated", columns=("", "A", "B", "change"), rows=rows)


def _change(change: QuantityChange) -> str:
    """By how much the second differs: a share of the first; of chances, points of percent."""
    if change.name.endswith(_CHANCE) and change.first is not None and change.second is not None:
        return f"{100 * (change.second - change.first):+.1f} points"
    return "" if change.relative is None else format_share(change.relative, signed=True)


_CHANCE = "_chance"


def _label(name: str) -> str:
    """A quantity's name for people.

    >>> _label("time.bubble_s"), _label("step_time_s")
    ('  pipeline bubble', 'step time')
    """
    part = PART_NAMES.get(name.removeprefix("time."))
    if part is not None:
        return f"  {part}"
    bare = name.removesuffix("_s").removesuffix("_bytes").replace("_", " ")
    words = bare.removesuffix(" per").replace("usd", "$").replace("wh ", "Wh ")
    named = {
        "mfu": "MFU", "tokens per s per gpu": "tokens/s/GPU", "days": "days to the last token",
        "$": "$ of the whole run", "$ per billion tokens": "$ per billion tokens, steps alone",
        "out of memory chance": "chance of OOM", "deadline chance": "chance of keeping the deadline",
        "budget chance": "chance of keeping the budget",
    }  # fmt: skip
    return named.get(words, words)


def _write(name: str) -> Callable[[float | None], str]:
    """How to write a quantity, by the unit at the end of its name."""
    if name.endswith("_bytes"):
        return lambda value: "" if value is None else format_bytes(value)
    if name.endswith("_s"):
        return lambda value: "" if value is None else format_seconds(value)
    if name.startswith("usd"):
        return format_usd
    if name.endswith(_CHANCE):
        return lambda value: "" if value is None else format_chance(value)
    if name == "mfu":
        return lambda value: "" if value is None else format_percent(value)
    return lambda value: "" if value is None else three_digits(value)


def _cell(value: object) -> str:
    """A choice in one cell; of a list as long as a deep pipeline, equal neighbours together.

    >>> _cell([5, 6, 6, 5]), _cell([0, *[1] * 126, 0])
    ('5-6-6-5', '0-126×1-0')
    """
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        runs = [(item, len(list(same))) for item, same in groupby(value)]
        return "-".join(
            f"{length}×{item}" if length > 2 else "-".join([str(item)] * length) for item, length in runs
        )
    if isinstance(value, list):
        return "-".join(map(str, value))
    return "–" if value is None else str(value)
