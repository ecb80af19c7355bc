"""Nothing fits: which stage overflows and by how much, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.figures.memory import overflow_bars
from app.pages.base.fit_colours import FIT_COLOURS
from app.pages.base.frame import MOST_CACHED_PLANS, columns_of, draw, draw_table, plain, request_key
from costmodel.layout import ParallelLayout, layout_words
from costmodel.memory.fit import fit_of, fit_text, out_of_memory_chance
from costmodel.memory.stage import MemoryBreakdown
from costmodel.training.bands import peak_spread
from planner.analysis.capacity import MEMORY
from planner.plan import Problem
from planner.rules.check import parse_pins
from planner.search.infeasible import Infeasible, leanest_layout


@st.cache_resource(max_entries=MOST_CACHED_PLANS, show_spinner=False)  # type: ignore[untyped-decorator]
def leanest_overflow(
    key: str, _problem: Problem, _pins: Mapping[str, Any]
) -> tuple[ParallelLayout, tuple[MemoryBreakdown, ...]]:
    """The layout that needs least memory, and what its stages need."""
    del key  # what is cached by
    return leanest_layout(_problem, parse_pins(_pins))


def show_overflow(infeasible: Infeasible) -> None:
    """Draw the memory of the layout that needs least, where memory is in the way, and list what helps."""
    request = infeasible.request
    if not any(violation.rule == MEMORY for violation in infeasible.violations):
        return
    problem = infeasible.problem
    layout, stages = leanest_overflow(request_key(request), problem, request.pins)
    capacity = problem.cluster.gpu.memory_bytes
    st.markdown("#### How much is too much?")
    peak = max(stage.total_bytes for stage in stages)
    chance = out_of_memory_chance(peak, capacity, peak_spread(problem.case))
    st.markdown(f":{FIT_COLOURS[fit_of(chance)]}[The leanest layout: {plain(fit_text(chance))}.]")
    bars = overflow_bars(stages, capacity, problem.memory_budget_bytes, layout_words(layout), chance)
    draw(bars, "overflow")
    if infeasible.nearest:
        st.markdown("#### What would make it fit?")
        rows = [
            {"change": request_change.change, "as typed": request_change.flag or "–"}
            for request_change in infeasible.nearest
        ]
        draw_table(columns_of(rows), alt="Changes of the question that give a plan")
