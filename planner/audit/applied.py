"""Changes as their readers would write them: applied to the words of a file, which are then judged again.

What this reader itself calls illegal afterwards is no advice, and what a change is said to gain is what the
files then take. An export that stands in the way goes with the words that it forbids.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from costmodel.kernels.tables import Calibration
from planner.audit.changes import Change, Running, delivered, running_of
from planner.audit.conclusions import conclude
from planner.audit.contract_reading import add_chunks
from planner.audit.facts import JobFacts, job_facts_of
from planner.audit.findings import QUEUES, findings_of
from planner.audit.job import audited_job
from planner.audit.legal import stops
from planner.audit.read import Reading
from planner.formats.settings import Setting, snake_case
from planner.questions.flags import Flags
from topology.base.errors import InputError
from topology.builders import build

_FIELD = re.compile(r"([^-\s=:][^\s=:]*)\s*(?:=|:\s)\s*(.*)", re.DOTALL)
"""A field and its value, as TOML, YAML and overrides write them."""


def legal_changes(
    reading: Reading, now: Running, changes: tuple[Change, ...], flags: Flags, cal: Calibration
) -> Iterator[Change]:
    """Changes of files after which they are legal, with what else has to go for that, and what they deliver.

    Args:
        reading: The files.
        now: The job as they have it.
        changes: What is proposed, the most useful first.
        flags: What holds beside the files.
        cal: Kernel and collective tables.
    """
    for change in changes:
        if not (change.set or change.remove):
            yield change
            continue
        if any(not _has_word(reading, word) for word in change.remove):
            continue  # nobody can take away what is not there
        ways = [change]
        if QUEUES in reading.variables:
            ways.append(replace(change, remove=(*change.remove, QUEUES)))
        for way in ways:
            after = _running(applied(reading, way), flags, cal)
            kept = None if after is None else delivered(now, way, after)
            if after is not None:
                yield from [kept] if kept is not None else ()
                break


def applied(reading: Reading, change: Change) -> Reading:
    """Files with the words of a change written, and those taken away that are to go."""
    written = tuple(_as_named(setting, reading) for setting in _settings(change, next(iter(reading.kinds))))
    gone = {_key(word) for word in change.remove} | {_key(setting.name) for setting in written}
    kept = tuple(setting for setting in reading.settings if _key(setting.name) not in gone)
    stated = {
        name: fact
        for name, fact in reading.stated.by_field.items()
        if not fact.word or _key(fact.word) not in gone
    }
    new = job_facts_of(written, reading.family, next(iter(reading.kinds))).by_field
    words = JobFacts({**stated, **new}, set(reading.stated.unknown))
    facts = JobFacts(dict(words.by_field), set(words.unknown))
    conclude(facts, reading.family)
    variables = {name: setting for name, setting in reading.variables.items() if _key(name) not in gone}
    return replace(
        reading, settings=(*written, *kept), stated=words, facts=facts, variables=variables,
        sets_queues=reading.sets_queues and QUEUES not in change.remove,
    )  # fmt: skip


def _as_named(setting: Setting, reading: Reading) -> Setting:
    """A setting under the name that Python files give its last part: an argument stands inside its call."""
    if "." in setting.name or "python" not in reading.kinds.values():
        return setting
    names = {each.name for each in reading.settings if each.path[-1] == _key(setting.name)}
    return replace(setting, name=names.pop()) if len(names) == 1 else setting


def _running(reading: Reading, flags: Flags, cal: Calibration) -> Running | None:
    """The job as files have it; None where its engine does not start it or nothing prices it."""
    try:
        add_chunks(reading)
        job = audited_job(reading, flags)
        cluster = build(job.request.cluster) if job.request else None
        return None if stops(findings_of(reading, job, cluster)) else running_of(reading, job, cal)
    except InputError:
        return None


def _has_word(reading: Reading, word: str) -> bool:
    """Whether files have a word that is to go."""
    return any(_key(setting.name) == _key(word) for setting in reading.settings) or word in reading.variables


def _settings(change: Change, file: str) -> Iterator[Setting]:
    """The words that a change writes, as settings of a file."""
    for word in change.set:
        field = _FIELD.fullmatch(word)
        is_field = field is not None
        name, *values = field.groups() if field else shlex.split(word)
        yield Setting(
            name=name.strip().lstrip("-"),
            value=_value(values[0]) if is_field else values[0] if values else True,
            line=0,
            file=file,
            more=tuple(values[1:]),
        )


def _value(text: str) -> Any:
    """The value of a field as its file would hold it: a number, a truth or a list, else the text."""
    try:
        value = json.loads(text)
        texts = isinstance(value, list) and all(isinstance(part, str) for part in value)
        return ",".join(value) if texts else value
    except ValueError:
        quoted = len(text) > 1 and text[0] == text[-1] == "'"  # as a shell is told it
        return text[1:-1] if quoted else text


def _key(name: str) -> str:
    """A name in one spelling."""
    return snake_case(name.lstrip("-"))
