"""How a run stands, in words."""

from __future__ import annotations

from dataclasses import fields

from app.quantities import format_percent
from app.reports.answer import Answer, Facts, Lines, Section, json_text
from planner.analysis.campaign.watch import Watched
from topology.base.decode import unstructure
from topology.base.units import format_seconds, three_digits


def watch_answer(found: Watched) -> Answer:
    """Lay out how a run stands."""
    left = found.days_left
    days = (
        f"{three_digits(left.p50)} days left ({three_digits(left.p10)}–{three_digits(left.p90)}, 80 % band)"
        if left is not None
        else "not this plan's run"
    )
    if left is None:
        share = "not of this plan's run"
    elif found.useful_share is None:
        share = "not known: its lines do not say when"
    else:
        share = f"{format_percent(found.useful_share)} of {format_seconds(found.wall_s or 0)}"
    step = "not known: of rates alone" if found.step_s is None else format_seconds(found.step_s)
    planned = (
        "not on what the plan is for, so not compared with it"
        if found.planned_step_s is None and not found.differs
        else "not of this plan, so not compared with it"
        if found.planned_step_s is None
        else f"planned {format_seconds(found.planned_step_s)}"
    )
    pairs = (
        ("finish", days),
        ("useful so far", share),
        ("step time", f"{step}, {planned}"),
        ("restarts", f"{found.restarts}, {found.repeated_steps:,} steps done again"),
    )
    sections: list[Section] = [Facts(title="Run", pairs=(*pairs, *_stops(found)))]
    off = tuple(f"{one.cause}: {one.change}" for one in found.off) or ("nothing that was measured",)
    sections.append(Lines(title="Off against the plan", lines=off))
    record = {
        one.name: getattr(found, one.name)
        for one in fields(found)
        if one.name not in ("days_left", "off", "interruptions", "differs")
    }
    return Answer(
        headline=f"step {found.step:,} of {found.steps:,} · {days}" if left is not None else _unlike(found),
        sections=tuple(sections),
        document=lambda: json_text(unstructure(found)),
        records=(record,),
    )


def _unlike(found: Watched) -> str:
    """Why the log is of another run, the first first."""
    return f"not this plan's run: {'; '.join(found.differs)}"


def _stops(found: Watched) -> tuple[tuple[str, str], ...]:
    """Checkpoints and interruptions, where something said them."""
    told = []
    if found.held_s is not None:
        planned = format_seconds(found.planned_held_s)
        told.append(("checkpoint", f"holds steps up for {format_seconds(found.held_s)}, planned {planned}"))
    if found.interruptions:
        causes = " · ".join(f"{cause} {count}" for cause, count in found.interruptions.items())
        told.append(("interruptions", causes))
    if found.waited_s is not None:
        told.append(("without nodes", format_seconds(found.waited_s)))
    return tuple(told)
