"""A run to its last token, in words: when it is finished, for how much, where its time goes, what to set."""

from __future__ import annotations

import math
from dataclasses import fields

from app.limits import kept_words
from app.quantities import format_duration, format_percent, format_share, format_usd
from app.reports.answer import Facts, Lines, Section, Table
from costmodel.campaign.record import Band, Campaign, LostShare
from topology.base.counts import counted
from topology.base.units import DAY, GB, HOUR, KILO, TB, format_bandwidth, format_seconds, three_digits

LEAST_TB = 0.1
"""Smaller checkpoints are told in gigabytes."""


def campaign_sections(found: Campaign, steps_s: float, gap: float | None = None) -> tuple[Section, ...]:
    """What a plan says of its campaign: the answer, the shares of its time, what changes are worth.

    Args:
        found: The campaign.
        steps_s: Seconds of its steps alone.
        gap: By what share another choice could finish earlier, from `planner.campaign.finish.finish_gap`.
    """
    sections: list[Section] = [_facts(found, steps_s, gap), _shares(found, steps_s)]
    if found.worth:
        sections.append(Lines(title="What changes are worth", lines=tuple(_worth(found))))
    sections.append(Lines(title="Assumed of failures", lines=found.notes))
    return tuple(sections)


def finish_text(found: Campaign) -> str:
    """The answer in one line: days, dollars, useful share, each from the tenth to the ninetieth percentile.

    Days are of all nodes with the failures of the site that is named.
    """
    useful = f"{100 * found.useful_share.p10:.0f}–{100 * found.useful_share.p90:.0f} % useful"
    money = "" if found.usd is None else f", {format_usd(found.usd.p10)} – {format_usd(found.usd.p90)}"
    return f"finished in {range_text(found.days)} days{money}, {useful} (80 % bands)"


def _facts(found: Campaign, steps_s: float, gap: float | None) -> Facts:
    """The answer, and what to set for it."""
    middle = f"{three_digits(found.days.p50)} days"
    if found.usd is not None:
        middle += f", {format_usd(found.usd.p50)}"
    often = f"one every {format_seconds(found.mean_time_between_failures_s)} on average"
    share, bound = format_percent(found.mean_useful_share), found.bound_useful_share
    best = "" if bound is None else f"; no layout beats {format_percent(bound)}"
    planned = three_digits(mean_days(found, steps_s))
    useful = f"{share} useful by the {found.by}{best}"
    pairs = (
        ("whole run", finish_text(found)),
        ("median", f"{middle}, {format_percent(found.useful_share.p50)} useful"),
        *([] if found.deadline_chance is None else [("deadline", kept_words(found.deadline_chance))]),
        *([] if found.budget_chance is None else [("budget", kept_words(found.budget_chance))]),
        (
            "as estimated",
            f"{planned} days if steps take what is estimated and failures come at the mean rate: {useful}",
        ),
        ("interruptions", f"{range_text(found.interruptions)}; {often}"),
        ("checkpoint", _checkpoint(found)),
        ("spares", f"{counted(found.spare_nodes, 'node')}, {spares_paid(found)}"),
        *(("energy", _energy(found.kwh, found.co2_kg)) for _ in (found.kwh,) if found.kwh is not None),
        *(("loader", _loader(found)) for _ in (found,) if found.loader_bytes_per_s),
        *(("proof", _proof(gap)) for _ in (gap,) if gap is not None),
    )
    return Facts(title="Campaign", pairs=pairs)


def spares_paid(found: Campaign) -> str:
    """Whether spares cost anything: nodes that idle in the cluster are paid for in any case."""
    idle = found.idle_spare_nodes
    if not idle:
        return "paid for"
    if idle == found.spare_nodes:
        return "idle in the cluster in any case"
    return f"{idle:,} of them idle in the cluster in any case, the others paid for"


