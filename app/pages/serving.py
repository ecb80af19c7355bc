"""Serving: the fleet that keeps latency limits, and what more load would cost in latency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import streamlit as st

from app.figures.serving import LoadPoint, Within, latency_throughput
from app.pages.answer.launch import archive
from app.pages.base.choices import choose, require_all_read, text_box
from app.pages.base.frame import asked, draw, guarded, plain, show_error
from app.pages.base.sections import show_answer
from app.pages.question.bar import BY_GPU
from app.quantities import format_usd
from app.reports.answer import render as rendered
from app.reports.serving.plan import serving_answer
from costmodel.models.catalog import model_aliases, model_names
from costmodel.serving.engine import serving_stacks
from planner.analysis.serving.fleets import find_fleet
from planner.deployment.folder import folder
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import PINS, understand_serving
from planner.serving.plan import ServingPlan
from topology.base.errors import InputError
from topology.base.units import format_chance, format_seconds, parse_seconds, three_digits
from topology.catalog import cluster_names, gpus
from topology.hardware.datasheets import default_gpu, gpu_aliases

DEFAULT_MODEL = "llama-3.1-70b"
LOADS = (1, 4, 16, 64, 256)
FIND = "find"
COMPARED = "compared"
USUAL_ENGINE = "vllm"
_WIDTHS: Final = (2.2, 1.5, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0)
COUNTS = (FIND, "1", "2", "4", "8", "16", "32", "64")
TILES_A_ROW = 4
"""More are cut off at 1,280 pixels."""
NO_LIMIT = "1h"
"""A latency that no load reaches, so that it is told at the percentile and limits nothing."""
FIRST_TOKEN_LIMITS = ("100ms", "200ms", "300ms", "500ms", "1s", "2s", "3s", "5s", "10s")
TOKEN_LIMITS = ("5ms", "10ms", "15ms", "20ms", "30ms", "50ms", "75ms", "100ms", "200ms")


@guarded
def render() -> None:
    """Draw the page."""
    flags = load_flags()
    require_all_read()
    with st.spinner("Searching fleets", show_time=True):
        plan = fleet(flags)
    answer = serving_answer(plan)
    st.container(key="answer").subheader(plain(answer.headline), anchor=False)
    show_fleet_numbers(plan)
    show_downloads(plan)
    if st.toggle("Draw throughput against latency", key="curve", bind="query-params"):
        with st.spinner("Serving every load", show_time=True):
            points = list(load_points(same_fleet(flags, plan)))
        within = limits_of(flags)
        rate = f"{three_digits(plan.estimate.request_rate_per_s)} requests/s"
        planned = load_point(plan, rate, "planned", within)
        draw(latency_throughput(planned, points, within, float(flags.percentile or 99)), "latency_throughput")
    show_answer(replace(answer, headline=""))


@st.cache_resource(max_entries=64, show_spinner=False)  # type: ignore[untyped-decorator]  # streamlit has no types here
def fleet(flags: ServeFlags) -> ServingPlan:
    """The fleet that serves a load; equal questions are searched once."""
    return asked(find_fleet, understand_serving(flags))


def load_flags() -> ServeFlags:
    """Draw the bar and the panel of everything else, and read them."""
    bar = st.container(key="question_bar").columns(_WIDTHS, gap="small")
    with st.expander("More: cluster, engine, adapters, weights, percentile", key="more"):
        left, middle, right = st.columns(3, gap="medium")
    model = choose(
        bar[0], "Model", list(model_names()), "model", default=DEFAULT_MODEL, aliases=model_aliases()
    )
    place = choose(left, "Cluster", [BY_GPU, *cluster_names()], "cluster")
    gpu: str | None = None
    if place == BY_GPU:
        gpu = choose(bar[1], "GPU", list(gpus()), "gpu", default=default_gpu(), aliases=gpu_aliases())
    else:
        bar[1].caption(f"GPUs of {place}")
    count = choose(bar[2], "GPUs", COUNTS, "serve_gpus", free=True)
    rate = text_box(bar[3], "Requests/s", "2/s", "rate", max_chars=12)
    prompt = text_box(bar[4], "Prompt tokens", "2000", "input", max_chars=8)
    output = text_box(bar[5], "Output tokens", "300", "output", max_chars=8)
    ttft = choose(bar[6], "First token", FIRST_TOKEN_LIMITS, "ttft", default="1s", free=True)
    tpot = choose(bar[7], "Each token", TOKEN_LIMITS, "tpot", default="50ms", free=True)
    percentile = choose(left, "Percentile", ["50", "90", "95", "99"], "percentile", default="99")
    engine = choose(middle, "Serving engine", list(serving_stacks()), "serve_engine", default=USUAL_ENGINE)
    weights = choose(middle, "Weights", [COMPARED, "bf16", "fp8", "int8", "int4", "fp4"], "weights")
    adapter = text_box(
        right, "Adapter", "", "serve_adapter", max_chars=80, placeholder="lora:r=16",
        help="Requests name LoRA adapters.",
    )  # fmt: skip
    adapters = text_box(right, "How many adapters", "", "adapters", max_chars=8, placeholder="1")
    return ServeFlags(
        model=model,
        gpu=gpu,
        cluster=None if place == BY_GPU else place,
        gpus=None if count == FIND else count,
        input_tokens=prompt or None,
        output_tokens=output or None,
        ttft=ttft,
        tpot=tpot,
        percentile=percentile,
        weights=None if weights == COMPARED else weights,
        rate=rate or None,
        engine=None if engine == USUAL_ENGINE else engine,
        adapter=adapter or None,
        adapters=adapters or None,
    )


def show_downloads(plan: ServingPlan) -> None:
    """Offer the files that start the fleet, as `plan serve --save-dir` writes them, and the plan."""
    left, right, _ = st.columns([1, 1, 3])
    left.download_button(
        "Files that start it", lambda: archive(folder(plan)), f"{plan.request.model.name}-fleet.zip",
        "application/zip", on_click="ignore", width="stretch",
    )  # fmt: skip
    right.download_button(
        "Plan as JSON", lambda: rendered(serving_answer(plan), "json"), "serving-plan.json",
        "application/json", on_click="ignore", width="stretch",
    )  # fmt: skip


def show_fleet_numbers(plan: ServingPlan) -> None:
    """The headline of a fleet, its latencies at the percentile that was asked for."""
    estimate, at = plan.estimate, f"p{plan.request.job.percentile:g}"
    values = (
        ("GPUs", f"{plan.num_gpus}"),
        (f"First token, {at}", format_seconds(estimate.limits["ttft"].predicted_s)),
        (f"Per token, {at}", format_seconds(estimate.limits["tpot"].predicted_s)),
        ("Tokens/s/GPU", f"{estimate.tokens_per_s_per_gpu:,.0f}"),
        ("Serves", f"{estimate.served_per_s:.3g}/s"),
        ("Chance of limits", format_chance(plan.chance)),
        ("Runs", f"{plan.evidence.rows}"),
        ("$ per M output", format_usd(estimate.usd_per_million_output_tokens)),
    )
    tiles = st.container(key="numbers")
    for row in (values[:TILES_A_ROW], values[TILES_A_ROW:]):
        for column, (label, text) in zip(tiles.columns(TILES_A_ROW, gap="small"), row, strict=False):
            column.metric(label, text, border=True)


def limits_of(flags: ServeFlags) -> Within:
    """The limits asked for."""
    return Within(ttft_s=parse_seconds(flags.ttft or NO_LIMIT), tpot_s=parse_seconds(flags.tpot or NO_LIMIT))


def same_fleet(flags: ServeFlags, plan: ServingPlan) -> ServeFlags:
    """The question whose only answer is the fleet of a plan, whatever its load.

    Of two pools, whose kinds no setting pins apart, only the GPUs: the best of whole replicas.
    """
    layout = plan.decode.layout
    pins = (
        () if plan.prefill is not None else tuple(f"layout.{name}={getattr(layout, name)}" for name in PINS)
    )
    return replace(flags, gpus=str(plan.num_gpus), weights=plan.weights, settings=pins)


def load_points(flags: ServeFlags) -> Iterator[LoadPoint]:
    """The best deployment of a question at every constant load, with its latencies at its percentile."""
    within = limits_of(flags)
    for concurrency in LOADS:
        asked = replace(flags, rate=None, ttft=NO_LIMIT, tpot=NO_LIMIT, concurrency=str(concurrency))
        try:
            yield load_point(fleet(asked), f"{concurrency} in flight", str(concurrency), within)
        except InputError as error:
            show_error(error)
            return


def load_point(plan: ServingPlan, load: str, mark: str, within: Within) -> LoadPoint:
    """One fleet as a point of the curve."""
    limits = plan.estimate.limits
    return LoadPoint(
        load=load,
        mark=mark,
        ttft_s=limits["ttft"].predicted_s,
        tpot_s=limits["tpot"].predicted_s,
        kept=within.keeps(limits["ttft"].predicted_s, limits["tpot"].predicted_s),
        tokens_per_s_per_gpu=plan.estimate.tokens_per_s_per_gpu,
        label=f"{plan.label} in {plan.weights}",
    )
