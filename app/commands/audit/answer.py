"""From the flags of `plan audit` to its answer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.errors import FAILED_AUDIT
from app.reports.answer import Answer, note
from app.reports.audit.report import audit_answer
from app.terminal.progress import waiting
from costmodel.accuracy.anchor import Anchor
from costmodel.accuracy.kept_anchors import remember
from planner.audit.audit import Audit, audited, calibration_of, level_of
from planner.audit.read import read_files
from planner.questions.flags import Flags
from topology.base.counts import parse_share
from topology.base.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuestion:
    """The flags of one call; see `app.commands.audit`."""

    files: tuple[str, ...]
    env: tuple[str, ...] = ()
    fail_above: str | None = None
    anchor: str | None = None


def audit_answer_of(question: AuditQuestion, flags: Flags) -> Answer:
    """Read the files, judge them, and tell it."""
    limit = parse_share(question.fail_above, "--fail-above") if question.fail_above else None
    reading = read_files(question.files, _variables(question.env))
    with waiting("auditing"):
        found = audited(reading, flags, calibration_of(reading, flags))
    answer = audit_answer(found)
    if question.anchor is not None:
        note(_kept(found, question.anchor))
    return replace(answer, exit_code=FAILED_AUDIT) if fails(found, limit) else answer


def _variables(settings: tuple[str, ...]) -> dict[str, str]:
    """Variables of the environment."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            cause, fix = "it needs a name and a value", "write for example --env NNODES=4"
            raise InputError(f"--env {setting} is no variable", cause, fix)
        found[name] = value
    return found


def fails(found: Audit, limit: float | None) -> bool:
    """Whether a job is to be stopped: it will not fit, or is illegal or too slow where a limit was given."""
    if found.fits is False:
        return True
    if limit is None:
        return False
    illegal = any(
        finding.kind == "illegal" and finding.rule != "cuda-connections" for finding in found.findings
    )
    return illegal or (found.slower_by is not None and found.slower_by > limit)


def _kept(found: Audit, name: str) -> str:
    """Keep the level that a log gives its engine; says so."""
    path = remember(Anchor(name=name, levels=(level_of(found, ""),)), name)
    return f"kept as {name} in {path}: plan --anchor {name}"