def _energy(kwh: Band | None, co2_kg: Band | None) -> str:
    """Kilowatt-hours, and tonnes of carbon dioxide where the grid is known."""
    if kwh is None:
        return ""
    emits = "emissions unstated: give cluster.grid_g_co2_per_kwh"
    if co2_kg is not None:
        emits = f"{range_text(_thousandth(co2_kg))} t of CO₂"
    return f"{range_text(_thousandth(kwh))} MWh of its GPUs at design power · {emits}"


def _thousandth(band: Band) -> Band:
    """A band in a unit a thousand times as large."""
    return Band(p10=band.p10 / KILO, p50=band.p50 / KILO, p90=band.p90 / KILO)


def _loader(found: Campaign) -> str:
    """What data loading must deliver."""
    return f"must deliver {format_bandwidth(found.loader_bytes_per_s)} of data to all ranks"


def _proof(gap: float) -> str:
    """How much earlier anything else could finish, rounded up."""
    most = math.ceil(gap * 1e4) / 100
    return f"no layout, interval or number of spares on as many GPUs finishes more than {most:g} % earlier"


def _checkpoint(found: Campaign) -> str:
    """How often, how large, how long."""
    size = _size(found.checkpoint_bytes)
    if found.base_bytes:
        base = f"the frozen base, {_size(found.base_bytes)}, is not saved"
        size += f" of adapters and their optimizer state ({base})"
    write = f"written in {format_seconds(found.checkpoint_write_s)}"
    stall = f"steps wait {format_seconds(found.checkpoint_stall_s)}"
    every = f"every {format_seconds(found.checkpoint_interval_s)} of work"
    if len(found.kept) > 1:
        each = [f"{one.name} every {format_seconds(one.every_s)}" for one in found.kept]
        every = f"{', '.join(each)} of work"
    return f"{every}: {size}, {write}, {stall}"


def _size(bytes_: float) -> str:
    """Terabytes as storage is sold; gigabytes where there is little."""
    return f"{three_digits(bytes_ / TB)} TB" if bytes_ >= LEAST_TB * TB else f"{three_digits(bytes_ / GB)} GB"


def mean_days(found: Campaign, steps_s: float) -> float:
    """Days of a run whose steps are as planned and whose failures are as on average."""
    return steps_s / found.mean_useful_share / DAY


def _shares(found: Campaign, steps_s: float) -> Table:
    """Where the time of the run goes, largest first: of steps as planned, with the mean of failures."""
    parts = {field.name: getattr(found.lost_share, field.name) for field in fields(LostShare)}
    lost = sorted(((share, name) for name, share in parts.items() if share > 0), reverse=True)
    rows = [("useful", found.mean_useful_share), *((name.replace("_", " "), share) for share, name in lost)]
    days = mean_days(found, steps_s)
    told = [(name, format_share(share), format_duration(share * days * DAY)) for name, share in rows]
    return Table(
        title="Time of the run, steps as estimated and failures at the mean rate",
        columns=("", "share", "time"),
        rows=(*told, ("total", "100 %", format_duration(days * DAY))),
    )


def _worth(found: Campaign) -> list[str]:
    """What each change saves."""
    said = []
    for one in found.worth:
        saved = (
            f"{three_digits(one.days)} days" if one.days >= 1 else f"{three_digits(one.days * DAY / HOUR)} h"
        )
        money = ""
        if one.usd:
            money = f" and {format_usd(one.usd)}" if one.usd > 0 else f", and costs {format_usd(-one.usd)}"
        back = "" if one.pays_back_days is None else f"; pays back in {three_digits(one.pays_back_days)} days"
        said.append(f"{one.change} saves {saved}{money}{back}")
    return said


def range_text(band: Band) -> str:
    """Both ends of a band, as whole numbers where they are large."""
    low, high = (f"{end:,.0f}" if end >= 10 else three_digits(end) for end in (band.p10, band.p90))
    return low if low == high else f"{low}–{high}"
