"""What `plan audit` says: the job as its files have it, what is wrong, what it should take, what helps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.quantities import format_share
from app.reports.answer import Answer, Facts, Lines, Section, Table, json_text
from app.reports.audit.facts import fact_record, facts_table, place
from app.reports.plan_headline import cluster_of
from costmodel.estimate import Estimate
from costmodel.layout import layout_words
from costmodel.memory.fit import fit_of, fit_text
from costmodel.models.spec import ModelSpec
from planner.audit.audit import Audit
from planner.audit.changes import Change
from planner.audit.facts import Fact
from planner.plan import PlanRequest
from topology.base.units import format_bytes, format_seconds

SCHEMA_VERSION = 1
LEAST_DOUBT = 0.15
"""Share below the proven best from which a measurement is of another job than the one that is priced."""
_SHOWN = ("layout", "job", "model", "cluster")


def audit_answer(found: Audit) -> Answer:
    """Everything an audit says."""
    sections: list[Section] = [_files(found), facts_table(found.reading, _shown(found))]
    if found.findings:
        rows = tuple((f.kind, f.message, f.fix, place(f.file, f.line)) for f in found.findings)
        sections.append(
            Table(
                title="Wrong or slow",
                columns=("", "what", "help", "where"),
                rows=rows,
                align="llll",
                wraps=(1, 2),
            )
        )
    sections.append(_times(found))
    if found.changes:
        sections.append(_changes_table(found))
    if found.doubts:
        sections.append(Lines(title="Taken for granted", lines=found.doubts))
    document = audit_document(found)
    return Answer(
        headline=_headline(found),
        sections=tuple(sections),
        document=lambda: json_text(document),
        records=tuple(document["facts"]),
    )


def _headline(found: Audit) -> str:
    """What was read, in a line."""
    names = ", ".join(path.rpartition("/")[2] for path in found.reading.kinds)
    return f"{names}: a job of {found.reading.family.name}"


def _files(found: Audit) -> Facts:
    """Files and what they are."""
    pairs: list[tuple[str, str]] = [
        (path.rpartition("/")[2], kind) for path, kind in found.reading.kinds.items()
    ]
    if found.job.layout is not None and found.job.request is not None:
        request = found.job.request
        pairs.append(("layout", layout_words(found.job.layout)))
        pairs.append(("on", f"{request.cluster.num_gpus} × {request.cluster.nodes[0].gpu}"))
        pairs.append(("model", _model_words(request.model)))
        for name in ("adapter", "offload"):
            part = getattr(request.job, name)
            if part is not None:
                pairs.append((name, part.words))
    if found.job.missing:
        pairs.append(("missing", ", ".join(found.job.missing)))
    return Facts(title="", pairs=tuple(pairs))


def _model_words(model: ModelSpec) -> str:
    """A model by its name, one that has none by its sizes."""
    if model.name != "unnamed":
        return model.name
    return f"{model.num_layers} layers of {model.hidden_size}, as the file sizes it"


def _shown(found: Audit) -> list[Fact]:
    """Facts of a job, in the order of groups."""
    facts = found.reading.facts.found.values()
    return [fact for group in _SHOWN for fact in facts if fact.name.partition(".")[0] == group]


def _times(found: Audit) -> Facts:
    """Predicted, measured and best."""
    pairs: list[tuple[str, str]] = []
    measured = found.reading.measured
    if found.measured_step_s is not None:
        steps = f" (median of {measured.steps} steps)" if measured and measured.steps else ""
        pairs.append(("measured", f"{format_seconds(found.measured_step_s)}{steps}"))
    if measured and measured.tflops_per_gpu:
        pairs.append(("printed rate", f"{measured.tflops_per_gpu:.1f} TFLOP/s per GPU"))
    if measured and measured.peak_memory_bytes:
        pairs.append(("printed peak", format_bytes(measured.peak_memory_bytes)))
    if found.predicted is not None:
        band = f"{format_seconds(found.predicted.lower_s)} to {format_seconds(found.predicted.upper_s)}"
        pairs.append(("predicted", f"{format_seconds(found.predicted.step_time_s)}, 80 % band {band}"))
        pairs.append(("peak memory", memory_words(found.predicted, found.job.request)))
    if found.best is not None:
        words = f"{layout_words(found.best.layout)} · {found.best.optimality.status}"
        pairs.append(("best", f"{format_seconds(found.best.estimate.step_time_s)}: {words}"))
        pairs.append(("its memory", memory_words(found.best.estimate, found.best.request)))
    if found.slower_by is not None:
        over = format_share(found.slower_by, signed=True)
        said = "predicted" if found.measured_step_s is None else "measured"
        faster = (
            "" if found.slower_by > -LEAST_DOUBT else f": {said} below it, so something above is not this job"
        )
        tie = ", a tie: the error band cannot tell them apart" if found.tied else ""
        pairs.append(("distance", f"{over} over the best{tie}{faster}"))
    stopped = "not of a job that is illegal as it is, or that nothing prices"
    lacks = "not without what is missing" if found.job.missing else stopped
    return Facts(title="Times", pairs=tuple(pairs or [("predicted", lacks)]))


def _changes_table(found: Audit) -> Table:
    """What would be better, in the file's words."""
    rows = tuple(
        (
            _gain_words(change),
            _signed_bytes(change.memory_change_bytes),
            fit_text(change.out_of_memory_chance),
            "all of it" if change.whole else "alone",
            _set(change.set) if change.set else "the best plan",
        )
        for change in found.changes
    )
    columns = ("gains a step", "memory", "with it", "", "set")
    return Table(title="Changes", columns=columns, rows=rows, align="rrlll", wraps=(4,))


