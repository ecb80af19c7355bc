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


def campaign_sections(campaign: Campaign, steps_s: float, gap: float | None = None) -> tuple[Section, ...]:
    """What a plan says of its campaign: the answer, the shares of its time, what changes are worth.

    Args:
        campaign: The campaign.
        steps_s: Seconds of its steps alone.
        gap: By what share another choice could finish earlier, from `planner.campaign.finish.finish_gap`.
    """
    sections: list[Section] = [_facts(campaign, steps_s, gap), _shares(campaign, steps_s)]
    if campaign.worth:
        sections.append(Lines(title="What changes are worth", lines=tuple(_worth(campaign))))
    sections.append(Lines(title="Assumed of failures", lines=campaign.notes))
    return tuple(sections)


def finish_text(campaign: Campaign) -> str:
    """The answer in one line: days, dollars, useful share, each from the tenth to the ninetieth percentile.

    Days are of all nodes with the failures of the site that is named.
    """
    useful = f"{100 * campaign.useful_share.p10:.0f}–{100 * campaign.useful_share.p90:.0f} % useful"
    money = (
        "" if campaign.usd is None else f", {format_usd(campaign.usd.p10)} – {format_usd(campaign.usd.p90)}"
    )
    return f"finished in {range_text(campaign.days)} days{money}, {useful} (80 % bands)"


def _facts(campaign: Campaign, steps_s: float, gap: float | None) -> Facts:
    """The answer, and what to set for it."""
    middle = f"{three_digits(campaign.days.p50)} days"
    if campaign.usd is not None:
        middle += f", {format_usd(campaign.usd.p50)}"
    often = f"one every {format_duration(campaign.mean_time_between_failures_s)} on average"
    share, bound = format_percent(campaign.mean_useful_share), campaign.bound_useful_share
    best = "" if bound is None else f"; no layout beats {format_percent(bound)}"
    planned = three_digits(mean_days(campaign, steps_s))
    useful = f"{share} useful by the {campaign.by}{best}"
    pairs = (
        ("whole run", finish_text(campaign)),
        ("median", f"{middle}, {format_percent(campaign.useful_share.p50)} useful"),
        *([] if campaign.deadline_chance is None else [("deadline", kept_words(campaign.deadline_chance))]),
        *([] if campaign.budget_chance is None else [("budget", kept_words(campaign.budget_chance))]),
        (
            "as estimated",
            f"{planned} days if steps take what is estimated and failures come at the mean rate: {useful}",
        ),
        ("interruptions", f"{range_text(campaign.interruptions)}; {often}"),
        ("checkpoint", _checkpoint(campaign)),
        ("spares", f"{counted(campaign.spare_nodes, 'node')}, {spares_paid(campaign)}"),
        *(
            ("energy", _energy(campaign.kwh, campaign.co2_kg))
            for _ in (campaign.kwh,)
            if campaign.kwh is not None
        ),
        *(("loader", _loader(campaign)) for _ in (campaign,) if campaign.loader_bytes_per_s),
        *(("proof", _proof(gap)) for _ in (gap,) if gap is not None),
    )
    return Facts(title="Campaign", pairs=pairs)


def spares_paid(campaign: Campaign) -> str:
    """Whether spares cost anything: nodes that idle in the cluster are paid for in any case."""
    idle = campaign.idle_spare_nodes
    if not idle:
        return "paid for"
    if idle == campaign.spare_nodes:
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


def _loader(campaign: Campaign) -> str:
    """What data loading must deliver."""
    return f"must deliver {format_bandwidth(campaign.loader_bytes_per_s)} of data to all ranks"


def _proof(gap: float) -> str:
    """How much earlier anything else could finish, rounded up."""
    most = math.ceil(gap * 1e4) / 100
    return f"no layout, interval or number of spares on as many GPUs finishes more than {most:g} % earlier"


def _checkpoint(campaign: Campaign) -> str:
    """How often, how large, how long."""
    size = _size(campaign.checkpoint_bytes)
    if campaign.base_bytes:
        base = f"the frozen base, {_size(campaign.base_bytes)}, is not saved"
        size += f" of adapters and their optimizer state ({base})"
    write = f"written in {format_seconds(campaign.checkpoint_write_s)}"
    stall = f"steps wait {format_seconds(campaign.checkpoint_stall_s)}"
    every = f"every {format_seconds(campaign.checkpoint_interval_s)} of work"
    if len(campaign.kept) > 1:
        each = [f"{kept.name} every {format_seconds(kept.every_s)}" for kept in campaign.kept]
        every = f"{', '.join(each)} of work"
    return f"{every}: {size}, {write}, {stall}"


def _size(bytes_: float) -> str:
    """Terabytes as storage is sold; gigabytes where there is little."""
    return f"{three_digits(bytes_ / TB)} TB" if bytes_ >= LEAST_TB * TB else f"{three_digits(bytes_ / GB)} GB"


def mean_days(campaign: Campaign, steps_s: float) -> float:
    """Days of a run whose steps are as planned and whose failures are as on average."""
    return steps_s / campaign.mean_useful_share / DAY


def _shares(campaign: Campaign, steps_s: float) -> Table:
    """Where the time of the run goes, largest first: of steps as planned, with the mean of failures."""
    parts = {field.name: getattr(campaign.lost_share, field.name) for field in fields(LostShare)}
    lost = sorted(((share, name) for name, share in parts.items() if share > 0), reverse=True)
    rows = [
        ("useful", campaign.mean_useful_share),
        *((name.replace("_", " "), share) for share, name in lost),
    ]
    days = mean_days(campaign, steps_s)
    shares = [(name, format_share(share), format_duration(share * days * DAY)) for name, share in rows]
    return Table(
        title="Time of the run, steps as estimated and failures at the mean rate",
        columns=("", "share", "time"),
        rows=(*shares, ("total", "100 %", format_duration(days * DAY))),
    )


def _worth(campaign: Campaign) -> list[str]:
    """What each change saves."""
    worth = []
    for item in campaign.worth:
        saved = (
            f"{three_digits(item.days)} days"
            if item.days >= 1
            else f"{three_digits(item.days * DAY / HOUR)} h"
        )
        money = ""
        if item.usd:
            money = f" and {format_usd(item.usd)}" if item.usd > 0 else f", and costs {format_usd(-item.usd)}"
        back = (
            "" if item.pays_back_days is None else f"; pays back in {three_digits(item.pays_back_days)} days"
        )
        worth.append(f"{item.change} saves {saved}{money}{back}")
    return worth


def range_text(band: Band) -> str:
    """Both ends of a band, as whole numbers where they are large."""
    low, high = (f"{end:,.0f}" if end >= 10 else three_digits(end) for end in (band.p10, band.p90))
    return low if low == high else f"{low}–{high}"
