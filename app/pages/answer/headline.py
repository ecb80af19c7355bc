"""The chosen plan in one look: six numbers and their difference to the baseline, the proof, actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import streamlit as st

from app.figures.schedule.gantt import trace_json
from app.pages.answer.launch import show_launch
from app.pages.answer.report import report_html
from app.pages.base.carried import add, carry
from app.pages.base.fit_colours import FIT_COLOURS, FitColour
from app.pages.base.frame import heading_text, plain
from app.pages.question.axes import show_pins
from app.pages.question.bar import CLUSTER_FILE, MODEL_FILE
from app.quantities import format_duration, format_percent, format_sum, format_usd
from app.reports.answer import csv_text, render
from app.reports.explain import explain_answer
from app.reports.plan import plan_answer
from app.reports.plan_brief import plan_sentence
from app.reports.plan_headline import (
    band_text,
    days_text,
    evidence_text,
    headline_of,
    price_text,
    run_s,
)
from costmodel.campaign.record import Campaign
from costmodel.evidence.table import unmeasured
from costmodel.kernels.saved import calibration_for
from costmodel.layout import layout_words
from costmodel.memory.fit import fit_of, fit_text
from planner.analysis.compare import compare, within_band
from planner.analysis.schedule import schedule_of
from planner.campaign.finish import campaign_or_none, with_campaign_if_any
from planner.plan import Plan, steps_of_request, to_json
from planner.pricing import capacity_of_fullest
from planner.questions.flags import Flags, command_line
from topology.base.units import DAY, format_bytes, format_seconds
from topology.pools.rates import unpriced

ACCURACY = "accuracy_page"
"""Where the session keeps the page that answers whether a plan can be trusted."""
DeltaColor = Literal["normal", "inverse", "off"] | FitColour


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One headline number: what is shown, how to compare it, and what it means.

    `of_speed` numbers follow from the time of a step, so that a tie of two plans is a tie of these; `of_step`
    ones compare only where the steps hold the same tokens. A `band` and a
    `verdict` stand in the tile, the second in its `colour`
    where no change to a baseline has one.
    """

    label: str
    text: str
    value: Callable[[Plan], float | None]
    note: str
    lower_is_better: bool = True
    of_speed: bool = True
    of_step: bool = False
    band: str = ""
    verdict: str = ""
    colour: FitColour = "green"


def show_headline(plan: Plan, baseline: Plan | None) -> None:
    """Draw the sentence, its chips, the layout's pins and the numbers."""
    hero = st.container(key="answer", gap="xsmall")
    hero.header(heading_text(plan_sentence(plan)), anchor=False)
    hero.caption(plain(" · ".join(headline_of(plan).split(" · ")[1:])))
    hero.markdown(" ".join(f":{colour}-badge[{plain(words)}]" for colour, words in chips(plan)))
    if not plan.kind_of_stage:
        show_pins(plan.layout)
    row = st.container(key="numbers")
    for column, number in zip(row.columns(6, gap="small"), numbers(plan), strict=True):
        change, colour = tile_difference(plan, baseline, number)
        words = " · ".join(filter(None, (change, number.band, number.verdict)))
        column.metric(
            number.label, number.text, words or None,
            delta_color=colour, help=number.note, border=True,
            delta_arrow="auto" if change else "off", height="stretch",
        )  # fmt: skip
    if baseline is not None:
        show_baseline(baseline)


def chips(plan: Plan) -> tuple[tuple[str, str], ...]:
    """What is to know of a plan before one trusts it, with the colour of each: risk, proof, evidence."""
    chance = plan.estimate.out_of_memory_chance
    risk = (FIT_COLOURS[fit_of(chance)], f"Memory {fit_text(chance)}")
    proof_colour = "blue" if plan.optimality.status == "proven" else "orange"
    result = [risk, (proof_colour, proof(plan))]
    if plan.estimate.evidence:
        evidence = evidence_text(plan.request, plan.estimate)
        result.append(("orange" if unmeasured(plan.estimate.evidence) else "gray", evidence))
    return tuple(result)


def show_baseline(baseline: Plan) -> None:
    """Say what the differences are to."""
    question, layout = headline_of(baseline), layout_words(baseline.layout)
    st.caption(
        plain(f"Differences are to the baseline: {layout} · {question}. A tie is within the error band.")
    )


