"""How a calibration is told: the figures read, the levels, and the errors before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from app.reports.answer import Answer, Facts, Table, json_text
from costmodel.accuracy.serving_predictions import Latency
from costmodel.accuracy.serving_runs import ServingRun
from costmodel.calibration.bench_files import Figures
from costmodel.calibration.serving_levels import FittedLevels
from topology.base.units import format_seconds


def calibration_answer(
    figures: Sequence[Figures], runs: Sequence[ServingRun], fitted: FittedLevels
) -> Answer:
    """Everything `plan calibrate` says."""
    level = fitted.level
    records = [_record(*row) for row in zip(figures, runs, fitted.before, fitted.after, strict=True)]
    tpot, ttft = (
        [_median_error(runs, latencies, name) for latencies in (fitted.before, fitted.after)]
        for name in ("tpot_s", "ttft_s")
    )
    facts = Facts(
        title="Levels",
        pairs=(
            ("host", f"{level.host:.3g} × the shipped profile of {level.engine} on {level.gpu}"),
            ("kernels", f"{level.kernel:.3g} × the measured kernels"),
            ("time per output token", f"median error {tpot[0]:.1%}, {tpot[1]:.1%} with the levels"),
            ("time to first token", f"median error {ttft[0]:.1%}, {ttft[1]:.1%} with the levels"),
        ),
    )
    return Answer(
        headline=f"{level.engine} on {level.gpu}: host × {level.host:.3g}, kernels × {level.kernel:.3g}, "
        f"from {level.runs} benchmark{'s' * (level.runs > 1)}",
        sections=(_read(figures, runs), facts, _errors(runs, fitted)),
        document=lambda: json_text({"level": asdict(level), "runs": records}),
        records=tuple(records),
    )


def _record(figures: Figures, run: ServingRun, before: Latency, after: Latency) -> dict[str, object]:
    """One benchmark as plain data."""
    server = {"model": run.model, "engine": run.engine, "layout": run.decode.layout.label}
    record = {"ttft_before_s": before.ttft_s, "ttft_after_s": after.ttft_s}
    record |= {"tpot_before_s": before.tpot_s, "tpot_after_s": after.tpot_s}
    return {"file": run.name, **asdict(figures), **server, **record}


def _median_error(runs: Sequence[ServingRun], latencies: Sequence[Latency], name: str) -> float:
    """Median absolute error of a latency."""
    pairs = zip(latencies, runs, strict=True)
    return float(np.median([abs(getattr(latency, name) / getattr(run, name) - 1) for latency, run in pairs]))


def _read(figures: Sequence[Figures], runs: Sequence[ServingRun]) -> Table:
    """The figures that were read."""
    rows = tuple(
        (
            run.name,
            item.tool,
            f"{run.model} {run.weights} {run.decode.layout.label}",
            f"{item.requests:,}",
            str(item.concurrency),
            f"{item.input_tokens:,} + {item.output_tokens:,}",
            format_seconds(item.ttft_s),
            format_seconds(item.tpot_s),
        )
        for item, run in zip(figures, runs, strict=True)
    )
    heads = ("file", "written by", "server", "requests", "in flight", "tokens", "mean TTFT", "mean TPOT")
    return Table(title="Figures read", columns=heads, rows=rows, align="lllrrrrr")


def _errors(runs: Sequence[ServingRun], fitted: FittedLevels) -> Table:
    """Predicted latencies of every benchmark before and after."""
    rows = tuple(
        (
            run.name,
            f"{before.tpot_s / run.tpot_s - 1:+.1%}",
            f"{after.tpot_s / run.tpot_s - 1:+.1%}",
            f"{before.ttft_s / run.ttft_s - 1:+.1%}",
            f"{after.ttft_s / run.ttft_s - 1:+.1%}",
        )
        for run, before, after in zip(runs, fitted.before, fitted.after, strict=True)
    )
    heads = ("file", "TPOT before", "after", "TTFT before", "after")
    return Table(title="Predicted over measured", columns=heads, rows=rows)
