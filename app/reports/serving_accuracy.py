"""How the accuracy of serving predictions is told: errors by group, and every row in the document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from app.reports.answer import Answer, Table, json_text
from costmodel.accuracy.serving import ServingResult, ServingSummary, summarise_serving


def serving_accuracy_answer(results: Sequence[ServingResult], *, by: str = "model") -> Answer:
    """Everything `plan accuracy` says about serving runs."""
    summaries = summarise_serving(results, by=by)
    everything = summaries[-1]
    predicted = everything.rows - everything.unsupported
    tpot, ttft = _share(everything.tpot_median_error), _share(everything.ttft_median_error)
    return Answer(
        headline=f"{predicted} of {everything.rows} serving runs predicted; median error: time per output "
        f"token {tpot}, time to first token {ttft}",
        sections=(_table(summaries, by),),
        document=lambda: json_text(
            {
                "rows": [serving_row(result) for result in results],
                "summary": [_finite(asdict(summary)) for summary in summaries],
            }
        ),
        records=tuple(serving_row(result) for result in results),
    )


def serving_row(result: ServingResult) -> dict[str, object]:
    """One row as plain data."""
    return {
        "id": result.name,
        "status": result.status,
        "reason": result.reason,
        "measured_ttft_s": result.measured_ttft_s,
        "predicted_ttft_s": result.predicted_ttft_s,
        "measured_tpot_s": result.measured_tpot_s,
        "predicted_tpot_s": result.predicted_tpot_s,
    }


def _table(summaries: Sequence[ServingSummary], by: str) -> Table:
    """Errors by group."""
    rows = tuple(
        (
            summary.group,
            str(summary.rows),
            str(summary.unsupported),
            _share(summary.tpot_median_error),
            _share(summary.tpot_p90_error),
            _share(summary.ttft_median_error),
            _share(summary.ttft_p90_error),
            "–" if math.isnan(summary.rank_correlation) else f"{summary.rank_correlation:.2f}",
        )
        for summary in summaries
    )
    heads = (by, "rows", "unsupported", "TPOT median", "p90", "TTFT median", "p90", "rank correlation")
    return Table(title="Absolute error of means", columns=heads, rows=rows)


def _share(value: float) -> str:
    """A share in percent."""
    return "–" if math.isnan(value) else f"{value:.1%}"


def _finite(document: dict[str, object]) -> dict[str, object]:
    """The same with None in place of NaN, which JSON does not have."""
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in document.items()
    }