def numbers(plan: Plan) -> tuple[Number, ...]:
    """The six headline numbers."""
    return (*_speed(plan), *_cost(plan))


def _speed(plan: Plan) -> tuple[Number, ...]:
    """Step time, throughput, utilisation."""
    estimate = plan.estimate
    speed, flop = (x * estimate.step_time_s for x in (estimate.tokens_per_s_per_gpu, estimate.mfu))
    return (
        Number(
            label="Step time",
            text=format_seconds(estimate.step_time_s),
            value=lambda p: p.estimate.step_time_s,
            of_step=True,
            band=band_text(estimate),
            note=f"80 % band {band_text(estimate)}. Bound by {estimate.bound_by}.",
        ),
        Number(
            label="Tokens/s/GPU",
            text=f"{estimate.tokens_per_s_per_gpu:,.0f}",
            lower_is_better=False,
            value=lambda p: p.estimate.tokens_per_s_per_gpu,
            band=f"{speed / estimate.upper_s:,.0f} – {speed / estimate.lower_s:,.0f}",
            note="Tokens of the global batch, per second and GPU.",
        ),
        Number(
            label="MFU",
            text=format_percent(estimate.mfu),
            value=lambda p: p.estimate.mfu,
            lower_is_better=False,
            band=f"{format_percent(flop / estimate.upper_s)} – {format_percent(flop / estimate.lower_s)}",
            note=f"Model FLOP over step × GPUs × dense peak; {format_percent(estimate.hfu)} with recompute.",
        ),
    )


def _cost(plan: Plan) -> tuple[Number, ...]:
    """Memory, money, time to train: the last two of the run to its last token, failures included."""
    estimate, run = plan.estimate, campaign_or_none(plan)
    capacity = capacity_of_fullest(plan)
    low, high = format_bytes(estimate.memory_lower_bytes), format_bytes(estimate.memory_upper_bytes)
    per_tokens = f"{format_usd(estimate.usd_per_billion_tokens)} per billion tokens"
    money = Number(
        label="$ per B tokens", text=format_usd(estimate.usd_per_billion_tokens),
        value=lambda p: p.estimate.usd_per_billion_tokens, note=_price_note(plan),
    )  # fmt: skip
    if run is not None and run.usd is not None:
        band = f"{format_sum(run.usd.p10)} to {format_sum(run.usd.p90)} in eight of ten runs"
        money = Number(
            label="$ for all tokens", text=format_sum(run.usd.p50), value=_usd_of_run,
            band=f"{format_sum(run.usd.p10)} – {format_sum(run.usd.p90)}",
            note=f"Median of the whole run, failures included; {band}. {per_tokens} of steps alone. "
            f"{_price_note(plan)}",
        )  # fmt: skip
    return (
        Number(
            label="Peak memory",
            text=format_bytes(estimate.peak_memory_bytes),
            value=lambda p: p.estimate.peak_memory_bytes,
            of_speed=False,
            note=f"On the fullest stage, of {format_bytes(capacity)}. 80 % band {low} to {high}.",
            band=f"{low} – {high}",
            verdict=fit_text(estimate.out_of_memory_chance),
            colour=FIT_COLOURS[fit_of(estimate.out_of_memory_chance)],
        ),
        money,
        Number(
            label="Time to train",
            text="–" if run is None else format_duration(run.days.p50 * DAY),
            value=_seconds_of_run,
            band="" if run is None else f"{days_text(run.days)} days",
            note=_time_note(plan, run),
        ),
    )


def _seconds_of_run(plan: Plan) -> float | None:
    """Median seconds to the last token; None without an end."""
    run = campaign_or_none(plan)
    return None if run is None else run.days.p50 * DAY


def _usd_of_run(plan: Plan) -> float | None:
    """Median dollars to the last token; None without an end or a price."""
    run = campaign_or_none(plan)
    return None if run is None or run.usd is None else run.usd.p50


def _time_note(plan: Plan, run: Campaign | None) -> str:
    """What the time to train is, and what its steps take alone."""
    if plan.request.job.total_tokens is None:
        return "Say how many tokens to train."
    if run is None:
        return "Failures leave this run no headway."
    duration = format_duration(run_s(plan.request, plan.estimate))
    alone = f"{steps_of_request(plan.request):,} steps alone take {duration}"
    return f"Median, failures included; {days_text(run.days)} days in eight of ten runs. {alone}."


