"""A run in phases, in words and as data: what each runs under, what is between them, when all is finished."""

from __future__ import annotations

import json
from typing import Any

from app.errors import ANSWERED, NO_FEASIBLE_PLAN
from app.limits import kept_words
from app.quantities import format_share, format_usd
from app.reports.answer import Answer, Facts, Table
from app.reports.campaign.sections import range_text
from costmodel.campaign.record import Band, limit_word
from costmodel.layout import layout_words
from planner.analysis.campaign.phases import PhasedRun, PhaseRun
from planner.plan import Plan
from topology.base.counts import counted
from topology.base.decode import unstructure
from topology.base.units import format_seconds, three_digits


def phases_answer(phased_run: PhasedRun) -> Answer:
    """Everything `plan --phases` says."""
    first = phased_run.runs[0].plan.request
    headline = (
        f"{first.model.name} on {counted(first.cluster.num_gpus, 'GPU')} · {len(phased_run.runs)} phases"
    )
    return Answer(
        headline=headline,
        sections=(_whole(phased_run), _table(phased_run)),
        document=lambda: json.dumps(document_of_phases(phased_run), indent=2, allow_nan=False),
        records=tuple(_record(run) for run in phased_run.runs),
        exit_code=NO_FEASIBLE_PLAN if _is_late(phased_run) else ANSWERED,
    )


def _is_late(phased_run: PhasedRun) -> bool:
    """Whether the whole run misses its deadline."""
    chance = phased_run.deadline_chance
    return chance is not None and limit_word(chance) == "missed"


def document_of_phases(phased_run: PhasedRun) -> dict[str, Any]:
    """The same for a program; every phase has its whole plan. Keys carry units."""
    return {
        "phases": [
            {
                "name": run.phase.name,
                "pause_s": run.phase.pause_s,
                "reshard_s": run.reshard_s,
                "plan": run.plan.to_dict(),
            }
            for run in phased_run.runs
        ],
        "days": unstructure(phased_run.days),
        "usd": None if phased_run.usd is None else unstructure(phased_run.usd),
        "deadline_chance": phased_run.deadline_chance,
        "mean_days": phased_run.mean_days,
        "one_layout_mean_days": phased_run.one_layout_days,
        "each_best_mean_days": phased_run.each_best_days,
    }


def _whole(phased_run: PhasedRun) -> Facts:
    """When all is finished, and what other ways would take."""
    money = "" if phased_run.usd is None else f", {_dollars(phased_run.usd)}"
    middle = "" if phased_run.usd is None else f", {format_usd(phased_run.usd.p50)}"
    between = [run for run in phased_run.runs if run.reshard_s]
    changes = "none: one layout runs all phases" if not between else (
        f"{len(between)}, {format_seconds(sum(run.reshard_s for run in between))} in all"
    )  # fmt: skip
    pairs = [
        ("whole run", f"finished in {range_text(phased_run.days)} days{money} (80 % bands)"),
        ("median", f"{three_digits(phased_run.days.p50)} days{middle}"),
        *(
            []
            if phased_run.deadline_chance is None
            else [("deadline", kept_words(phased_run.deadline_chance))]
        ),
        (
            "as estimated",
            f"{three_digits(phased_run.mean_days)} days with steps as estimated and failures as on average",
        ),
        ("reshards", changes),
        ("one of them for all", _instead(phased_run.one_layout_days, phased_run.mean_days, ONE_FOR_ALL)),
        ("each phase its own best", _instead(phased_run.each_best_days, phased_run.mean_days)),
    ]
    return Facts(title="Run in phases", pairs=tuple(pairs))


ONE_FOR_ALL = "the best of the phases' own winners kept throughout; no other layout was tried"


def _instead(days: float | None, chosen: float, what: str = "") -> str:
    """What another way takes as estimated, against the chosen one, and what it is."""
    if days is None:
        return "none of the phases' own winners runs all phases"
    more = days / chosen - 1
    text = f"{three_digits(days)} days as estimated" + (
        "" if more < 5e-5 else f", {format_share(more, signed=True)}"
    )
    return f"{text}: {what}" if what else text


def _table(phased_run: PhasedRun) -> Table:
    """One row a phase."""
    rows = []
    for run in phased_run.runs:
        job, campaign = run.plan.request.job, run.plan.campaign
        before = run.reshard_s + run.phase.pause_s
        rows.append(
            (
                run.phase.name,
                f"{(job.total_tokens or 0) / 1e12:,.4g} T",
                f"{job.sequence_length:,}",
                f"{job.global_batch_size:,}",
                job.precision,
                _words(run.plan),
                format_seconds(run.plan.estimate.step_time_s),
                "" if campaign is None else range_text(campaign.days),
                format_seconds(before) if before else "",
            )
        )
    return Table(
        title="Phases",
        columns=(
            "",
            "tokens",
            "tokens a sequence",
            "sequences a step",
            "",
            "layout",
            "step",
            "days",
            "pause before",
        ),
        rows=tuple(rows),
        align="lrrrllrrr",
        wraps=(5,),
        note="pause before: reshard (save, restart, load) and what the file says",
    )


def _record(run: PhaseRun) -> dict[str, Any]:
    """A phase as a row of a table; keys carry units."""
    (row, *_) = run.plan.rows()
    job, campaign = run.plan.request.job, run.plan.campaign
    return {
        "phase": run.phase.name,
        "tokens": job.total_tokens,
        "sequence_length": job.sequence_length,
        "global_batch_size": job.global_batch_size,
        "precision": job.precision,
        "reshard_s": run.reshard_s,
        "pause_s": run.phase.pause_s,
        "days_p50": None if campaign is None else campaign.days.p50,
        **{name: value for name, value in row.items() if name not in ("rank", "slower_by", "tied")},
    }


def _words(plan: Plan) -> str:
    """The layout of a phase, and how many layers it recomputes."""
    words = sum(plan.recompute_of_stage)
    return layout_words(plan.layout, f"recompute {words} of {plan.request.model.num_layers} layers")


def _dollars(band: Band) -> str:
    """Both ends of a band of dollars."""
    return f"{format_usd(band.p10)} – {format_usd(band.p90)}"
