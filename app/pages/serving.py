"""Serving: the fleet that keeps latency limits, and what more load would cost in latency."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import streamlit as st

from app.figures.serving import LoadPoint, latency_throughput
from app.pages.answer import show_answer
from app.pages.frame import asked, draw, guarded, plain, show_error
from app.quantities import format_usd
from app.reports.serving import serving_answer
from costmodel.models.catalog import model_names
from planner.analysis.fleets import find_fleet
from planner.questions.flags import ServeFlags
from planner.questions.serving import understand_serving
from planner.serving.plan import ServingPlan
from topology.base.errors import InputError
from topology.base.units import format_seconds, parse_seconds
from topology.catalog import gpus

DEFAULT_MODEL, DEFAULT_GPU = "llama-3.1-70b", "h100-sxm"
LOADS = (1, 4, 16, 64, 256)
FIND = "find"
FIRST_TOKEN_LIMITS = ("100ms", "200ms", "300ms", "500ms", "1s", "2s", "3s", "5s", "10s")
TOKEN_LIMITS = ("5ms", "10ms", "15ms", "20ms", "30ms", "50ms", "75ms", "100ms", "200ms")


@guarded
def render() -> None:
    """Draw the page."""
    flags = ask_load()
    with st.spinner("Searching fleets", show_time=True):
        plan = fleet(flags)
    answer = serving_answer(plan)
    st.subheader(plain(answer.headline), anchor=False)
    show_fleet_numbers(plan)
    if flags.gpus and st.toggle("Draw throughput against latency", key="curve", bind="query-params"):
        with st.spinner("Serving every load", show_time=True):
            points = list(load_points(flags))
        limit = parse_seconds(flags.tpot) if flags.tpot else None
        draw(latency_throughput(points, limit), "latency_throughput")
    show_answer(replace(answer, headline=""))


@st.cache_resource(max_entries=64, show_spinner=False)  # type: ignore[untyped-decorator]  # streamlit has no types here
def fleet(flags: ServeFlags) -> ServingPlan:
    """The fleet that serves a load; equal questions are searched once."""
    return asked(find_fleet, understand_serving(flags))


def ask_load() -> ServeFlags:
    """Draw the sidebar and read it."""
    with st.sidebar:
        names, kinds = list(model_names()), list(gpus())
        model = st.selectbox(
            "Model", names, index=names.index(DEFAULT_MODEL), key="serve_model", bind="query-params"
        )
        left, right = st.columns(2)
        gpu = left.selectbox(
            "GPU", kinds, index=kinds.index(DEFAULT_GPU), key="serve_gpu", bind="query-params"
        )
        counts = [FIND, "1", "2", "4", "8", "16", "32", "64"]
        count = right.selectbox("GPUs", counts, index=4, key="serve_gpus", bind="query-params")
        prompt = left.text_input("Prompt tokens", "2000", key="input", bind="query-params", max_chars=8)
        output = right.text_input("Output tokens", "300", key="output", bind="query-params", max_chars=8)
        ttft = st.select_slider(
            "First token within", FIRST_TOKEN_LIMITS, "1s", key="ttft", bind="query-params"
        )
        tpot = st.select_slider("Each token within", TOKEN_LIMITS, "50ms", key="tpot", bind="query-params")
        left, right = st.columns(2)
        percentile = left.selectbox(
            "Percentile", ["50", "90", "95", "99"], index=3, key="percentile", bind="query-params"
        )
        weights = right.selectbox(
            "Weights", ["bf16", "fp8", "int8", "int4", "fp4"], key="weights", bind="query-params"
        )
        rate = st.text_input("Requests per second", "2/s", key="rate", bind="query-params", max_chars=12)
    return ServeFlags(
        model=str(model),
        gpu=str(gpu),
        gpus=None if count == FIND else str(count),
        input_tokens=prompt or None,
        output_tokens=output or None,
        ttft=str(ttft),
        tpot=str(tpot),
        percentile=str(percentile),
        weights=str(weights),
        rate=rate or None,
    )


def show_fleet_numbers(plan: ServingPlan) -> None:
    """The headline of a fleet."""
    estimate = plan.estimate
    values = (
        ("GPUs", f"{plan.num_gpus}"),
        ("First token, p99", format_seconds(estimate.ttft.p99_s)),
        ("Per token, p99", format_seconds(estimate.tpot.p99_s)),
        ("Tokens/s/GPU", f"{estimate.tokens_per_s_per_gpu:,.0f}"),
        ("Serves", f"{estimate.capacity_requests_per_s:.3g}/s"),
        ("$ per M tokens", format_usd(estimate.usd_per_million_output_tokens)),
    )
    row = st.container(key="numbers")
    for column, (label, text) in zip(row.columns(len(values), gap="small"), values, strict=True):
        column.metric(label, text, border=True)


def load_points(flags: ServeFlags) -> Iterator[LoadPoint]:
    """The best deployment of the same GPUs at every load, without limits."""
    for concurrency in LOADS:
        asked = replace(flags, rate=None, ttft=None, tpot=None, concurrency=str(concurrency))
        try:
            plan = fleet(asked)
        except InputError as error:
            show_error(error)
            return
        estimate = plan.estimate
        yield LoadPoint(
            concurrency=concurrency,
            tpot_s=estimate.tpot.p50_s,
            tokens_per_s_per_gpu=estimate.tokens_per_s_per_gpu,
            label=serving_answer(plan).headline.partition(": ")[2].partition(",")[0],
        )
