"""What `plan audit` says: the job as its files have it, what is wrong, what it should take, what helps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.quantities import format_over_best
from app.reports.answer import Answer, Facts, Lines, Section, Table, json_text
from app.reports.audit.facts import fact_record, facts_table, file_and_line, shown_facts
from app.reports.audit.summary import change_words, cluster_words, headline_of, model_words, summary_of
from app.reports.plan_headline import cluster_of
from costmodel.estimate import Estimate
from costmodel.evidence.table import RUNS, unmeasured
from costmodel.layout import layout_words
from costmodel.memory.fit import fit_of, fit_text
from costmodel.ops.layer import model_flop_per_step
from planner.audit.audit import Audit
from planner.audit.changes import Change
from planner.audit.link_rate import LinkRate
from planner.audit.residual import Residual
from planner.plan import Plan, PlanRequest
from topology.base.units import TERA, format_bytes, format_chance, format_seconds

SCHEMA_VERSION = 1
_SHOWN = ("layout", "job", "model", "cluster", "switch")


def audit_answer(audit: Audit) -> Answer:
    """Everything an audit says."""
    sections: list[Section] = [_files(audit), facts_table(audit.reading, shown_facts(audit.reading, _SHOWN))]
    if audit.findings:
        rows = tuple((f.kind, f.message, f.fix, file_and_line(f.file, f.line)) for f in audit.findings)
        sections.append(
            Table(
                title="Wrong or slow",
                columns=("", "what", "help", "where"),
                rows=rows,
                align="llll",
                wraps=(1, 2),
            )
        )
    sections.append(_times(audit))
    if audit.changes:
        sections.append(_changes_table(audit))
    if audit.doubts:
        sections.append(Lines(title="Taken for granted", lines=audit.doubts))
    sections.insert(0, Lines(title="", lines=summary_of(audit)))
    if audit.residual is not None and not audit.residual.refutes:
        after = next(at for at, section in enumerate(sections) if section.title == "Times") + 1
        sections.insert(after, Lines(title="Measured beside predicted", lines=audit.residual.words))
    document = audit_document(audit)
    return Answer(
        headline=headline_of(audit),
        sections=tuple(sections),
        document=lambda: json_text(document),
        records=tuple(document["facts"]),
    )


def _files(audit: Audit) -> Facts:
    """Files and what they are."""
    pairs: list[tuple[str, str]] = [
        (path.rpartition("/")[2], kind) for path, kind in audit.reading.kinds.items()
    ]
    if audit.job.layout is not None and audit.job.request is not None:
        request = audit.job.request
        pairs.append(("layout", layout_words(audit.job.layout)))
        pairs.append(("on", cluster_words(request)))
        pairs.append(("model", model_words(request.model)))
        for name in ("adapter", "offload"):
            part = getattr(request.job, name)
            if part is not None:
                pairs.append((name, part.words))
    if audit.job.missing:
        pairs.append(("missing", ", ".join(audit.job.missing)))
    return Facts(title="", pairs=tuple(pairs))


def _times(audit: Audit) -> Facts:
    """Predicted, measured and best."""
    pairs: list[tuple[str, str]] = []
    measured = audit.reading.measured
    if audit.measured_step_s is not None:
        steps = f" (median of {measured.steps} steps)" if measured and measured.steps else ""
        source = f" (from {audit.measured_from})" if audit.measured_from else steps
        pairs.append(("measured", f"{format_seconds(audit.measured_step_s)}{source}"))
    if measured and measured.tflops_per_gpu:
        pairs.append(("printed rate", f"{measured.tflops_per_gpu:.1f} TFLOP/s per GPU{_expected(audit)}"))
    if measured and measured.tokens_per_s_per_gpu:
        pairs.append(("printed rate", f"{measured.tokens_per_s_per_gpu:,.0f} tokens/s per GPU"))
    if measured and measured.peak_memory_bytes:
        pairs.append(("printed peak", format_bytes(measured.peak_memory_bytes)))
    if audit.predicted is not None:
        band = f"{format_seconds(audit.predicted.lower_s)} to {format_seconds(audit.predicted.upper_s)}"
        pairs.append(("predicted", f"{format_seconds(audit.predicted.step_time_s)}, 80 % band {band}"))
        pairs.append(("peak memory", memory_words(audit.predicted, audit.job.request)))
    if audit.memory is not None:
        pairs.append(("memory", audit.memory.words))
    if audit.best is not None:
        words = f"{layout_words(audit.best.layout)} · {audit.proof}"
        pairs.append(("best", f"{format_seconds(audit.best.estimate.step_time_s)} predicted: {words}"))
        best = audit.best.estimate
        level = audit.memory_level
        printed = (
            "" if level == 1 else f", {format_bytes(level * best.peak_memory_bytes)} by the printed peak"
        )
        fit = f"{memory_words(best, audit.best.request)}{printed}: {fit_text(best.out_of_memory_chance)}"
        pairs.append(("its memory", fit))
        pairs.append(("evidence", _evidence_words(audit.best)))
    if audit.slower_by is not None:
        pairs.append(("distance", _distance(audit, audit.slower_by)))
    stopped = "not of a job that is illegal as it is, or that nothing prices"
    lacks = "not without what is missing" if audit.job.missing else stopped
    return Facts(title="Times", pairs=tuple(pairs or [("predicted", lacks)]))


def _expected(audit: Audit) -> str:
    """What a rate should be by the prediction, in operations that are counted once."""
    predicted, request = audit.predicted, audit.job.request
    if predicted is None or request is None:
        return ""
    flop, gpus = model_flop_per_step(request.model, request.job), request.cluster.num_gpus
    return f", predicted {flop / (predicted.step_time_s * gpus) / TERA:.1f}"


def _distance(audit: Audit, slower_by: float) -> str:
    """How far the job is from the best, and whether that is measured or predicted against predicted."""
    if audit.is_best:
        return f"none: {audit.distance_note}"
    basis = "measured against predicted" if audit.basis == "measured" else "both predicted"
    over = f"{format_over_best(slower_by)}, {basis}"
    return f"{over}: {audit.distance_note}" if audit.distance_note else over


def _evidence_words(best: Plan) -> str:
    """Measured runs behind the best plan, and what of it none has: a proof is under the cost model."""
    evidence = best.estimate.evidence
    runs = next((item for item in evidence if item.key == RUNS), None)
    lacking = [item.used for item in unmeasured(evidence) if item.key != RUNS]
    count = "no measured run" if runs is None or not runs.runs else f"{runs.runs} measured runs"
    of = "" if runs is None else f" of {runs.used}"
    without = f"; none with {', '.join(lacking)}" if lacking else ""
    return f"{count}{of}{without}"


def _changes_table(audit: Audit) -> Table:
    """What would be better, in the file's words."""
    rows = tuple(
        (
            _gain_words(change),
            _signed_bytes(change.memory_change_bytes),
            format_chance(change.out_of_memory_chance),
            "all" if change.whole else "alone",
            change_words(change) or _unwritten(audit),
        )
        for change in distinct_changes(audit.changes)
    )
    columns = ("gains", "memory", "OOM", "", "set")
    return Table(title="Changes", columns=columns, rows=rows, align="rrlll", wraps=(4,))


