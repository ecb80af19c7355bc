"""The plan of least chance of OOM, where no layout fits: tight is an answer, with what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costmodel.memory.fit import FITS_BELOW
from planner.plan import Plan, PlanRequest
from planner.search.infeasible import easing_changes, leanest_share, share_text
from planner.search.state import Search
from planner.space.degrees import combinations

FITS_WITH = "a layout fits with "
"""How the note on the changes begins that make one fit."""


def tight_request(request: PlanRequest, done: Search) -> PlanRequest | None:
    """The question with no more memory left free than the leanest layout leaves.

    Args:
        request: what was asked.
        done: the search for layouts that fit, which found none.

    Returns:
        None where a share to leave free was asked for, where memory is not in the way, or where even the
        leanest layout is predicted to need more than a GPU has: it more likely fails than runs.
    """
    s, pins = done.problem, done.pins
    if request.memory_headroom is not None or not len(combinations(s, pins)[0]):
        return None
    share = leanest_share(s, pins)
    return replace(request, memory_headroom=share) if 0.0 <= share < s.memory_headroom else None


def with_tight_notes(plan: Plan, asked: PlanRequest, done: Search) -> Plan:
    """The plan, told what it was searched under and which changes of the question would make it fit."""
    return replace(plan, assumptions=(*_notes(plan, asked, done), *plan.assumptions))


def _notes(plan: Plan, asked: PlanRequest, done: Search) -> Iterator[str]:
    """Why the search was for less memory left free, and what would make a layout fit."""
    needed, left = share_text(done.problem.memory_headroom), share_text(plan.request.memory_headroom or 0.0)
    limit = f"a chance of OOM below {100 * FITS_BELOW:.0f} % asks to leave {needed} % of memory free"
    yield f"no layout fits: {limit}, the leanest leaves {left} %, and so do all that were searched"
    flags = [change.flag for change in easing_changes(asked, done.problem.case.cal)]
    if flags:
        yield f"{FITS_WITH}{', or '.join(flags)}"
