"""Accuracy: what the cost model predicts for measured runs, where it errs most, how it does on yours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import streamlit as st

from app.figures.measured.accuracy import predicted_against_measured
from app.pages.base.choices import KEPT
from app.pages.base.frame import asked, columns_of, draw, draw_table, guarded, plain
from app.pages.question.bar import BY_GPU
from app.quantities import format_percent
from app.reports.training_accuracy import for_someone_new
from app.requests.upload_sizes import MOST_UPLOAD_MIB
from app.requests.uploads import read_runs_upload
from costmodel.accuracy.constants_table import every_constant
from costmodel.accuracy.training import RunResult, Summary, predict_rows, summarise
from costmodel.accuracy.training_runs import shipped_runs
from costmodel.evidence.keys import engine_family
from costmodel.evidence.table import RUNS, shipped_table
from costmodel.kernels.tables import load_calibration
from topology.base.units import format_seconds
from topology.catalog import gpus

WORST = 15
FILTERS = {"GPUs": "gpu", "Frameworks": "framework", "Models": "model"}


@guarded
def render() -> None:
    """Draw the page."""
    st.subheader("Predicted against measured", anchor=False)
    file = st.file_uploader(
        "Your own runs, in the columns of training_runs_v2.csv",
        type="csv",
        key="runs_file",
        max_upload_size=MOST_UPLOAD_MIB,
    )
    results = shipped_results() if file is None else uploaded_results(file.name, file.getvalue())
    shown = filtered(nearest_runs(results) if file is None else results)
    by = str(
        st.segmented_control(
            "Group by",
            ["source", "gpu", "framework"],
            default="source",
            key="by",
            bind="query-params",
            required=True,
        )
    )
    if file is None:
        st.markdown(plain(for_someone_new(kept_engine())))
    draw(predicted_against_measured(shown, by), "accuracy")
    st.markdown("#### Error of every group")
    draw_table(
        columns_of([summary_row(entry) for entry in by_size(summarise(shown, by=by))]), alt="Error by group"
    )
    st.caption(
        "Rank correlation: how alike the predicted and the measured order of layouts of one job are. "
        "1 is the same order."
    )
    st.markdown("#### Where it is furthest off")
    draw_table(columns_of(worst_rows(shown)), alt="Runs with the largest error")
    left_out = [result for result in results if result.status != "ok"]
    if left_out:
        with st.expander(f"{len(left_out)} runs could not be predicted"):
            draw_table(
                columns_of([{"run": r.name, "reason": r.reason} for r in left_out]), alt="Runs left out"
            )
    show_constants()


def nearest_runs(results: Sequence[RunResult]) -> list[RunResult]:
    """The runs behind the plan of the question, of its engine on its generation of GPU; all, if asked for."""
    kept = st.session_state.get(KEPT, {})
    if not kept.get("stack") or kept.get("cluster") != BY_GPU:
        return list(results)
    engine, generation = engine_family(kept["stack"]), gpus()[kept["gpu"]].architecture
    run_results = [
        r for r in results if r.footing and (r.footing.engine, r.footing.generation) == (engine, generation)
    ]
    counts, words = counts_of(engine, generation), run_words(engine, generation)
    chosen = st.segmented_control(
        "Runs", list(words.values()), default=words[bool(run_results)], key="runs_near", required=True
    )
    shown = run_results if chosen == words[True] else list(results)
    count = counts[chosen == words[True]]
    if len(shown) != count:
        st.caption(f"{count:,} measured runs; the {len(shown):,} that come with the package are shown here.")
    return shown


def counts_of(engine: str, generation: str) -> dict[bool, int]:
    """Measured runs behind a plan of this engine on this generation, as the plan counts them, and all."""
    known = shipped_table()
    return {
        True: known.get(engine, {}).get(generation, {}).get(RUNS, 0),
        False: sum(each.get(RUNS, 0) for of_engine in known.values() for each in of_engine.values()),
    }


def run_words(engine: str, generation: str) -> dict[bool, str]:
    """The two choices of runs to show, with their counts."""
    counts = counts_of(engine, generation)
    return {
        True: f"behind this plan: {engine} on {generation} ({counts[True]:,})",
        False: f"all ({counts[False]:,})",
    }


def kept_engine() -> str:
    """The engine of the question, by its family; none where nothing was asked."""
    stack = st.session_state.get(KEPT, {}).get("stack")
    return engine_family(stack) if stack else ""


def by_size(summaries: Sequence[Summary]) -> list[Summary]:
    """All runs together first, then the groups, the largest first."""
    *groups, everything = summaries
    return [everything, *sorted(groups, key=lambda entry: (-entry.rows, entry.group))]


def show_constants() -> None:
    """What the cost model holds beside measured kernels, and what each number was fitted on."""
    with st.expander("Constants of the cost model"):
        rows = [
            {
                "constant": name,
                "value": f"{entry.value:.3g}",
                "unit": entry.unit,
                "meaning": entry.meaning,
                "fitted on": entry.fitted_on,
            }
            for name, entry in every_constant(load_calibration()).items()
        ]
        draw_table(columns_of(rows), alt="Constants of the cost model")


@st.cache_resource(show_spinner="Predicting the published runs")  # type: ignore[untyped-decorator]  # untyped here
def shipped_results() -> list[RunResult]:
    """Predictions of the runs that come with the package."""
    return asked(predict_rows, shipped_runs(), load_calibration())


def uploaded_results(name: str, content: bytes) -> list[RunResult]:
    """Predictions of an uploaded table."""
    return asked(predict_rows, read_runs_upload(name, content), load_calibration())


def filtered(results: Sequence[RunResult]) -> list[RunResult]:
    """Results of the chosen GPUs, frameworks and models."""
    for place, (label, column) in zip(st.columns(len(FILTERS)), FILTERS.items(), strict=True):
        names = sorted({result.group.get(column, "") for result in results})
        key = f"accuracy_{column}"
        chosen = place.multiselect(label, names, default=[], placeholder="all", key=key, bind="query-params")
        results = [result for result in results if not chosen or result.group.get(column, "") in chosen]
    return list(results)


def summary_row(entry: Summary) -> dict[str, str]:
    """One group as a row; what cannot be told is a dash."""
    return {
        "group": entry.group,
        "runs": f"{entry.rows:,}",
        "median error": _percent(entry.median_error),
        "90 % are within": _percent(entry.p90_error),
        "bias": _percent(entry.bias, signed=True),
        "memory, median": _percent(entry.memory_median_error),
        "inside the 80 % band": _percent(entry.coverage),
        "rank correlation": "–" if math.isnan(entry.rank_correlation) else f"{entry.rank_correlation:.2f}",
    }


def _percent(value: float, *, signed: bool = False) -> str:
    """A share as percent; a dash when there is none (NaN)."""
    return "–" if math.isnan(value) else format_percent(value, signed=signed)


def worst_rows(results: Sequence[RunResult]) -> list[dict[str, str]]:
    """Runs with the largest relative error."""
    timed = sorted((r for r in results if r.error is not None), key=lambda r: -abs(r.error or 0.0))
    return [
        {
            "run": result.name,
            "gpu": result.group.get("gpu", ""),
            "framework": result.group.get("framework", ""),
            "measured": format_seconds(result.measured_step_time_s or 0.0),
            "predicted": format_seconds(result.predicted_step_time_s or 0.0),
            "error": format_percent(result.error or 0.0, signed=True),
        }
        for result in timed[:WORST]
    ]
