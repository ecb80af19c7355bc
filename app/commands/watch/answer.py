"""How a run stands, in words."""

from __future__ import annotations

from dataclasses import fields

from app.quantities import format_percent
from app.reports.answer import Answer, Facts, Lines, Section, json_text
from costmodel.campaign.record import Band
from planner.analysis.campaign.watch import Watched
from topology.base.counts import counted
from topology.base.decode import unstructure
from topology.base.units import DAY, format_seconds, three_digits


def watch_answer(watched: Watched) -> Answer:
    """Lay out how a run stands."""
    left = watched.days_left
    days = "not this plan's run" if left is None else _left_words(watched, left)
    if left is None:
        share = "not of this plan's run"
    elif watched.useful_share is None:
        share = "not known: its lines do not say when"
    else:
        share = f"{format_percent(watched.useful_share)} of {format_seconds(watched.wall_s or 0)}"
    step = "not known: of rates alone" if watched.step_s is None else format_seconds(watched.step_s)
    planned = (
        "not on what the plan is for, so not compared with it"
        if watched.planned_step_s is None and not watched.differs
        else "not of this plan, so not compared with it"
        if watched.planned_step_s is None
        else f"planned {format_seconds(watched.planned_step_s)}"
    )
    pairs = (
        ("finish", days),
        ("useful so far", share),
        ("step time", f"{step}, {planned}"),
        ("restarts", f"{watched.restarts}, {watched.repeated_steps:,} steps done again"),
    )
    sections: list[Section] = [Facts(title="Run", pairs=(*pairs, *_stops(watched)))]
    off = tuple(f"{off.cause}: {off.change}" for off in watched.off) or ("nothing that was measured",)
    sections.append(Lines(title="Off against the plan", lines=off))
    record = {
        field.name: getattr(watched, field.name)
        for field in fields(watched)
        if field.name not in ("days_left", "off", "interruptions", "differs")
    }
    return Answer(
        headline=f"step {watched.step:,} of {watched.steps:,} · {days}"
        if left is not None
        else _unlike(watched),
        sections=tuple(sections),
        document=lambda: json_text(unstructure(watched)),
        records=(record,),
    )


def _left_words(watched: Watched, left: Band) -> str:
    """The days that are left, with their band; where that is narrower than a step, what a step is.

    Args:
        watched: How the run stands.
        left: Days that are left of it.
    """
    if watched.step >= watched.steps:
        return "finished"
    text, step_s = f"{three_digits(left.p50)} days left", watched.step_s or 0.0
    if (left.p90 - left.p10) * DAY < step_s:
        steps = counted(watched.steps - watched.step, "step")
        return f"{text}, {steps} of {format_seconds(step_s)}: its band is less than one of them"
    return f"{text} ({three_digits(left.p10)}–{three_digits(left.p90)}, 80 % band)"


def _unlike(watched: Watched) -> str:
    """Why the log is of another run, the first first."""
    return f"not this plan's run: {'; '.join(watched.differs)}"


def _stops(watched: Watched) -> tuple[tuple[str, str], ...]:
    """Checkpoints and interruptions, where something said them."""
    stops = []
    if watched.held_s is not None:
        planned = format_seconds(watched.planned_held_s)
        stops.append(
            ("checkpoint", f"holds steps up for {format_seconds(watched.held_s)}, planned {planned}")
        )
    if watched.interruptions:
        causes = " · ".join(f"{cause} {count}" for cause, count in watched.interruptions.items())
        stops.append(("interruptions", causes))
    if watched.waited_s is not None:
        stops.append(("without nodes", format_seconds(watched.waited_s)))
    return tuple(stops)
