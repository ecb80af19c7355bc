"""How the accuracy of training predictions is told: errors by group, the worst rows, what was left out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from app.quantities import format_percent
from app.reports.answer import Answer, Facts, Lines, Section, Table, json_text
from costmodel.accuracy.anchor import Anchor
from costmodel.accuracy.constants_table import origins_of
from costmodel.accuracy.left_out import (
    ALL,
    LeftOut,
    UnseenPublishers,
    left_out_errors,
    unseen_publishers,
)
from costmodel.accuracy.training import RunResult, Summary, summarise
from costmodel.evidence.table import evidence_for, unmeasured
from costmodel.kernels.level import StackLevel
from costmodel.stack import stack
from costmodel.training.bands import QUANTILE_80, Doubts, level_deviation
from costmodel.training.constants import Constant
from costmodel.training.slowdowns import host_s_per_layer
from topology.base.units import GIB, format_seconds

DEFAULT_WORST = 5
MOST_REASONS = 8
SHOWN_HOST_BOUND = 0.5
_HEADS = (
    "n", "median", "mean", "p90", "bias", "in band", "memory n", "median", "p90", "OOM seen", "OOM false",
    "rank", "regret",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What to tell beside the table.

    Attributes:
        by: Columns to group by.
        worst: How many of the worst rows.
        constants: Constants to list, by name.
        fitted: The constants were fitted to these runs, so that others are told beside them.
    """

    by: tuple[str, ...] = ("source",)
    worst: int = DEFAULT_WORST
    constants: Mapping[str, Constant] = field(default_factory=dict)
    fitted: bool = False


def for_someone_new(engine: str = "") -> str:
    """How far off runs are of publishers that fitted nothing, then of vendors left out: here, and on all.

    Args:
        engine: Family of an engine that is told apart; none by default.
    """
    known, unseen = left_out_errors(), unseen_publishers()
    texts = [f"{_errors_of(known[engine])} on {engine}"] if engine in known else []
    texts.append(f"{_errors_of(known[ALL])} on all engines")
    return (
        f"{unseen.publishers} publishers that no constant was fitted to: {_errors_of(unseen)}, "
        f"{format_percent(unseen.in_band)} of them inside their 80 % band. "
        f"Runs predicted without their vendor's: {'; '.join(texts)}. "
        "The figures below are as shipped: the constants were fitted on these runs."
    )