def _gain_words(change: Change) -> str:
    """Seconds of a step that a change gains, and whether the model can tell."""
    if change.seconds_gained <= 0:
        return "none"
    return f"{format_seconds(change.seconds_gained)}{' (tie)' if change.tied else ''}"


def memory_words(estimate: Estimate, request: PlanRequest | None) -> str:
    """The peak with its band and what a GPU has, and whether it fits."""
    peak, chance = format_bytes(estimate.peak_memory_bytes), estimate.out_of_memory_chance
    band = f"{format_bytes(estimate.memory_lower_bytes)} to {format_bytes(estimate.memory_upper_bytes)}"
    of = "" if request is None else f" of {format_bytes(cluster_of(request).gpu.memory_bytes)}"
    return f"{peak}{of}, 80 % band {band}: {fit_text(chance)}"


def _set(words: tuple[str, ...]) -> str:
    """Words to write, each with its value on one line, then those to take away."""
    gone = [word.removeprefix("without ") for word in words if word.startswith("without ")]
    said = [word.replace(" ", "\u00a0") for word in words if not word.startswith("without ")]
    return " ".join([*said, *(["without\u00a0" + gone[0], *gone[1:]] if gone else [])])


def _signed_bytes(value: float) -> str:
    return f"{'+' if value >= 0 else '-'}{format_bytes(abs(value))}"


def audit_document(found: Audit) -> dict[str, Any]:
    """An audit as data: fields as they are priced; of a job that is not, those that files state."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "files": [{"file": path, "kind": kind} for path, kind in found.reading.kinds.items()],
        "engine": found.reading.family.name,
    }
    for group in _SHOWN:
        document[group] = {
            fact.name.partition(".")[2]: fact.value
            for fact in _shown(found)
            if fact.name.startswith(f"{group}.")
        }
    name = found.reading.facts.value("said.model")
    if name:
        document["model"]["name"] = name
    document["facts"] = [fact_record(fact) for fact in _shown(found)]
    document["findings"] = [
        {"kind": f.kind, "rule": f.rule, "message": f.message, "fix": f.fix, "file": f.file, "line": f.line}
        for f in found.findings
    ]
    document["measured"] = _measured_record(found)
    document["predicted"] = _predicted_record(found)
    document["best"] = _best_record(found)
    document["changes"] = [_change_record(change) for change in found.changes]
    document["slower_by"] = found.slower_by
    document["tied"] = found.tied
    document["fits"] = found.fits
    document["out_of_memory_chance"] = found.predicted and found.predicted.out_of_memory_chance
    document["missing"] = list(found.job.missing)
    document["assumed"] = list(found.doubts)
    document["unsettled"] = [asdict(one) for one in found.job.unsettled]
    return document


def _measured_record(found: Audit) -> dict[str, Any] | None:
    """What a log measured."""
    measured = found.reading.measured
    if measured is None:
        return None
    record = {
        "step_time_s": found.measured_step_s,
        "steps": measured.steps or None,
        "tflops_per_gpu": measured.tflops_per_gpu,
        "tokens_per_s_per_gpu": measured.tokens_per_s_per_gpu,
        "samples_per_s": measured.samples_per_s,
        "peak_memory_bytes": measured.peak_memory_bytes,
    }
    return {name: value for name, value in record.items() if value is not None}


def _predicted_record(found: Audit) -> dict[str, Any] | None:
    """What the job should take."""
    predicted = found.predicted
    if predicted is None:
        return None
    record: dict[str, Any] = {
        "step_time_s": predicted.step_time_s, "lower_s": predicted.lower_s, "upper_s": predicted.upper_s,
        "peak_memory_bytes": predicted.peak_memory_bytes, "memory_lower_bytes": predicted.memory_lower_bytes,
        "memory_upper_bytes": predicted.memory_upper_bytes, **memory_record(predicted.out_of_memory_chance),
        "mfu": predicted.mfu, "bound_by": predicted.bound_by,
    }  # fmt: skip
    if found.measured_step_s:
        record["error"] = predicted.step_time_s / found.measured_step_s - 1
    return record


def _best_record(found: Audit) -> dict[str, Any] | None:
    """The proven best."""
    best = found.best
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
        "set": list(change.set), "fields": dict(change.fields), "whole": change.whole,
        "step_time_s": change.step_time_s, "seconds_gained": change.seconds_gained,
        "peak_memory_bytes": change.peak_memory_bytes, "memory_change_bytes": change.memory_change_bytes,
        "tied": change.tied, **memory_record(change.out_of_memory_chance),
    }  # fmt: skip
