"""What `plan explain` says: what binds a plan, why the runner-up lost, which one change would help most.

For a request without a plan: which rules are in the way, and the nearest changes that give one.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.errors import ANSWERED, NO_FEASIBLE_PLAN
from app.quantities import format_like, format_share
from app.reports.answer import Answer, Facts, Lines, Section, Table, bar, json_text
from app.reports.layout_words import layout_lines, plan_words
from app.reports.plan import missed_sections, to_its_end
from app.reports.plan_headline import finish_words, headline, headline_of, money_text, step_text
from app.reports.refusal import refusal_document
from app.reports.single_changes import headroom_facts
from costmodel.estimate import throughput_change
from costmodel.layout import layout_words
from planner.analysis.explain import Explanation, RunnerUp, WhatIf, explain
from planner.analysis.switch_effects import SwitchEffect
from planner.plan import Plan
from planner.search.infeasible import Infeasible, cause_of, no_plan, rejected_text
from topology.base.decode import unstructure
from topology.base.units import GIB, format_seconds

MOST_SWITCHES = 5
_FEWEST_SHARE = 0.001
_LEAST_GAIN = 0.001
"""Changes that shorten the step by less help nobody."""


def explain_answer(plan: Plan) -> Answer:
    """Explain a plan."""
    return explanation_answer(to_its_end(plan), explain(plan))


def explanation_answer(plan: Plan, explanation: Explanation) -> Answer:
    """What an explanation of a plan says."""
    sections: list[Section] = [
        Facts(title="", pairs=(*_asked_of_it(plan), ("layout", plan_words(plan)))),
        layout_lines(plan),
        _shares_table(explanation, plan.estimate.step_time_s),
        Lines(title="What binds it", lines=(explanation.memory, *explanation.links)),
        *headroom_facts(plan, explanation.headroom),
    ]
    if explanation.runner_up is not None:
        words = plan_words(plan.alternatives[0])
        sections.append(_runner_up_table(explanation.runner_up, words, plan.estimate.step_time_s))
    if explanation.what_if:
        sections.append(_what_if_table(explanation.what_if))
    if helpful := [effect for effect in explanation.switches if _is_helpful(effect)]:
        sections.append(_switch_table(helpful))
    elif explanation.switches:
        sections.append(
            Lines(
                title="Which switch would help most",
                lines=(f"none: of {len(explanation.switches)} tried, none is faster or leaner",),
            )
        )
    missed, limits = missed_sections(plan), plan.campaign.missed if plan.campaign else ()
    return Answer(
        headline=headline_of(plan),
        sections=(sections[0], *missed, *sections[1:]),
        document=lambda: json_text({**unstructure(explanation), "missed": list(limits)}),
        records=tuple(unstructure(change) for change in explanation.what_if),
        exit_code=NO_FEASIBLE_PLAN if missed else ANSWERED,
    )


def _asked_of_it(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What was asked of a plan: its step, its money, and the chance of its deadline and its budget."""
    pairs = [("step time", step_text(plan.estimate))]
    if plan.request.objective == "cost":
        pairs.append(("cost", money_text(plan.request, plan.estimate)))
    if plan.request.job.total_tokens is not None:
        pairs.append(("run", finish_words(plan)))
    return tuple(pairs)


def infeasible_answer(infeasible: Infeasible) -> Answer:
    """Explain why a request has no plan."""
    rows = tuple((change.change, change.flag) for change in infeasible.nearest)
    sections: list[Section] = [Lines(title="Why there is no plan", lines=(cause_of(infeasible),))]
    if infeasible.rejected:
        sections.append(Lines(title="Rejected layouts by rule", lines=(rejected_text(infeasible.rejected),)))
    if infeasible.violations:
        sections.append(
            Lines(title="What a layout would need", lines=tuple(v.hint for v in infeasible.violations))
        )
    if rows:
        sections.append(
            Table(title="Nearest changes that give a plan", columns=("change", "flag"), rows=rows, align="ll")
        )
    document = refusal_document(no_plan(infeasible), NO_FEASIBLE_PLAN)
    return Answer(
        headline=headline(infeasible.request),
        sections=tuple(sections),
        document=lambda: json_text(document),
        records=tuple(unstructure(change) for change in infeasible.nearest),
        exit_code=NO_FEASIBLE_PLAN,
    )


def _shares_table(explanation: Explanation, whole_s: float) -> Table:
    """Parts of the step, largest first."""
    rows = tuple(
        (share.part, format_like(share.seconds_s, whole_s), format_share(share.share), bar(share.share))
        for share in explanation.shares
        if share.share > _FEWEST_SHARE
    )
    return Table(title="Where the step goes", columns=("", "time", "share", ""), rows=rows, align="lrrl")


def _runner_up_table(runner_up: RunnerUp, words: str, whole_s: float) -> Table:
    """What the runner-up loses, and what it wins."""
    rows = tuple(
        (share.part, ("+" if share.seconds_s > 0 else "") + format_like(share.seconds_s, whole_s))
        for share in runner_up.lost_on
        if abs(share.seconds_s) > _FEWEST_SHARE * whole_s
    )
    verdict = "a tie within the error band" if runner_up.tied else "slower beyond the error band"
    lost = throughput_change(1.0, 1.0 + runner_up.slower_by)
    slower, step = f"{format_share(lost, signed=True)} tokens/s", format_seconds(runner_up.step_time_s)
    return Table(
        title=f"Why the runner-up lost: {words}",
        columns=("part", "difference"),
        rows=rows,
        note=f"{step} a step, {slower}: {verdict}; {_memory_words(runner_up)}",
    )


def _memory_words(runner_up: RunnerUp) -> str:
    """What the runner-up needs more or less of memory: the end of what it does differently."""
    return runner_up.difference.rsplit("; ", 1)[-1]


def _is_helpful(effect: SwitchEffect) -> bool:
    """Whether a switch is faster, or leaner at the same speed."""
    is_leaner = effect.memory_bytes < 0 and effect.faster_by > -_LEAST_GAIN
    return effect.faster_by >= _LEAST_GAIN or is_leaner


def _switch_table(helpful: Sequence[SwitchEffect]) -> Table:
    """Switches of the engine that would be faster or leaner, the fastest first."""
    rows = tuple(
        (
            f"{effect.name}: {effect.before or 'as measured'} to {effect.after}",
            format_seconds(effect.step_time_s),
            format_share(effect.faster_by, signed=True),
            f"{effect.memory_bytes / GIB:+.1f} GiB",
            effect.flag,
        )
        for effect in helpful[:MOST_SWITCHES]
    )
    return Table(
        title="Which switch would help most",
        columns=("switch", "step time", "tokens/s", "peak memory", "flag"),
        rows=rows,
        align="lrrrl",
        note="the layout as it is; switches that change numbers are left out",
    )


def _what_if_table(changes: tuple[WhatIf, ...]) -> Table:
    """Single changes that help, the most helpful first; those that do not are named below."""
    helpful = [change for change in changes if change.faster_by >= _LEAST_GAIN]
    rows = tuple(
        (
            change.change,
            format_seconds(change.step_time_s),
            format_share(change.faster_by, signed=True),
            layout_words(change.layout),
            change.flag,
        )
        for change in helpful
    )
    useless = " · ".join(
        f"{change.change} ({format_share(change.faster_by, signed=True)})"
        for change in changes
        if change.faster_by < _LEAST_GAIN
    )
    columns = ("change", "step time", "tokens/s", "then the layout is", "flag")
    return Table(
        title="Which one change would help most", columns=columns, rows=rows, align="lrrll",
        note=f"would not help: {useless}" if useless else "",
    )  # fmt: skip
