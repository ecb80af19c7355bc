"""What `plan verify` says: every claim of a plan beside what was found, and how much was looked at."""

from __future__ import annotations

from app.reports.answer import Answer, Facts, Section, Table, json_text
from planner.search.rederive import Rederived
from planner.search.verify import Verification
from planner.structure import Claim
from topology.base.decode import unstructure

FAILED = 1


def verification_answer(verification: Verification) -> Answer:
    """Lay out the verdicts; the exit code is 1 when a claim does not hold."""
    wrong = [claim.name for claim in verification.claims if not claim.holds]
    rows = tuple((claim.name, _verdict(claim), claim.claimed, claim.found) for claim in verification.claims)
    sections: list[Section] = [
        Table(title="Claims", columns=("claim", "verdict", "plan", "found"), rows=rows, align="llll")
    ]
    if verification.rederived is not None:
        sections.append(_effort(verification.rederived))
    return Answer(
        headline=f"does not hold: {', '.join(wrong)}" if wrong else "every claim of the plan holds",
        sections=tuple(sections),
        document=lambda: json_text({"holds": verification.holds, **unstructure(verification)}),
        records=tuple(unstructure(claim) for claim in verification.claims),
        exit_code=FAILED if wrong else 0,
    )


def _verdict(claim: Claim) -> str:
    """Whether a claim holds; *new* is what the version that saved the plan did not say yet."""
    if claim.is_new:
        return "new"
    return "holds" if claim.holds else "does not hold"


def _effort(rederived: Rederived) -> Facts:
    """How the bound was derived anew."""
    return Facts(
        title="Bound derived anew, every layout priced",
        pairs=(
            ("layouts", f"{rederived.layouts:,}"),
            ("dismissed by their mean rank", f"{rederived.dismissed:,}"),
            ("split by the dynamic program", f"{rederived.split:,}"),
            ("decided by the solver", f"{rederived.solved:,}"),
        ),
    )
