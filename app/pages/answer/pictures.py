"""A picture for every question about a plan; only what is open is drawn.

A choice inside a tab is a fragment: it draws that tab again and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final

import streamlit as st

from app.figures.curves import scaling_curve
from app.figures.fabric_tree import fabric_tree, unfolds
from app.figures.link_heat import link_heat
from app.figures.memory import estimate_bars
from app.figures.network import network_map
from app.figures.roofline import bound_of, roofline
from app.figures.schedule.gantt import STRETCHES, schedule_gantt, stretch
from app.figures.schedule.memory_over_time import memory_over_time
from app.figures.step_time import PART_LABELS, waterfall
from app.figures.tornado import tornado
from app.pages.answer.headline import ACCURACY
from app.pages.answer.money import show_money
from app.pages.answer.timeline import show_timeline
from app.pages.base.fit_colours import fit_tint
from app.pages.base.frame import (
    MOST_CACHED_PLANS,
    asked,
    columns_of,
    draw,
    draw_table,
    guarded,
    plain,
    plan_or_none,
    request_key,
)
from app.pages.base.sections import show_section
from app.pages.question.axes import load_layout
from app.quantities import (
    format_like,
    format_number,
    format_percent,
    format_share,
    format_usd,
)
from app.reports.answer import Answer
from app.reports.campaign.sections import campaign_sections
from app.reports.explain import explanation_answer
from app.reports.layout_words import UNLIKE, layer_words, other_nodes
from app.reports.plan import alternative_change
from app.reports.plan_headline import cluster_of, evidence_text, run_s
from costmodel.estimate import PART_NAMES
from costmodel.kernels.saved import calibration_for
from costmodel.layout import layout_words, num_microbatches
from costmodel.parallel.axes import PARTS
from planner.analysis.capacity import Limits
from planner.analysis.explain import Share, explain, runner_up
from planner.analysis.link_load import axis_groups, link_load
from planner.analysis.op_points import OpPoint, op_points
from planner.analysis.schedule import schedule_of
from planner.analysis.what_if import (
    VARIATIONS,
    ScalePoint,
    scale_points,
    scale_values,
    sensitivities,
    step_per_token,
)
from planner.campaign.finish import campaign_or_none, with_campaign
from planner.plan import Plan
from planner.pricing import capacity_of_fullest
from topology.base.counts import counted
from topology.base.units import TERA, format_bytes, format_seconds, format_seconds_band, three_digits
from topology.hardware.gpu import Gpu

VIEWS: Final[Mapping[str, tuple[str, ...]]] = {
    "Plan": ("What else was close?", "Why is there a bubble?", "Which link hurts?"),
    "Evidence": ("Can I trust it?", "What binds each op?"),
    "Money and time": ("When is it finished?", "Time or money?"),
    "Sensitivity": ("What would help most?", "What if there were more?", "What matters most?"),
}
"""The tabs, and the questions of each; the first is the one that a tab opens at."""
PICTURES: Final = tuple(chain.from_iterable(VIEWS.values()))
PICTURE, VIEW = "picture", "view"
MOST_PARTS = 2
"""Parts of the step that are named where a plan lost."""
LEAST_SHARE = 0.005
"""Parts that differ by less of the step do not decide."""


def show_pictures(plan: Plan, limits: Limits) -> None:
    """Draw four tabs, whose labels carry their number; only the picture that is open is computed."""
    if plan.kind_of_stage:
        st.info(f"Only the fabric is drawn: {UNLIKE}. The numbers above and the files are the plan's.")
        _network(plan)
        return
    labels = {view: f"{view} · {number}" for view, number in tab_numbers(plan).items()}
    wanted = str(st.session_state.get(PICTURE) or st.query_params.get(PICTURE, PICTURES[0]))
    open_view = next((view for view, questions in VIEWS.items() if wanted in questions), "Plan")
    tabs = st.tabs(list(labels.values()), key=VIEW, default=labels[open_view], on_change=_open_view)
    shown: Mapping[str, Callable[[Plan], None]] = {
        "What else was close?": _alternatives,
        "Why is there a bubble?": _bubble,
        "Which link hurts?": _network,
        "Can I trust it?": _evidence,
        "What binds each op?": _ops,
        "When is it finished?": _finished,
        "Time or money?": partial(show_money, limits=limits),
        "What would help most?": _explained,
        "What if there were more?": _more,
        "What matters most?": _matters,
    }
    for tab, (view, questions) in zip(tabs, VIEWS.items(), strict=True):
        if tab.open:
            with tab:
                if view == "Plan":
                    _memory_and_time(plan)
                picture = st.segmented_control(
                    f"Questions of {view.lower()}", questions, default=questions[0], key="picture",
                    bind="query-params", required=True, label_visibility="collapsed",
                )  # fmt: skip
                shown[str(picture)](plan)


def _open_view() -> None:
    """Ask the first question of the tab that was opened."""
    view = str(st.session_state[VIEW]).partition(" · ")[0]
    st.session_state[PICTURE] = VIEWS[view][0]


def tab_numbers(plan: Plan) -> dict[str, str]:
    """The number that each tab is about."""
    estimate = plan.estimate
    ties = sum(other.tied for other in plan.alternatives)
    run = None if plan.request.job.total_tokens is None else campaign_or_none(plan)
    parts = {name: float(getattr(estimate.time, part)) for part, name in PART_NAMES.items()}
    longest = max(parts, key=parts.__getitem__)
    return {
        "Plan": counted(ties, "tie"),
        "Evidence": counted(estimate.evidence[0].runs, "run") if estimate.evidence else "no runs",
        "Money and time": f"{format_usd(estimate.usd_per_billion_tokens)} per billion tokens"
        if run is None
        else f"{three_digits(run.days.p50)} days",
        "Sensitivity": f"{format_share(parts[longest] / estimate.step_time_s)} {longest}",
    }


def _memory_and_time(plan: Plan) -> None:
    """Memory and the step side by side."""
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("#### Does it fit, and which stage is fullest?")
        capacity = capacity_of_fullest(plan)
        layers = layer_words(plan.layers_of_stage, plan.layout)
        draw(estimate_bars(plan.estimate, capacity, layers), "memory")
    with right:
        st.markdown("#### Where does the step go?")
        draw(waterfall(plan.estimate), "waterfall")


def _evidence(plan: Plan) -> None:
    """What was measured of each thing that the plan uses, and what the proof rests on."""
    if plan.estimate.evidence:
        st.markdown(plain(f"{evidence_text(plan.request, plan.estimate)}."))
        rows = [
            {
                "the plan uses": item.used,
                "runs with it": f"{item.runs:,}",
                "runs on other GPUs": f"{item.elsewhere:,}",
                "so": "measured" if item.runs else "the band is wider",
            }
            for item in plan.estimate.evidence
        ]
        draw_table(columns_of(rows), alt="Measured runs of each thing that the plan uses")
    if ACCURACY in st.session_state:
        st.page_link(st.session_state[ACCURACY], label="How far off it is for someone new")
    pruned = [(rule, count) for rule, count in plan.optimality.pruned.items() if count]
    if pruned:
        st.markdown("#### What the proof dismissed")
        rows = [
            {"rule or bound": rule, "layouts": f"{count:,}", "command": f"plan rule {rule}"}
            for rule, count in sorted(pruned, key=lambda pair: -pair[1])
        ]
        draw_table(columns_of(rows), alt="Layouts that each rule or bound dismissed")


def _explained(plan: Plan) -> None:
    """What `plan explain` says: what binds the plan, and the one change that helps most."""
    for section in explained(request_key(plan.request), plan).sections[2:]:
        show_section(section)


def _finished(plan: Plan) -> None:
    """The run to its last token: failures, checkpoints, spares, days and dollars."""
    if plan.request.job.total_tokens is None:
        st.info("Say above how many tokens to train.")
        return
    if plan.campaign is None:
        with_campaign(plan)  # refuses it, and says why
        return
    for section in campaign_sections(plan.campaign, run_s(plan.request, plan.estimate)):
        show_section(section)


@st.cache_resource(max_entries=MOST_CACHED_PLANS, show_spinner="Planning with one change at a time")  # type: ignore[untyped-decorator]
def explained(key: str, _plan: Plan) -> Answer:  # noqa: ARG001 - the key is what is cached by
    """The explanation of a plan; told once per question."""
    return explanation_answer(_plan, asked(explain, _plan))


def _alternatives(plan: Plan) -> None:
    """Plans that were close; a click loads one."""
    if not plan.alternatives:
        st.info("No other combination of degrees is possible.")
        return
    rows = [
        {
            "layout": layout_words(other.layout),
            **({"nodes": where} if (where := other_nodes(plan, other)) else {}),
            "step time": format_seconds(other.step_time_s),
            "tokens/s": alternative_change(other),
            "verdict": "tie" if other.tied else "slower",
            "peak memory": format_bytes(other.peak_memory_bytes),
            "memory": other.fit_text,
            "loses most on": reason,
        }
        for other, reason in zip(plan.alternatives, reasons(request_key(plan.request), plan), strict=True)
    ]
    chosen: Any = draw_table(
        columns_of(rows),
        alt="Plans that were close to the best one",
        tints={"memory": [fit_tint(other.out_of_memory_chance) for other in plan.alternatives]},
        on_select="rerun",
        selection_mode="single-row",
        key="alternatives",
    )
    picked = chosen["selection"]["rows"]
    if picked and picked[0] < len(plan.alternatives):
        other = plan.alternatives[picked[0]]
        st.button(
            f"Load {layout_words(other.layout)}",
            on_click=load_layout,
            args=(other.layout,),
            type="primary",
            icon=":material/input:",
        )
    else:
        st.caption("The error band cannot tell a tie from the best plan. Select a row to load that plan.")


@st.fragment  # type: ignore[untyped-decorator]
@guarded
def _bubble(plan: Plan) -> None:
    """The simulated schedule, and the memory of its ranks while it runs."""
    show_timeline(plan)
    events = schedule_of(plan, calibration_for(plan.request.cluster))
    if not events:
        st.info("There is no pipeline in this plan, so there is no bubble.")
        return
    st.markdown("#### Why is there a bubble?")
    window = None
    if stretch(events, STRETCHES[1]) is not None:
        which = st.segmented_control(
            "Stretch", STRETCHES, default=STRETCHES[0], key="stretch", bind="query-params", required=True
        )
        window = stretch(events, str(which))
    draw(schedule_gantt(events, num_microbatches(plan.layout, plan.request.job), window), "gantt")
    share = format_percent(plan.estimate.time.bubble_s / plan.estimate.step_time_s)
    st.caption(f"In the whole step the bubble is {share}. trace.json above opens at ui.perfetto.dev.")
    capacity = capacity_of_fullest(plan)
    draw(memory_over_time(events, plan.estimate.memory_by_stage, capacity), "memory_over_time")


@st.cache_data(max_entries=MOST_CACHED_PLANS, show_spinner=False)  # type: ignore[untyped-decorator]
def reasons(key: str, _plan: Plan) -> tuple[str, ...]:  # noqa: ARG001 - the key is what is cached by
    """Why each alternative lost; told once per question."""
    return why_lost(_plan)


@st.fragment  # type: ignore[untyped-decorator]  # streamlit has no types here
@guarded
def _network(plan: Plan) -> None:
    """The fabric with the groups of one axis."""
    cluster = cluster_of(plan.request)
    axes = [axis for axis in PARTS if getattr(plan.layout, axis) > 1]
    unlike = bool(plan.kind_of_stage)  # whose links differ, so that no level is as busy everywhere
    time = plan.estimate.time
    loads = () if unlike else link_load(cluster.hierarchy, plan.layout, time, plan.estimate.step_time_s)
    axis = (
        st.segmented_control(
            "Colour the groups of", axes, default=axes[0], key="axis", bind="query-params", required=True
        )
        if axes
        else None
    )
    groups = axis_groups(plan.layout, str(axis), plan.mesh.gpu_of_rank) if axis else ()
    if any(load.busy for load in loads):
        draw(link_heat(loads), "link_heat")
    if unfolds(cluster, loads):
        draw(fabric_tree(cluster.hierarchy.num_gpus, loads, groups, str(axis or "")), "network")
    else:
        draw(network_map(cluster, loads, groups), "network")


@st.fragment  # type: ignore[untyped-decorator]
@guarded
def _more(plan: Plan) -> None:
    """Scaling curves."""
    names = [variation.name for variation in VARIATIONS]
    name = st.segmented_control(
        "Vary", names, default=names[0], key="vary", bind="query-params", required=True
    )
    variation = next(entry for entry in VARIATIONS if entry.name == name)
    with st.spinner("Planning every point", show_time=True):
        points = list(scale_points(plan.request, variation, plan_or_none))
    if points:
        draw(scaling_curve(points, variation.name, variation.value(plan.request)), "scaling")
        draw_table(point_columns(points, variation.name), alt=f"The best plan at every {variation.name}")
        drawn = {point.value for point in points}
        missing = [f"{value:,}" for value in scale_values(plan.request, variation) if value not in drawn]
        if missing:
            st.caption(f"There is no plan at {', '.join(missing)} {variation.name}.")
    else:
        st.info("None of the neighbouring values has a plan.")


def point_columns(points: Sequence[ScalePoint], varied: str) -> dict[str, list[str]]:
    """Points of a scaling curve as a table."""
    rows = [
        {
            varied: f"{point.value:,}",
            "layout": point.layout,
            "step time": format_seconds(point.step_time_s),
            "80 % band": format_seconds_band(point.step_time_s, point.lower_s, point.upper_s),
            "tokens/s": format_number(point.tokens_per_s),
        }
        for point in points
    ]
    return columns_of(rows)


@st.fragment  # type: ignore[untyped-decorator]
@guarded
def _matters(plan: Plan) -> None:
    """Sensitivity of time or money."""
    outcomes = {
        "time per token": step_per_token,
        "$ per billion tokens": lambda p: p.estimate.usd_per_billion_tokens,
    }
    if plan.estimate.usd_per_billion_tokens is None:
        outcomes.pop("$ per billion tokens")
    name = str(
        st.segmented_control(
            "Outcome",
            list(outcomes),
            default="time per token",
            key="outcome",
            bind="query-params",
            required=True,
        )
    )
    with st.spinner("Planning with each fact 20 % lower and higher", show_time=True):
        effects = list(sensitivities(plan, outcomes[name], plan_or_none))
    draw(tornado([effect for effect in effects if not effect.is_none] or effects, name), "tornado")
    st.caption(
        "Every fact is planned anew, but kernel efficiency: kernels are measured, so they are slowed and "
        "hastened under this layout."
    )


def _ops(plan: Plan) -> None:
    """Roofline of the forward kernels of the whole model."""
    cluster = cluster_of(plan.request)
    points = op_points(plan)
    draw(roofline(points, cluster.gpu), "roofline")
    st.caption(
        "Forward kernels of one microbatch on one rank, under the dense bf16 peak. Those of a layer count "
        "once for every layer, those of the head once."
    )
    draw_table(op_columns(points, cluster.gpu), alt="Kernels, the longest first, and what binds them")


def op_columns(points: Sequence[OpPoint], gpu: Gpu) -> dict[str, list[str]]:
    """Kernels as a table, the longest first."""
    total_s = sum(point.total_s for point in points)
    rows = [
        {
            "kernel": point.name,
            "one call": format_seconds(point.seconds),
            "calls": f"{point.calls:,}",
            "share": format_share(point.total_s / total_s),
            "FLOP/byte": format_number(point.flop / point.moved_bytes),
            "TFLOP/s": format_number(point.flop / point.seconds / TERA),
            "bound by": bound_of(point, gpu).removesuffix("-bound"),
        }
        for point in sorted(points, key=lambda point: -point.total_s)
    ]
    return columns_of(rows)


def why_lost(plan: Plan) -> tuple[str, ...]:
    """For every alternative, what it loses most on."""
    problem = plan.problem.of(cal=calibration_for(plan.request.cluster))
    rivals = (runner_up(replace(plan, alternatives=(other,)), problem) for other in plan.alternatives)
    return tuple(lost_words(rival.lost_on, plan.estimate.step_time_s) for rival in rivals if rival)


def lost_words(lost: Sequence[Share], step_time_s: float) -> str:
    """The parts that cost most, in words.

    >>> lost_words([Share(part="pipeline bubble", seconds_s=2.0, share=0.2)], 10.0)
    'bubble +2.00 s'
    """
    label = {name: PART_LABELS[field.removesuffix("_s")] for field, name in PART_NAMES.items()}
    parts = [share for share in lost if share.share >= LEAST_SHARE][:MOST_PARTS]
    texts = (f"{label[share.part]} +{format_like(share.seconds_s, step_time_s)}" for share in parts)
    return ", ".join(texts) or "–"
