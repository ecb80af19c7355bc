"""The findings of `plan validate` as an answer: a table for people, a document for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.reports.answer import Answer, Section, Table, json_text
from topology.base.decode import unstructure
from topology.base.units import GIB

if TYPE_CHECKING:
    from executor.validation.report import ValidationReport

FAILED = 1
_MOST_DIFFERENCES = 20


def validation_answer(report: ValidationReport) -> Answer:
    """Lay out a report; the exit code is 1 when a claim does not hold."""
    wrong, unchecked = (_named(report, verdict) for verdict in ("does not hold", "not checked here"))
    headline = f"does not hold: {wrong}" if wrong else "what was checked holds"
    if unchecked:
        headline += f"; not checked here: {unchecked}"
    sections: list[Section] = [
        Table(
            title="Claims",
            columns=("claim", "verdict", "time", "finding"),
            rows=tuple((c.name, c.verdict, f"{c.seconds:.0f} s", c.detail) for c in report.checks),
            align="llrl",
            note=report.scope,
        )
    ]
    sections += _memory(report) + _differences(report)
    return Answer(
        headline=headline,
        sections=tuple(sections),
        document=lambda: json_text(_document(report)),
        records=tuple(unstructure(check) for check in report.checks),
        exit_code=FAILED if wrong else 0,
    )


def _named(report: ValidationReport, verdict: str) -> str:
    """The claims with a verdict."""
    return ", ".join(check.name for check in report.checks if check.verdict == verdict)


def _memory(report: ValidationReport) -> list[Section]:
    """Traced and estimated peaks side by side."""
    if not report.memory:
        return []
    rows = [
        (
            str(s.stage),
            *(f"{value / GIB:.2f}" for value in (s.weights_bytes, s.gradients_bytes, s.optimizer_bytes)),
            *(f"{value / GIB:.2f}" for value in (s.activations_bytes, s.peak_bytes)),
            f"{s.estimate.allocated_bytes / GIB:.2f}",
            f"{s.error:+.1%}",
        )
        for s in report.memory
    ]
    columns = ("stage", "weights", "gradients", "optimizer", "activations", "peak", "estimate", "difference")
    note = "traced with fake tensors; the runtime's own memory and fragmentation come on top"
    return [Table(title="Memory of full-size ranks, GiB", columns=columns, rows=tuple(rows), note=note)]


def _differences(report: ValidationReport) -> list[Section]:
    """Numbers on which cost model and executor disagree."""
    unequal = [entry for entry in report.terms if not entry.term.equal]
    if not unequal:
        return []
    rows = tuple(
        (str(e.stage), e.term.name, str(e.term.expected), str(e.term.measured))
        for e in unequal[:_MOST_DIFFERENCES]
    )
    return [
        Table(
            title="Counts that differ",
            columns=("stage", "term", "cost model", "executor"),
            rows=rows,
            align="rlrr",
            note="" if len(unequal) == len(rows) else f"{len(unequal) - len(rows)} more are in --json",
        )
    ]


def _document(report: ValidationReport) -> dict[str, Any]:
    """The report as plain data, with the verdict and the differences of memory."""
    document: dict[str, Any] = unstructure(report)
    document["passed"] = report.passed
    for stage, stage_memory in zip(document["memory"], report.memory, strict=True):
        stage["difference"] = stage_memory.error
    return document