def distinct_changes(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Changes without those that are the whole of them, of which there is then but a single part."""
    whole = {(change.set, change.remove) for change in changes if change.whole}
    return tuple(change for change in changes if change.whole or (change.set, change.remove) not in whole)


def _gain_words(change: Change) -> str:
    """Seconds of a step that a change gains, and whether the model can tell."""
    if change.seconds_gained <= 0:
        return "none"
    return f"{format_seconds(change.seconds_gained)}{' (tie)' if change.tied else ''}"


def memory_words(estimate: Estimate, request: PlanRequest | None) -> str:
    """The predicted peak with its band, and what a GPU has."""
    peak = format_bytes(estimate.peak_memory_bytes)
    band = f"{format_bytes(estimate.memory_lower_bytes)} to {format_bytes(estimate.memory_upper_bytes)}"
    of = "" if request is None else f" of {format_bytes(cluster_of(request).gpu.memory_bytes)}"
    return f"{peak} predicted{of}, 80 % band {band}"


def _unwritten(audit: Audit) -> str:
    """The best layout where it is not known how files of the engine say it."""
    layout = "" if audit.best is None else f"{layout_words(audit.best.layout)}: "
    return f"{layout}how {audit.reading.family.name} is told it is not known here"


def _signed_bytes(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{format_bytes(abs(value))}"


def audit_document(audit: Audit) -> dict[str, Any]:
    """An audit as data: fields as they are priced; of a job that is not, those that files state."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "files": [{"file": path, "kind": kind} for path, kind in audit.reading.kinds.items()],
        "engine": audit.reading.family.name,
    }
    for group in _SHOWN:
        document[group] = {
            fact.name.partition(".")[2]: fact.value
            for fact in shown_facts(audit.reading, _SHOWN)
            if fact.name.startswith(f"{group}.")
        }
    if audit.job.request is not None:
        parts = {name: getattr(audit.job.request.job, name) for name in ("adapter", "offload")}
        document["job"] |= {name: part.words for name, part in parts.items() if part is not None}
    name = audit.reading.facts.value("said.model")
    if name:
        document["model"]["name"] = name
    document["facts"] = [fact_record(fact) for fact in shown_facts(audit.reading, _SHOWN)]
    document["summary"] = list(summary_of(audit))
    document["findings"] = [
        {"kind": f.kind, "rule": f.rule, "message": f.message, "fix": f.fix, "file": f.file, "line": f.line}
        for f in audit.findings
    ]
    document["measured"] = _measured_record(audit)
    document["predicted"] = _predicted_record(audit)
    document["best"] = _best_record(audit)
    document["changes"] = [_change_record(change) for change in audit.changes]
    document["slower_by"] = audit.slower_by
    document["tied"] = audit.tied
    document["outruns_what_fits"] = audit.outruns_what_fits
    document["basis"] = audit.basis
    document["evidence"] = list(audit.evidence)
    document["residual"] = _residual_record(audit.residual)
    document["doubted"] = list(audit.doubted)
    document["memory_level"] = audit.memory_level
    document["verdict"] = None if audit.memory is None else asdict(audit.memory)
    document["fits"] = audit.fits
    document["out_of_memory_chance"] = None if audit.memory is None else audit.memory.chance
    document["missing"] = list(audit.job.missing)
    document["assumed"] = list(audit.doubts)
    document["unsettled"] = [asdict(unsettled) for unsettled in audit.job.unsettled]
    return document


