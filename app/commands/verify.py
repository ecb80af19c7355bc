"""`plan verify`: does a plan hold what it claims, and is its bound the bound?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.flags.shared import AsJson, OutputFile, OutputFormat


def command(
    *,
    plan: Annotated[Path, typer.Argument(help="A plan written by plan --json.", metavar="PLAN.json")],
    proof: Annotated[
        bool, typer.Option("--proof/--no-proof", help="Derive the bound anew from every layout of the space.")
    ] = True,
    as_json: AsJson = False,
    output: OutputFile = None,
    output_format: OutputFormat = None,
) -> int:
    """Hold a plan against its own claims: structure, rules, estimate, certificate.

    The bound is derived by a slower and simpler path than the search took: every layout is priced, none is
    dismissed unseen. Seconds for 32 GPUs, minutes for thousands; exit code 1 if a claim does not hold.
    """
    from app.reports.answer import check_destination, emit, note
    from app.reports.verification import verification_answer
    from app.requests.plan_file import read_claims
    from app.terminal.progress import paced
    from planner.plan import tables_of
    from planner.search.verify import verify

    check_destination(wanted=output_format, as_json=as_json, output=output)
    wanted = read_claims(plan)
    verification = verify(wanted, tables_of(wanted), proof=proof, progress=paced(note))
    return emit(verification_answer(verification), wanted=output_format, as_json=as_json, output=output)
