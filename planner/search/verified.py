"""The one door for plans that come from somewhere: what a plan says is held against what is computed here.

A plan that does not fit together, or that breaks a rule, is refused. One whose numbers are others here was
edited, or made by another version or with other tables: it is refused with both numbers, or, where that is
accepted, goes on with the numbers of here, without the proof and the alternatives that rested on the others.
What a plan does not say, since its version did not, is no other number: it is added, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from costmodel.campaign.record import Campaign
from planner.campaign.finish import campaign_of
from planner.plan import Optimality, Origin, Plan, Problem
from planner.rules.verdict import require_legal
from planner.search.origin import origin_of
from planner.search.verify import estimate_anew, in_place, number_claims
from planner.structure import sound, unsound
from topology.base.errors import InputError, PlanChangedError

Say = Callable[[str], None]

MOST_NAMED = 6
"""Differences that an error names in full; `plan verify` names all of them."""

UNPROVEN = Optimality(status="best-found", bound_s=0.0, gap=1.0, enumerated=1, pruned={}, solved=1)
"""What is known of a plan whose proof rested on other numbers."""

_MADE_OF = {
    "version": "version",
    "cluster": "cluster data",
    "tables": "kernel tables",
    "constants": "constants",
    "measurements": "measurements of its own",
}


def verified(plan: Plan, where: str, *, accept_changes: bool = False, say: Say = lambda _: None) -> Plan:
    """The plan, if it is what it says it is.

    Args:
        plan: as it was read.
        where: what it was read from, for messages.
        accept_changes: estimate a plan anew whose numbers are others here, instead of refusing it.
        say: told in a line what was made otherwise, what is new, and every number that changed.

    Raises:
        InputError: its parts do not fit together.
        NoFeasiblePlanError: its layout breaks a rule.
        PlanChangedError: its numbers are others here.
    """
    sound(plan, where)
    problem = require_legal(plan).problem
    placed = in_place(plan, problem)
    if not placed.holds:
        raise unsound([placed], where)
    here = origin_of(plan.request, problem.case.cal)
    other = made_otherwise(plan.origin, here)
    claims = number_claims(plan, problem)
    wrong, new = ([c for c in claims if not c.holds], [c.name for c in claims if c.is_new])
    if not wrong:
        if other:
            say(f"{where} was made with {other}; its numbers are the same here, its proof is of then")
        if new:
            say(
                f"{where} was saved before plans said {', '.join(new)}: added from here, all else is the same"
            )
            return replace(estimate_anew(plan, problem), campaign=_campaign_anew(plan))
        return plan
    changes = [f"{claim.name}: {claim.claimed} in the file, {claim.found} here" for claim in wrong]
    if not accept_changes:
        raise _changed(where, other, changes)
    for change in changes:
        say(f"{where}: {change}")
    return _anew(plan, problem, here, other, changes)


def made_otherwise(then: Origin | None, here: Origin) -> str:
    """What of a plan's origin is not as it is here, in words; empty where all of it is."""
    if then is None:
        return "a version that did not say what it was made with"
    other = [words for name, words in _MADE_OF.items() if getattr(then, name) != getattr(here, name)]
    if not other:
        return ""
    versions = f" (meshplan {then.version}, here {here.version})"
    return f"other {', '.join(other)}{versions}"


def _changed(where: str, other: str, changes: Sequence[str]) -> PlanChangedError:
    """The error of a plan whose numbers are others here."""
    more = len(changes) - MOST_NAMED
    rest = f"; and {more} more, see `plan verify`" if more > 0 else ""
    why = f"it was made with {other}" if other else "it was edited, or made by other code of this version"
    return PlanChangedError(
        what=f"{where} does not have the numbers that its layout has here: {why}",
        cause="; ".join(changes[:MOST_NAMED]) + rest,
        fix="plan again, or go on with the numbers of here: --accept-changes",
        differences=changes,
    )


def _anew(plan: Plan, problem: Problem, here: Origin, other: str, changes: Sequence[str]) -> Plan:
    """The plan with the numbers of here; the first thing it assumes is that they changed."""
    now = estimate_anew(plan, problem)
    kept = [text for text in plan.assumptions if text not in plan.estimate.assumptions]
    note = f"estimated anew, nothing is proven: {other or 'the file was changed'}; {'; '.join(changes)}"
    return replace(
        now,
        alternatives=(),
        optimality=UNPROVEN,
        assumptions=(note, *now.estimate.assumptions, *kept),
        origin=here,
        campaign=_campaign_anew(now),
    )


def _campaign_anew(plan: Plan) -> Campaign | None:
    """The finished run with the numbers of here; None where there was none, or it makes no headway."""
    if plan.campaign is None:
        return None
    try:
        return campaign_of(plan, plan.campaign.failures)
    except InputError:
        return None