def _residual_record(residual: Residual | None) -> dict[str, Any] | None:
    """A measured step beside its prediction, and what would explain it."""
    if residual is None:
        return None
    return {
        "open_s": residual.open_s, "factor": residual.factor, "inside_band": residual.is_explained,
        "unstated": list(residual.unstated), "words": list(residual.words),
        "link": _link_record(residual.link),
        "candidates": [
            {"what": candidate.what, "value": candidate.value, "flag": candidate.flag,
             "step_time_s": candidate.estimate.step_time_s, "lower_s": candidate.estimate.lower_s,
             "upper_s": candidate.estimate.upper_s}
            for candidate in residual.candidates
        ],
    }  # fmt: skip


def _link_record(link: LinkRate | None) -> dict[str, Any] | None:
    """The rate of links that would explain a slow step."""
    if link is None:
        return None
    return {"of": link.of, "bytes_per_s": link.bytes_per_s, "taken_bytes_per_s": link.taken_bytes_per_s}


def _measured_record(audit: Audit) -> dict[str, Any] | None:
    """What a log measured."""
    measured = audit.reading.measured
    if measured is None:
        return None
    record = {
        "step_time_s": audit.measured_step_s,
        "from_rate": audit.measured_from or None,
        "steps": measured.steps or None,
        "tflops_per_gpu": measured.tflops_per_gpu,
        "tokens_per_s_per_gpu": measured.tokens_per_s_per_gpu,
        "tokens_per_s": measured.tokens_per_s,
        "samples_per_s": measured.samples_per_s,
        "peak_memory_bytes": measured.peak_memory_bytes,
    }
    return {name: value for name, value in record.items() if value is not None}


def _predicted_record(audit: Audit) -> dict[str, Any] | None:
    """What the job should take."""
    predicted = audit.predicted
    if predicted is None:
        return None
    record: dict[str, Any] = {
        "step_time_s": predicted.step_time_s, "lower_s": predicted.lower_s, "upper_s": predicted.upper_s,
        "peak_memory_bytes": predicted.peak_memory_bytes, "memory_lower_bytes": predicted.memory_lower_bytes,
        "memory_upper_bytes": predicted.memory_upper_bytes, **memory_record(predicted.out_of_memory_chance),
        "mfu": predicted.mfu, "bound_by": predicted.bound_by,
    }  # fmt: skip
    if audit.measured_step_s:
        record["error"] = predicted.step_time_s / audit.measured_step_s - 1
    return record


def _best_record(audit: Audit) -> dict[str, Any] | None:
    """The proven best."""
    best = audit.best
    if best is None:
        return None
    return {
        "step_time_s": best.estimate.step_time_s,
        "peak_memory_bytes": best.estimate.peak_memory_bytes,
        "memory_lower_bytes": best.estimate.memory_lower_bytes,
        "memory_upper_bytes": best.estimate.memory_upper_bytes,
        **memory_record(best.estimate.out_of_memory_chance),
        "status": best.optimality.status,
        "gap": best.optimality.gap,
        "proof": audit.proof,
        "words": layout_words(best.layout),
        "layout": {
            name: getattr(best.layout, name)
            for name in (
                "tp",
                "pp",
                "virtual_stages",
                "cp",
                "ep",
                "expert_tp",
                "dp",
                "microbatch_size",
                "zero_stage",
                "recompute",
                "sequence_parallel",
                "schedule",
            )
        },
    }


def memory_record(chance: float) -> dict[str, float | str]:
    """The chance of OOM and its word."""
    return {"out_of_memory_chance": chance, "fit": fit_of(chance)}


def _change_record(change: Change) -> dict[str, Any]:
    """One change."""
    return {
        "set": list(change.set), "remove": list(change.remove), "whole": change.whole,
        "fields": dict(change.fields),
        "step_time_s": change.step_time_s, "seconds_gained": change.seconds_gained,
        "peak_memory_bytes": change.peak_memory_bytes, "memory_change_bytes": change.memory_change_bytes,
        "tied": change.tied, **memory_record(change.out_of_memory_chance),
    }  # fmt: skip
