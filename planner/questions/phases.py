"""A run in phases, as written: a file whose `[[phases]]` each change what the flags say of the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.plan import PlanRequest
from planner.questions.batches import is_range
from planner.questions.flags import Flags
from planner.questions.training import Understood, understand
from topology.base.counts import TOTALS, parse_count
from topology.base.decode import read_toml, structure
from topology.base.errors import InputError, shown
from topology.base.units import parse_seconds

MOST_PHASES = 32
_OF_FLAGS = ("tokens", "sequence_length", "global_batch_size", "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseText:
    """One entry of a file, as text; what is empty is as the flags say.

    Attributes:
        name: What it is called.
        tokens: Of this phase.
        sequence_length: Tokens of a sequence.
        global_batch_size: Sequences of a step.
        precision: Of its products.
        pause: Time that passes before it without a step: an evaluation, a look at the loss.
    """

    name: str
    tokens: str
    sequence_length: str = ""
    global_batch_size: str = ""
    precision: str = ""
    pause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A stretch of a run with one job: its name, its question, and the seconds that pass before it."""

    name: str
    request: PlanRequest
    pause_s: float = 0.0


def read_phases(path: Path, flags: Flags) -> tuple[tuple[Phase, ...], tuple[str, ...]]:
    """Phases of a file over the flags, and the notes of what was understood.

    Raises:
        InputError: there are none or too many, one says nothing known, or the flags say tokens too.
    """
    if is_range(flags.global_batch_size):
        raise InputError(
            what="a range of batches does not go with --phases",
            cause=f"--global-batch-size {flags.global_batch_size}",
            fix="give every phase its global_batch_size",
        )
    if flags.tokens is not None:
        raise InputError(
            what="--tokens and --phases both say how many tokens",
            cause=f"--tokens {flags.tokens}, and every phase of {path} has its own",
            fix="leave --tokens out",
        )
    entries = _entries(read_toml(path), str(path))
    understood = [(entry, understand(_flags_of(entry, flags))) for entry in entries]
    phases = tuple(_phase(entry, result, str(path)) for entry, result in understood)
    return phases, tuple(dict.fromkeys(note for _, result in understood for note in result.notes))


def _entries(raw: Mapping[str, Any], path: str) -> tuple[PhaseText, ...]:
    """The tables of a file, numbers taken for the text they are written as."""
    tables, others = raw.get("phases"), [name for name in raw if name != "phases"]
    if not isinstance(tables, list) or not 0 < len(tables) <= MOST_PHASES or others:
        why = f"it has {', '.join(map(shown, others))}" if others else "it needs 1 to 32 tables [[phases]]"
        raise InputError(
            f"{path} is no file of phases", why, 'write [[phases]] with name = "8k", tokens = "14T"'
        )
    texts = [
        {key: str(value) if type(value) in (int, float) else value for key, value in table.items()}
        if isinstance(table, Mapping)
        else table
        for table in tables
    ]
    phase_texts = tuple(
        structure(text, PhaseText, f"{path}: phases[{place}]") for place, text in enumerate(texts)
    )
    names = [entry.name for entry in phase_texts]
    if len(set(names)) < len(names):
        value = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} has two phases of one name", f"{shown(value)} twice", "give each its own")
    return phase_texts


def _flags_of(entry: PhaseText, flags: Flags) -> Flags:
    """The flags of one phase."""
    result = {name: getattr(entry, name) for name in _OF_FLAGS if getattr(entry, name)}
    parse_count(result.get("tokens", ""), f"tokens of the phase {entry.name}", suffixes=TOTALS)
    return replace(flags, **result)


def _phase(entry: PhaseText, understood: Understood, path: str) -> Phase:
    """A phase whose question is understood."""
    return Phase(name=entry.name, request=understood.request, pause_s=_pause_s(entry, path))


def _pause_s(entry: PhaseText, path: str) -> float:
    """Seconds that pass before a phase; a mistake says of which phase and file it is."""
    try:
        return parse_seconds(entry.pause, "2h") if entry.pause else 0.0
    except InputError as wrong:
        raise InputError(
            what=f"{path}: the pause of the phase {shown(entry.name)} is not a time",
            cause=f"pause = {shown(entry.pause)}: {wrong.cause}",
            fix='write pause = "2h", or leave it out',
        ) from wrong
