"""What is illegal in the files of a job: what its engine stops at, and the rules that a complete job breaks.

Both are the engine's and the planner's own knowledge; here they get the place in the file and its words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from costmodel.kernels.precisions import TRAINING
from costmodel.layout import ParallelLayout
from planner.audit.contract_reading import (
    contract_of,
    facts_of_job,
    file_spellings,
    problem_as_run,
    profile_reading_of,
    refused_by,
    split_as_run,
    stack_as_run,
    states_all,
    words_between,
)
from planner.audit.facts import JobFacts
from planner.audit.job import Job
from planner.audit.read import Reading
from planner.audit.spelling import spelled_change, spelled_name, spelled_names, spelled_words
from planner.law import Ground, PlanLaw, Violation
from planner.plan import PlanRequest, Problem, stack_of
from planner.rules.check import check, parse_pins, rules_of
from topology.base.errors import InputError
from topology.catalog import gpus

FindingKind = Literal["illegal", "open", "contradiction", "slow", "measured", "unpriced"]
"""``open``: the engine stops unless what no file says is so; ``unpriced``: legal as far as is known."""
KIND_OF: Mapping[Ground, FindingKind] = {
    "impossible": "illegal", "engine": "illegal", "room": "illegal", "unpriced": "unpriced",
    "overruled": "contradiction",
}  # fmt: skip
"""What an audit finds where a law is broken on a ground."""
_LAYOUT = tuple(field.name for field in fields(ParallelLayout))
_NOT_OFFERED = re.compile(r", but (\S+) has only .*$")
"""What a profile does not price, as the rules of plans say it."""
_PRODUCT = re.compile(r"\b([a-z_]+(?:·[a-z_]+)+)=(\d+)")
_PIN = re.compile(r"(\b(?:set|use) )?\b([a-z_]+)=([A-Za-z0-9_-]+)")
_OF_JOB = re.compile(r"\bjob\.[a-z_]+\b")
"""A field of a job, as the rules of plans name it."""
_PRECISION = re.compile(rf"(\b(?:set|use) )?(?:--)?precision ({'|'.join(TRAINING)})\b")
_NAME = re.compile(rf"(?<![\w-])({'|'.join(name for name in _LAYOUT if name != 'dp')})(?![\w-])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know.

    Attributes:
        kind: What it is.
        rule: A word for it, the same in every audit.
        message: What the file says, in numbers.
        fix: What changes it.
        file: Where.
        line: Where; 0 if no line says it.
    """

    kind: FindingKind
    rule: str
    message: str
    fix: str = ""
    file: str = ""
    line: int = 0


def is_illegal(findings: Iterable[Finding]) -> bool:
    """Whether the engine stops, whatever the files leave unsaid; an audit then exits with 4."""
    return any(finding.kind == "illegal" for finding in findings)


def stops(findings: Iterable[Finding]) -> bool:
    """Whether a job has no price: it does not start, or nothing prices what it does."""
    return any(finding.kind in ("illegal", "unpriced") for finding in findings)


def place_of(facts: JobFacts, *names: str) -> tuple[str, int]:
    """Where the first of some fields stands that stands anywhere."""
    stated = (facts.by_field[name] for name in names if name in facts.by_field)
    return next(((fact.file, fact.line) for fact in stated if fact.line), ("", 0))


def refusal_findings(reading: Reading, job: Job) -> Iterator[Finding]:
    """What the engine stops at of what it is told."""
    spellings = file_spellings(reading)
    for violation, setting in refused_by(reading, job.request.model if job.request else None):
        yield Finding(
            kind=KIND_OF[violation.ground],
            rule=violation.rule,
            message=spelled_names(reading, spellings, violation.message),
            fix=spelled_names(reading, spellings, violation.hint),
            file=setting.file if setting else "",
            line=setting.line if setting else 0,
        )


def rule_findings(reading: Reading, job: Job) -> Iterator[Finding]:
    """Rules of the planner and of the engine that a complete job breaks, with the switches of its files."""
    if job.request is None or job.layout is None:
        return
    problem = problem_as_run(reading, job.request, job.layout)
    contract = contract_of(reading)
    lent = problem.stack.name == "pytorch" or contract is None
    ran = set(reading.kinds.values()) == {"log"}  # so it was legal
    runs: Mapping[str, str] = contract.runs if contract is not None else {}
    rules = {rule.name: rule for rule in rules_of(problem.engine)}
    open_fields = {name.removeprefix("layout.") for name in job.open_fields}
    for violation in check(problem, job.layout):
        if _taken(reading, violation.rule) or _stated_by_files(job, violation.rule):
            continue
        of_engine = violation.rule.startswith(f"{problem.engine}-")
        if lent and of_engine and (contract is None or contract.engine != problem.engine):
            continue  # the profile prices it, and another program runs it
        rule = rules.get(violation.rule)
        theirs = violation.rule.endswith("-offered") or of_engine
        unknown = rule is not None and not open_fields.isdisjoint(rule.reads)
        unknown |= "cluster.num_gpus" in open_fields and rule is not None and "dp" in rule.reads
        unknown |= "cluster.gpu" in open_fields and _holds_elsewhere(problem, job.layout, violation.rule)
        unknown |= "job.sequence_length" in open_fields and _holds_longer(problem, job.layout, violation.rule)
        unpriced = (
            ran
            or unknown
            or (lent and theirs)
            or violation.ground == "unpriced"
            or (violation.rule in runs and violation.ground != "impossible")
        )
        why = (
            f": {runs[violation.rule]}"
            if violation.rule in runs and runs[violation.rule] not in violation.message
            else ""
        )
        file, line = _place(reading.facts, rule, violation)
        yield Finding(
            kind="unpriced" if unpriced else "illegal",
            rule=violation.rule,
            message=_NOT_OFFERED.sub(r", which \1 does not price", violation.message) + why,
            fix="" if unpriced else _in_words(reading, job.request, job.layout, violation.hint),
            file=file,
            line=line,
        )


