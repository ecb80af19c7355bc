"""A law: what is not allowed, by which test, on which ground, and what is said where it is broken.

Rules of the search and limits of engines are laws of plans; what an engine stops at in its own words is a law
of words. Search, exports and audits ask laws, and nothing else says that something is not allowed. That a
degree divides a count is asked of `costmodel.parallel.divisions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Literal, NamedTuple, ParamSpec, TypeAlias

from costmodel.layout import LayoutTable, ParallelLayout
from planner.plan import Problem
from topology.base.arrays import Mask

Ground = Literal["impossible", "engine", "unpriced", "room", "overruled"]
"""Why something is refused: no program can run it, this software stops at it, nothing here prices it though
programs run it, it needs more memory than there is, or the software quietly takes one of two words."""
REFUSED: Final[Mapping[Ground, str]] = {
    "impossible": "this layout is not possible",
    "engine": "this software does not run this layout",
    "unpriced": "this layout is not priced here",
    "room": "this layout needs more memory than there is",
    "overruled": "this software overrules a word of this layout",
}
"""What is said of a layout on each ground."""

Many = ParamSpec("Many")
Single = ParamSpec("Single")


class Breach(NamedTuple):
    """What is said of a broken law: the equation with the user's numbers, and a change that keeps it."""

    message: str
    hint: str
    have: float = 0
    need: float = 1
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken law: its name, what is said of it (`Breach`), and on which ground it refuses."""

    rule: str
    message: str
    have: float
    need: float
    unit: str
    hint: str
    ground: Ground = "impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Law(Generic[Many, Single]):
    """One thing that is not allowed, tested for many (`broken`) and explained for one (`says`).

    Attributes:
        name: What counts of pruned layouts are kept under; the same word in every audit.
        reads: Fields of a layout, or words of an engine, that decide it; none where the request alone does.
        broken: Which of many break it; may answer one bool for all.
        says: What is said of one that breaks it; message and hint alone where no number is short of another.
        ground: Why what breaks it is refused; a function where that depends on what is judged.
        lenient_at_one: Whether a field left at its smallest value can only keep the law, so that it can be
            judged when just some of its fields are pinned.
        says_of: Rules of plans that it says in words of its own: where it stops, they are not said again.
        source: Where it was read; of an engine's law what its contract was read in.
        others: Engines of which this may be no law, best first; see `planner.engines.contracts.way_out`.
        others_why: What they have that this one has not.
    """

    name: str
    reads: tuple[str, ...]
    broken: Callable[Many, Mask | bool]
    says: Callable[Single, Breach | tuple[str, str]]
    ground: Ground | Callable[Single, Ground]
    lenient_at_one: bool = True
    says_of: tuple[str, ...] = ()
    source: str = ""
    others: tuple[str, ...] = ()
    others_why: str = ""

    def violation(self, *judged: Single.args, **named: Single.kwargs) -> Violation:
        """The violation of what breaks it."""
        breach = Breach(*self.says(*judged, **named))
        ground = self.ground(*judged, **named) if callable(self.ground) else self.ground
        return Violation(rule=self.name, **breach._asdict(), ground=ground)


PlanLaw: TypeAlias = Law[[Problem, LayoutTable], [Problem, ParallelLayout]]
"""A law of plans: a problem and a table of layouts, or one of them."""


def stop(
    *,
    name: str,
    reads: tuple[str, ...],
    stops: Callable[Single, tuple[str, str] | None],
    ground: Ground = "engine",
    says_of: tuple[str, ...] = (),
) -> Law[Single, Single]:
    """A law of words, whose test is what it says: message and hint, or None where it is kept.

    Args:
        name: What it is about.
        reads: The words that decide it; it stands at the first that is given.
        stops: What is wrong with given words.
        ground: ``overruled`` where the engine takes one of two words.
        says_of: Rules of plans that it says.
    """

    def broken(*judged: Single.args, **named: Single.kwargs) -> bool:
        return stops(*judged, **named) is not None

    def says(*judged: Single.args, **named: Single.kwargs) -> tuple[str, str]:
        return stops(*judged, **named) or ("", "")

    return Law(name=name, reads=reads, broken=broken, says=says, ground=ground, says_of=says_of)
