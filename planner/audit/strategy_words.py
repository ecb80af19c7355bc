"""ZeRO-2 and ZeRO-3 in the words by which files tell FSDP: a strategy by name or number, or resharding."""

from __future__ import annotations

import re

from planner.audit.facts import JobFact
from planner.audit.read import Reading
from planner.formats.settings import truth_of

_WHOLE_AND_KEPT = (("full_shard", "shard_grad_op"), ("1", "2"))
"""Strategies of one group of ranks: parameters sharded, parameters kept after the forward pass."""
_OF_COPIES = (("hybrid_shard", "hybrid_shard_zero2"), ("4", "5"))
"""The same of a copy on each node, as Accelerate calls them (utils/constants.py)."""
_STRATEGIES = ("said.sharding", "said.fsdp")
_RESHARDS = "said.reshard"
_OF_STAGE = {3: "true", 2: "false"}


def words_of_stage(reading: Reading, stage: int) -> tuple[str, str] | None:
    """The word by which files tell FSDP what it shards, and its value at a stage; None where they have none.

    The word for resharding need not stand there where the family names it and FSDP2 is what shards.

    Args:
        reading: The files.
        stage: Of ZeRO.
    """
    if stage not in _OF_STAGE:
        return None
    for name in _STRATEGIES:
        fact = reading.facts.by_field.get(name)
        if fact is not None and fact.word and (value := _strategy(fact, stage)):
            return fact.word, value
    fact = reading.facts.by_field.get(_RESHARDS)
    if fact is not None and fact.word:
        value = _OF_STAGE[stage] if truth_of(fact.value) is not None else _strategy(fact, stage)
        return (fact.word, value) if value else None
    has_versions = "said.fsdp_version" in reading.family.words.values()
    is_second = not has_versions or str(reading.facts.value("said.fsdp_version")) == "2"
    return (reading.family.reshards, _OF_STAGE[stage]) if reading.family.reshards and is_second else None


def _strategy(fact: JobFact, stage: int) -> str:
    """The value of a word that names a strategy, with that of a stage; empty where it names none known.

    What stands behind the strategy stays: ``full_shard auto_wrap`` is ``shard_grad_op auto_wrap``.
    """
    first, mark, rest = re.match(r"([^\s,]*)([\s,]*)(.*)", str(fact.value), re.DOTALL).groups()  # type: ignore[union-attr]  # matches any text
    of_trainer = fact.word.rpartition(".")[2].startswith("fsdp")
    pairs = _WHOLE_AND_KEPT + (_OF_COPIES if of_trainer else ())
    pair = next((pair for pair in pairs if first.lower().lstrip("_") in pair), None)
    if pair is None:
        return ""
    other = pair[0] if stage == 3 else pair[1]
    other = other.upper() if first.isupper() else other
    if "," not in mark:
        return f"{other}{mark}{rest}"
    parts = ", ".join(f'"{part.strip()}"' for part in (other, *rest.split(",")))
    return f"[{parts}]"