def _price_note(plan: Plan) -> str:
    """Where the price comes from."""
    spec = plan.request.cluster
    if unpriced(spec):
        return "No price is known for this GPU: set one under More."
    return f"At {price_text(spec)} per GPU-hour, {spec.price_as_of}"


def tile_difference(
    plan: Plan, baseline: Plan | None, number: Number
) -> tuple[str | None, DeltaColor | FitColour]:
    """Difference to the baseline and the colour of the tile: the verdict's where there is none."""
    change, colour = delta(plan, baseline, number)
    return change, colour if change or not number.verdict else number.colour


def delta(plan: Plan, baseline: Plan | None, number: Number) -> tuple[str | None, DeltaColor]:
    """Relative difference to the baseline, and its colour: grey where it decides nothing.

    Steps of unequal tokens do not compare, nor do models; what follows from speed ties where the error band
    cannot tell the two numbers apart, whatever else differs.
    """
    if baseline is None:
        return None, "off"
    now, then = number.value(plan), number.value(baseline)
    if now is None or not then:
        return None, "off"
    comparison, text = compare(baseline, plan), format_percent(now / then - 1, signed=True)
    if number.of_step and not comparison.same_work:
        return f"{text}, other tokens", "off"
    if not comparison.same_model:
        return f"{text}, other model", "off"
    if now == then:
        return text, "off"
    gain = then / now if number.lower_is_better else now / then
    if number.of_speed and within_band(baseline, plan, gain):
        return f"{text}, a tie", "off"
    return text, "inverse" if number.lower_is_better else "normal"


def proof(plan: Plan) -> str:
    """How sure the search is."""
    optimality = plan.optimality
    looked = f"{optimality.enumerated:,} layouts in {format_seconds(plan.search_time_s)}"
    if optimality.status == "proven":
        return f"proven best of {looked}"
    return f"best found, at most {format_percent(optimality.gap)} from the best of {looked}"


def show_actions(plan: Plan, flags: Flags, baseline: Plan | None) -> None:
    """Pin a baseline, copy the command, take the plan home."""
    row = st.container(key="actions")
    left, second, middle, launch, home = row.columns(5, gap="small")
    if baseline is None:
        pin, words = ":material/push_pin:", ("baseline", plan.request)
        left.button("Pin as baseline", icon=pin, on_click=carry, args=words, width="stretch")
    else:
        left.button(
            "Unpin baseline", icon=":material/keep_off:", on_click=carry, args=("baseline",), width="stretch"
        )
    second.button(
        "Add to compare",
        icon=":material/compare_arrows:",
        on_click=add,
        args=("with", plan.request),
        width="stretch",
    )
    with middle.popover("Command", icon=":material/terminal:", width="stretch"):
        st.caption("This command gives exactly this plan.")
        st.code(command_line(flags), language="bash", wrap_lines=True)
        if {MODEL_FILE, CLUSTER_FILE} & {flags.model, flags.cluster}:
            st.caption("Run it beside the file that was uploaded.")
    with launch:
        show_launch(plan)
    with home.popover("Take home", icon=":material/download:", width="stretch"):
        for name, write in downloads_of(plan, command_line(flags)).items():
            st.download_button(
                name,
                write,
                name,
                MIME_OF_SUFFIX[name.rpartition(".")[2]],
                icon=":material/download:",
                on_click="ignore",
                width="stretch",
                key=f"get_{name}",
                help=HELP.get(name),
            )


HELP = {"trace.json": "Open it at ui.perfetto.dev", "report.html": "Open it in a browser; print it for a PDF"}
MIME_OF_SUFFIX = {"html": "text/html", "csv": "text/csv", "json": "application/json", "md": "text/markdown"}


def downloads_of(plan: Plan, command: str = "") -> dict[str, Callable[[], str]]:
    """What can be taken home, by file name; written only when somebody asks for it.

    Args:
        plan: The plan.
        command: What gives it, for the report.
    """
    return {
        "plan.json": lambda: to_json(with_campaign_if_any(plan)),
        "report.md": lambda: (
            render(plan_answer(plan), "markdown") + "\n" + render(explain_answer(plan), "markdown")
        ),
        "report.html": lambda: report_html(plan, command),
        "plans.csv": lambda: csv_text(plan.rows()),
        "trace.json": lambda: trace_json(
            schedule_of(plan, calibration_for(plan.request.cluster)), plan.request.model.name
        ),
    }