def _holds_elsewhere(problem: Problem, layout: ParallelLayout, rule: str) -> bool:
    """Whether a GPU of another generation keeps a rule: of an assumed one it says nothing."""
    others = {gpu.architecture: gpu for gpu in gpus().values()}
    return any(
        rule
        not in {
            violation.rule
            for violation in check(problem.of(cluster=replace(problem.cluster, gpu=gpu)), layout)
        }
        for gpu in others.values()
    )


def _holds_longer(problem: Problem, layout: ParallelLayout, rule: str) -> bool:
    """Whether sequences that every rank of a layout divides keep a rule: of assumed ones it says nothing."""
    job = problem.job
    length = job.sequence_length * 2 * layout.cp * layout.tp
    longer = problem.of(job=replace(job, sequence_length=length))
    return rule not in {violation.rule for violation in check(longer, layout)}


def _taken(reading: Reading, rule: str) -> bool:
    """Whether the engine judges by its own words what a limit judges by fields, and takes it."""
    contract = contract_of(reading)
    if contract is None or not rule.startswith(f"{contract.engine}-") or not states_all(reading, contract):
        return False
    return any(rule in law.says_of for law in contract.refusals)


def _stated_by_files(job: Job, rule: str) -> bool:
    """Whether a limit says that the engine is not told a switch which its own files say."""
    asked = job.request.switches.keys() - job.switches if job.request is not None else set()
    return rule.endswith(_OF_WORDS) and not asked


_OF_WORDS = ("-switches", "-graphed-modules", "-graph-of-experts")
"""Limits of what is written for an engine: whether it takes what its files say, its own refusals tell."""


def _place(facts: JobFacts, rule: PlanLaw | None, violation: Violation) -> tuple[str, int]:
    """Where what breaks a rule stands: a degree that is no least one first, then what its text speaks of."""
    names = [f"layout.{name}" for name in (rule.reads if rule else ())]
    telling = [name for name in names if facts.value(name) not in (None, 0, 1, False, "none")]
    spoken = [
        name for name in facts.by_field if name.partition(".")[2] in re.findall(r"\w+", violation.message)
    ]
    return place_of(facts, *telling, *names, *(name for name in spoken if not name.startswith("said.")))


def _in_words(reading: Reading, request: PlanRequest, layout: ParallelLayout, hint: str) -> str:
    """A hint of the planner in the words of the file."""

    def pinned(match: re.Match[str]) -> str:
        verb, name, value = match.groups()
        if name not in _LAYOUT:
            return match.group()
        try:
            after = replace(layout, **parse_pins({name: value}))
        except InputError:
            return match.group()
        fallback = spelled_change(reading, ((name, getattr(after, name)),))
        return (
            _instruction(verb, _changed(reading, request, layout, request, after) or fallback)
            or match.group()
        )

    def multiplied(match: re.Match[str]) -> str:
        return f"{' · '.join(spelled_name(reading, name) for name in match[1].split('·'))} of {match[2]}"

    def multiplying(match: re.Match[str]) -> str:
        precision: Any = match[2]
        job = replace(request.job, precision=precision)
        changed = _changed(reading, request, layout, replace(request, job=job), layout)
        return _instruction(match[1], changed) or match.group()

    hint = _OF_JOB.sub(lambda match: spelled_name(reading, match[0]), hint)
    text = _PIN.sub(pinned, _PRECISION.sub(multiplying, _PRODUCT.sub(multiplied, hint)))
    return _NAME.sub(lambda match: spelled_name(reading, match[1]), text)


def _instruction(verb: str | None, words: tuple[str, ...]) -> str:
    """Words to set, and those to leave out; empty where there are none."""
    gone = [word.removeprefix("without ") for word in words if word.startswith("without ")]
    changed = " ".join(word for word in words if not word.startswith("without "))
    less = f"leave {' and '.join(gone)} out" if gone else ""
    return " and ".join(part for part in (f"{verb or ''}{changed}" if changed else "", less) if part)


def _changed(
    reading: Reading, request: PlanRequest, layout: ParallelLayout, other: PlanRequest, after: ParallelLayout
) -> tuple[str, ...]:
    """Words that make one job another, by the contract of its engine."""
    stack = stack_as_run(stack_of(request), profile_reading_of(reading, request), layout)
    try:
        facts = [
            facts_of_job(asked, split, split_as_run(asked, split, None), stack)
            for asked, split in ((request, layout), (other, after))
        ]
    except (InputError, ValueError, IndexError, ZeroDivisionError):
        return ()
    kept = request.job.precision == other.job.precision
    between = words_between(reading, facts[0], facts[1], keeps_numerics=kept)
    return () if between is None else spelled_words(reading, *between)