def _errors_of(runs: LeftOut | UnseenPublishers) -> str:
    """Errors in words."""
    return (
        f"±{format_percent(runs.median_error)} in the median, 9 in 10 within "
        f"{format_percent(runs.p90_error)} ({runs.runs:,} runs)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchoring:
    """An anchor, the rows without it, and whether it was fitted on these very rows."""

    anchor: Anchor
    before: Sequence[RunResult]
    anchors_itself: bool


def accuracy_answer(
    results: Sequence[RunResult], wishes: Wishes, anchoring: Anchoring | None = None
) -> Answer:
    """Everything `plan accuracy` says about training runs."""
    summaries = summarise(results, by=wishes.by)
    sections: list[Section] = []
    if wishes.fitted:
        sections.append(Lines(title="For someone new", lines=(for_someone_new(),)))
    sections.append(error_table(summaries, " · ".join(wishes.by)))
    if anchoring:
        sections.append(anchor_table(anchoring, summaries[-1]))
    if wishes.worst:
        sections.append(worst_table(results, wishes.worst))
    unpriced = words_not_priced(results)
    if unpriced:
        sections.append(Lines(title="Stated and not priced", lines=unpriced))
    left_out = reasons_unpredicted(results)
    if left_out:
        sections.append(Lines(title="Rows without a prediction", lines=left_out))
    if wishes.constants:
        sections.append(constants_facts(wishes.constants))
    rows = tuple(training_row(result) for result in results)
    return Answer(
        headline=accuracy_headline(summaries[-1]),
        sections=tuple(sections),
        document=lambda: json_text(_document(rows, summaries, wishes, anchoring)),
        records=rows,
    )


def accuracy_headline(everything: Summary) -> str:
    """The answer in one line."""
    predicted = everything.rows - everything.unsupported
    text = f"{predicted:,} of {everything.rows:,} runs predicted"
    if everything.timed:
        text += (
            f"; step time off by {percent(everything.median_error)} % (median), "
            f"{percent(everything.mean_error)} % (mean), {percent(everything.p90_error)} % (p90)"
        )
    if everything.ranked_jobs:
        text += f"; layouts ranked {everything.rank_correlation:.2f} (Spearman)"
    if everything.memory_rows:
        text += f"; peak memory by {percent(everything.memory_median_error)} % (median)"
    return text


def error_table(summaries: Sequence[Summary], by: str) -> Table:
    """Absolute errors by group."""
    rows = tuple(
        (
            summary.group,
            f"{summary.timed:,}",
            percent(summary.median_error),
            percent(summary.mean_error),
            percent(summary.p90_error),
            percent(summary.bias, signed=True),
            percent(summary.coverage, digits=0),
            f"{summary.memory_rows:,}" if summary.memory_rows else "–",
            percent(summary.memory_median_error),
            percent(summary.memory_p90_error),
            f"{summary.oom_flagged}/{summary.oom_rows}" if summary.oom_rows else "–",
            str(summary.false_alarms or "–"),
            "–" if math.isnan(summary.rank_correlation) else f"{summary.rank_correlation:.2f}",
            percent(summary.top1_regret),
        )
        for summary in summaries
    )
    note = (
        "bias: median signed; in band: share in the 80 % band; "
        "rank: mean Spearman of jobs of 3 layouts or more; regret: slow-down by the one predicted best"
    )
    return Table(title="Error by group, %", columns=(by, *_HEADS), rows=rows, note=note)


def anchor_table(anchoring: Anchoring, after: Summary) -> Table:
    """What the anchor changed."""
    before = summarise(anchoring.before)[-1]
    rows = [
        (
            level.stack,
            str(level.runs),
            f"×{level.factor_of_steps:.3f}",
            f"±{percent(_prior(anchoring.before, level.stack))} → ±{percent(_half_width(level.deviation))}",
            f"×{level.level:.3f}",
            _taught(level),
        )
        for level in anchoring.anchor.levels
    ]
    note = (
        f"median error {percent(before.median_error)} → {percent(after.median_error)} %, bias "
        f"{percent(before.bias, signed=True)} → {percent(after.bias, signed=True)} %"
    )
    if anchoring.anchors_itself:
        note += ", every run corrected by the others only"
    title = f"Anchor {anchoring.anchor.name}".rstrip()
    heads = ("stack", "runs", "factor on them", "known to, %", "common part", "what they say")
    return Table(title=title, columns=heads, rows=tuple(rows), note=note)


def _taught(level: StackLevel) -> str:
    """What runs say of parts, in words."""
    words = level.words(host_s_per_layer(stack(level.stack).timing))
    return words or ("parts not told apart by steps of one kind" if level.covariance else "–")


def _prior(results: Sequence[RunResult], stack_name: str) -> float:
    """Half width of the band of a level that no run of this stack has narrowed."""
    doubts = [r.doubts for r in results if r.status == "ok" and r.stack == stack_name] or [Doubts()]
    variance = float(np.mean([level_deviation(each) ** 2 for each in doubts]))
    return _half_width(math.sqrt(variance))


def _half_width(deviation: float) -> float:
    """What the 80 % band of a logarithm of this deviation reaches above one."""
    return math.expm1(QUANTILE_80 * deviation)


def worst_table(results: Sequence[RunResult], count: int) -> Table:
    """The rows that are furthest off, and why the model is less sure of them, if it is."""
    timed = [result for result in results if result.error is not None]
    timed.sort(key=lambda result: -abs(math.log1p(result.error or 0.0)))
    rows = tuple(
        (
            result.name,
            f"{result.group['gpu']} × {result.group['num_gpus']}",
            format_seconds(result.measured_step_time_s or 0.0),
            format_seconds(result.predicted_step_time_s or 0.0),
            percent(result.error or 0.0, signed=True),
            doubt_words(result) or "–",
        )
        for result in timed[:count]
    )
    heads = ("id", "on", "measured", "predicted", "error", "less sure because of")
    return Table(title="Furthest off", columns=heads, rows=rows, align="llrrrl")


def doubt_words(result: RunResult) -> str:
    """What widens the band of a row."""
    doubts = result.doubts
    missing = unmeasured(evidence_for(result.footing)) if result.footing else ()
    guessed = not doubts.host_measured and doubts.host_bound > SHOWN_HOST_BOUND
    words = {
        "experts": doubts.experts,
        "no tables of this GPU": doubts.untabled_gpu,
        "launches of an engine whose host was not timed": guessed,
    }
    return ", ".join(
        (
            *(word for word, applies in words.items() if applies),
            *(f"no run with {evidence.used}" for evidence in missing),
        )
    )


def reasons_unpredicted(results: Sequence[RunResult]) -> tuple[str, ...]:
    """Why rows have no prediction: one line per reason, most frequent first."""
    first: dict[str, str] = {}
    for result in results:
        if result.status != "ok":
            first.setdefault(result.reason, result.name)
    counts = Counter(result.reason for result in results if result.status != "ok")
    lines = [
        f"{first[reason]}{f' and {count - 1:,} more' if count > 1 else ''}: {reason}"
        for reason, count in counts.most_common(MOST_REASONS)
    ]
    hidden = len(counts) - len(lines)
    return (*lines, f"and {hidden:,} other reasons (--json has them all)") if hidden > 0 else tuple(lines)


def words_not_priced(results: Sequence[RunResult]) -> tuple[str, ...]:
    """What rows state and no term of the cost model answers to, with the median error of such rows."""
    rows: dict[str, list[RunResult]] = defaultdict(list)
    for result in results:
        for word in result.not_priced:
            rows[word].append(result)
    return tuple(
        f"{word}: {len(members):,} runs, step time off by {percent(_median_error(members), signed=True)} %"
        for word, members in sorted(rows.items(), key=lambda entry: -len(entry[1]))
    )


def _median_error(results: Sequence[RunResult]) -> float:
    """Median signed error of those that were timed, NaN of none."""
    return float(np.median([r.error for r in results if r.error is not None] or [math.nan]))


def constants_facts(constants: Mapping[str, Constant]) -> Facts:
    """Every constant that was fitted or fixed beside the kernel tables."""
    of = origins_of(constants)
    return Facts(
        title=f"Constants: {of.fitted} fitted on runs, {of.fixed} fixed, {of.network} of networks",
        pairs=tuple(
            (name, f"{entry.value:g} {entry.unit} — {entry.meaning} [{entry.fitted_on}]")
            for name, entry in constants.items()
        ),
    )


def training_row(result: RunResult) -> dict[str, Any]:
    """One row as plain data."""
    return {
        "id": result.name,
        "status": result.status,
        "reason": result.reason,
        **{name: result.group[name] for name in ("source", "gpu", "framework", "model")},
        "stack": result.stack,
        "not_priced": "; ".join(result.not_priced),
        "measured_step_time_s": result.measured_step_time_s,
        "predicted_step_time_s": result.predicted_step_time_s,
        "lower_s": result.lower_s,
        "upper_s": result.upper_s,
        "step_time_error": result.error,
        "measured_peak_memory_gib": _gib(result.measured_peak_memory_bytes),
        "predicted_peak_memory_gib": _gib(result.predicted_peak_memory_bytes),
        "memory_upper_gib": _gib(result.memory_upper_bytes),
        "memory_error": result.memory_error,
        "oom": result.out_of_memory,
        "oom_risk": result.flagged,
        "oom_chance": result.out_of_memory_chance,
    }


def percent(share: float, *, signed: bool = False, digits: int = 1) -> str:
    """A share in percent without its sign of unit, as in a column headed by it; a dash when there is none.

    >>> percent(0.0344), percent(-0.02, signed=True), percent(float("nan"))
    ('3.4', '-2.0', '–')
    """
    if math.isnan(share):
        return "–"
    return f"{100 * share:+.{digits}f}" if signed else f"{100 * share:.{digits}f}"


def finite(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same with None in place of NaN, which JSON does not have."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in document.items()
    }


def _gib(value_bytes: float | None) -> float | None:
    """Bytes in GiB."""
    return None if value_bytes is None else value_bytes / GIB


def _document(
    rows: Sequence[Mapping[str, Any]],
    summaries: Sequence[Summary],
    wishes: Wishes,
    anchoring: Anchoring | None,
) -> dict[str, Any]:
    """The JSON document."""
    document: dict[str, Any] = {
        "rows": [finite(row) for row in rows],
        "summary": [finite(asdict(summary)) for summary in summaries],
    }
    if anchoring:
        document["anchor"] = asdict(anchoring.anchor)
        document["summary_without_anchor"] = finite(asdict(summarise(anchoring.before)[-1]))
    if wishes.constants:
        document["constants"] = [{"name": name, **asdict(entry)} for name, entry in wishes.constants.items()]
    return document
