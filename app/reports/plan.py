"""A plan as an expert wants to read it: what it costs, how it is split, where the time goes, why it is best.

The sections quote the plan and compute nothing that the plan does not state, apart from shares and units.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.errors import ANSWERED, NO_FEASIBLE_PLAN
from app.limits import missed_words
from app.quantities import format_percent, format_share
from app.reports.answer import Answer, Facts, Lines, Section, Table
from app.reports.layout_words import layout_lines, other_nodes, plan_words
from app.reports.plan_brief import brief_facts, left_free_text
from app.reports.plan_headline import headline_facts, headline_of, run_s
from app.reports.plan_tables import memory_table, time_table
from app.reports.single_changes import headroom_facts, switch_facts
from costmodel.estimate import throughput_change
from costmodel.layout import num_axes
from costmodel.memory.fit import fit_of, fit_text
from planner.plan import Alternative, Optimality, Plan, to_json
from planner.pricing import capacities_bytes
from planner.rules.check import check_memory
from planner.search.easing import WITH
from planner.search.tight import FITS_WITH
from topology.base.units import format_bytes, format_chance, format_seconds

if TYPE_CHECKING:
    from planner.analysis.headroom import HeadroomPrice
    from planner.analysis.switch_effects import SwitchEffect


def plan_answer(
    plan: Plan, *, headroom: HeadroomPrice | None = None, switch: SwitchEffect | None = None
) -> Answer:
    """Everything `plan train` says about its plan.

    Args:
        plan: The plan.
        headroom: What its free memory costs, where that was searched for.
        switch: The switch that would shorten its step most, where any was tried.
    """
    plan = to_its_end(plan)
    sections: list[Section] = [
        headline_facts(plan),
        *_tight(plan),
        *_campaign(plan),
        layout_lines(plan),
        time_table(plan.estimate),
        memory_table(plan),
        proof_facts(plan),
        *headroom_facts(plan, headroom),
        *switch_facts(switch),
    ]
    if plan.alternatives:
        sections.append(alternatives_table(plan))
    notes = plan.assumptions + tuple(
        text for text in plan.estimate.assumptions if text not in plan.assumptions
    )
    if notes:
        sections.append(Lines(title="Assumed", lines=notes))
    missed = missed_sections(plan)
    return Answer(
        headline=headline_of(plan),
        sections=(sections[0], *missed, *sections[1:]),
        document=lambda: to_json(plan),
        records=tuple(plan.rows()),
        brief=(brief_facts(plan, switch), *missed, *_tight(plan)),
        exit_code=NO_FEASIBLE_PLAN if missed else ANSWERED,
    )


def missed_sections(plan: Plan) -> tuple[Section, ...]:
    """The limits of its run that a plan misses: the answer to whether they are kept is no."""
    lines = missed_words(plan)
    return (Lines(title="Missed", lines=lines),) if lines else ()


def to_its_end(plan: Plan) -> Plan:
    """The plan with its campaign where tokens are asked; nothing of it is loaded for a step alone."""
    if plan.request.job.total_tokens is None:
        return plan
    from planner.campaign.finish import with_campaign_if_any

    return with_campaign_if_any(plan)


def _tight(plan: Plan) -> tuple[Section, ...]:
    """What would make a layout fit, where none does and the plan is tight."""
    lines = tuple(text for text in plan.assumptions if text.startswith(FITS_WITH))
    return (Lines(title=_fit_title(plan.estimate.out_of_memory_chance), lines=lines),) if lines else ()


def _fit_title(chance: float) -> str:
    """The word for a chance of OOM and the chance, as a title."""
    words = fit_text(chance)
    return f"{words[0].upper()}{words[1:]}"


def _campaign(plan: Plan) -> tuple[Section, ...]:
    """What the plan says of its run to the last token, if it was asked."""
    if plan.campaign is None:
        return ()
    from app.reports.campaign.sections import campaign_sections
    from planner.campaign.finish import finish_gap

    return campaign_sections(plan.campaign, run_s(plan.request, plan.estimate), finish_gap(plan))


def proof_facts(plan: Plan) -> Facts:
    """How sure the search is that nothing is better, among layouts that leave as much memory free."""
    optimality = plan.optimality
    if optimality.status == "given":
        return Facts(title="Proof", pairs=(("answer", "the one layout asked for, held as it is"),))
    if optimality.enumerated == 1:
        split = "its stages split best"
        if optimality.status == "best-found":
            split = f"of its splits the {_certainty(optimality)}"
        return Facts(title="Proof", pairs=(("answer", f"the one layout asked for, {split}"),))
    pruned = sorted(optimality.pruned.items(), key=lambda item: -item[1])
    dismissed = sum(optimality.pruned.values())
    looked = f"{optimality.enumerated:,} layouts enumerated · {dismissed:,} dismissed"
    effort = f"{looked} · {optimality.solved:,} solved"
    pairs = (
        ("answer", _certainty(optimality) + left_free_text(plan.request)),
        ("search", f"{effort} · {format_seconds(plan.search_time_s)}"),
        ("dismissed by", " · ".join(f"{rule} {count:,}" for rule, count in pruned)),
    )
    return Facts(title="Proof", pairs=tuple((name, text) for name, text in pairs if text))


def _certainty(optimality: Optimality) -> str:
    """What is proven, with the bound that proves it."""
    if optimality.bound_bytes is not None:
        bound = f"{format_bytes(optimality.bound_bytes)} hold no plan within the band of the fastest"
        return f"emptiest to within {format_percent(optimality.gap)}: {bound}"
    bound = f"bound {format_seconds(optimality.bound_s)}"
    if optimality.status == "proven":
        return f"proven optimal under the cost model ({bound})"
    return f"best found; nothing can be more than {format_percent(optimality.gap)} better ({bound})"


def alternative_change(other: Alternative) -> str:
    """Change of tokens/s of an alternative against the plan."""
    return format_share(throughput_change(1.0, 1.0 + other.slower_by), signed=True)


def alternatives_table(plan: Plan) -> Table:
    """The other plans worth considering."""
    where = [other_nodes(plan, other) for other in plan.alternatives]
    rows = [
        (
            str(number),
            plan_words(other),
            *([where[number - 1]] if any(where) else []),
            format_seconds(other.step_time_s),
            alternative_change(other) + (" (tie)" if other.tied else ""),
            format_bytes(other.peak_memory_bytes),
            format_chance(other.out_of_memory_chance) if other.out_of_memory_chance is not None else "–",
        )
        for number, other in enumerate(plan.alternatives, start=1)
    ]
    return Table(
        title="Also considered",
        columns=(
            "", "layout", *(["nodes"] if any(where) else []), "step time", "tokens/s", "peak memory", "OOM"
        ),
        rows=tuple(rows), align="rllrrrr" if any(where) else "rlrrrr",
        note=_ties_text(plan),
    )  # fmt: skip


def _ties_text(plan: Plan) -> str:
    """What a tie is, and which tied plans are simpler or leave more memory free than the fastest."""
    ties = {number: other for number, other in enumerate(plan.alternatives, start=1) if other.tied}
    if not ties:
        return ""
    text = "tie: the error band cannot tell it from the plan above"
    simplest = min(ties, key=lambda number: (num_axes(ties[number].layout), number))
    emptiest = min(ties, key=lambda number: (ties[number].peak_memory_bytes, number))
    fewer_axes = num_axes(ties[simplest].layout) < num_axes(plan.layout)
    more_free = ties[emptiest].peak_memory_bytes < plan.estimate.peak_memory_bytes
    if fewer_axes:
        text += f"; {simplest} splits fewer axes"
    if more_free:
        same = fewer_axes and simplest == emptiest
        text += " and leaves most memory free" if same else f"; {emptiest} leaves most memory free"
    return text


def estimate_answer(plan: Plan, switch: SwitchEffect | None = None) -> Answer:
    """Everything about one given layout; the exit code says that it does not fit."""
    answer = plan_answer(plan, switch=switch)
    chance = plan.estimate.out_of_memory_chance
    violation = check_memory(
        plan.estimate.memory_by_stage, capacities_bytes(plan), plan.problem.memory_headroom
    )
    if fit_of(chance) == "fits" or violation is None:
        return answer
    help_ = next((text for text in plan.assumptions if text.startswith(WITH)), violation.hint)
    lines = Lines(title=_fit_title(chance), lines=(violation.message, help_))
    code = NO_FEASIBLE_PLAN if fit_of(chance) == "does not fit" else answer.exit_code
    sections, brief = (*answer.sections, lines), (*answer.brief, lines)
    return replace(answer, sections=sections, brief=brief, exit_code=code)
