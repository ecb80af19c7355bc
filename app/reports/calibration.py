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
    level, records = fitted.level, [_record(*row) for row in _rows(figures, runs, fitted)]
    tpot, ttft = (_medians(records, name) for name in ("tpot", "ttft"))
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


def _rows(
    figures: Sequence[Figures], runs: Sequence[ServingRun], fitted: FittedLevels
) -> list[tuple[Figures, ServingRun, Latency, Latency]]:
    return list(zip(figures, runs, fitted.before, fitted.after, strict=True))


def _record(figures: Figures, run: ServingRun, before: Latency, after: Latency) -> dict[str, object]:
    """One benchmark as plain data."""
    return {
        "file": run.name, **asdict(figures), "model": run.model, "engine": run.engine, "layout": run.decode.layout.label,
        "ttft_before_s": before.ttft_s, "ttft_after_s": after.ttft_s,
        "tpot_before_s": before.tpot_s, "tpot_after_s": after.tpot_s,
    }  # fmt: skip


def _medians(records: Sequence[dict[str, object]], name: str) -> tuple[float, float]:
    """Median absolute error before and after."""
    found = [
        float(np.median([abs(float(str(one[f"{name}_{when}_s"])) / float(str(one[f"{name}_s"])) - 1) for one in records]))
        for when in ("before", "after")
    ]  # fmt: skip
    return found[0], found[1]


def _read(figures: Sequence[Figures], runs: Sequence[ServingRun]) -> Table:
    """The figures that were read."""
    rows = tuple(
        (
            run.name,
            one.tool,
            f"{run.model} {run.weights} {run.decode.layout.label}",
            f"{one.requests:,}",
            str(one.concurrency),
            f"{one.input_tokens:,} + {one.output_tokens:,}",
            format_seconds(one.ttft_s),
            format_seconds(one.tpot_s),
        )
        for one, run in zip(figures, runs, strict=True)
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
