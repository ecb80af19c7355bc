"""The figure of `plan accuracy --plot`: predicted against measured, as SVG or as a page to hover over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from app.figures.svg_scatter import PlotAxis, scatter
from app.reports.answer import write_file
from costmodel.accuracy.training import RunResult
from topology.base.errors import InputError

SUFFIXES = (".svg", ".html")
TENTH = 0.1


def check_plot(path: Path | None) -> None:
    """Refuse a figure that cannot be written, before any work is done for it."""
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            what=f"cannot draw {path}",
            cause=f"figures are written as {' or '.join(SUFFIXES)}",
            fix=f"use for example --plot {path.stem or 'accuracy'}.svg (any browser turns it into a PNG)",
        )
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(
            what=f"cannot write {path}",
            cause="it is a directory, or its folder does not exist",
            fix="name a file in a folder that exists",
        )


def write_plot(path: Path, results: Sequence[RunResult], by: str) -> None:
    """Draw one mark per timed run; grey lines are ten percent off."""
    if path.suffix.lower() == ".svg":
        write_file(path, step_time_svg(results, by))
    elif find_spec("plotly") is None:
        write_file(path, f"<!doctype html><title>plan accuracy</title>\n{step_time_svg(results, by)}")
    else:
        from app.figures.measured.accuracy import predicted_against_measured

        figure = predicted_against_measured(results, by)
        figure.update_layout(template="plotly_white", paper_bgcolor="white")
        write_file(path, str(figure.to_html(include_plotlyjs=True, full_html=True)))


def step_time_svg(results: Sequence[RunResult], by: str) -> str:
    """Predicted over measured step time as SVG, one group per value of a column, largest first."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        if result.measured_step_time_s and result.predicted_step_time_s:
            pair = (result.measured_step_time_s, result.predicted_step_time_s)
            groups[result.group.get(by, "unnamed")].append(pair)
    ordered = dict(sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])))
    return scatter(
        ordered, PlotAxis(title="measured step time, s"), PlotAxis(title="predicted step time, s"),
        title=f"Predicted against measured step time of {sum(map(len, groups.values())):,} runs; "
        "grey: equal, and 10 % off",
        lines=[(factor, 0.0) for factor in (1 - TENTH, 1.0, 1 + TENTH)],
    )  # fmt: skip
