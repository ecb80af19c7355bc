"""Facts of a job: what the settings of a file state, each with where it stands, and what follows from them.

A fact is *given* (on the command line), *stated* (a word of the file says it), *derived* (it follows from
stated ones: dp from the number of GPUs), a *default* of the engine, or *assumed* by us. What is not stated
and does not follow is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.audit.words import Family
from planner.formats.settings import NOT_KNOWN, Scalar, Setting, truth_of, whole_or_none

How = Literal["given", "stated", "derived", "default", "assumed"]

SKIPPED_PARTS = frozenset(
    (
        "rollout",
        "ref",
        "generation",
        "critic",
        "reward",
        "reward_model",
        "eval",
        "validation",
        "draft",
        "teacher",
        "optim_config",
    )
)
"""Parts of names that speak of another job than the one that trains."""
_WHOLE = frozenset(
    (
        "layout.tp",
        "layout.pp",
        "layout.cp",
        "layout.ep",
        "layout.expert_tp",
        "layout.dp",
        "layout.virtual_stages",
        "layout.microbatch_size",
        "layout.shard_degree",
        "job.global_batch_size",
        "job.sequence_length",
        "said.nodes",
        "said.gpus_per_node",
        "said.visible_gpus",
        "said.num_gpus",
        "said.machines",
        "said.replica_gpus",
        "said.tasks_per_node",
    )
)


_TYPED = ("said.gpus_per_node", "said.num_gpus")
"""Counts before which Slurm may be told the kind."""
OFFLOADED = ("offload", "offload_disk", "legacy", "unsloth")
"""Values of Axolotl's gradient_checkpointing: what is kept for the backward pass is kept elsewhere."""
LONGEST_WORD = 4
"""Parts of the longest word of a family."""
_PLACES = ("colocated",)
"""Tables that say where something runs: off, the rest of them says where else."""
MOST_NOTES = 8
"""Words of one file that say otherwise than the one that holds, and are told."""
_ANY = frozenset(("said.recompute_full",))
"""Fields that several words of an engine switch on: one that does is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFact:
    """One fact.

    Attributes:
        name: Canonical field.
        value: Its value.
        how: How it came to be known.
        line: Where it stands; 0 if nowhere.
        source: The word of the file, or why it holds.
        file: The file.
        word: The name of the setting that states it.
    """

    name: str
    value: Any
    how: How = "stated"
    line: int = 0
    source: str = ""
    file: str = ""
    word: str = ""


@dataclass(slots=True)
class JobFacts:
    """Facts by field; the first that is stated holds, unless a later one overrides it."""

    by_field: dict[str, JobFact] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    """Fields whose word the file has, with a value that only a run knows."""
    notes: list[str] = field(default_factory=list)

    def value(self, name: str) -> Any:
        """Value of a field, None if nothing is known of it."""
        fact = self.by_field.get(name)
        return None if fact is None else fact.value

    def truth(self, name: str) -> bool | None:
        """A field as yes or no."""
        value = self.value(name)
        return None if value is None else truth_of(value)

    def count(self, name: str) -> int | None:
        """A field as a whole number above zero."""
        count = whole_or_none(self.value(name))
        return count if count is not None and count > 0 else None

    def put(self, name: str, value: Any, how: How, source: str, like: str = "") -> None:
        """Add a fact that follows from another, unless something is known."""
        if name not in self.by_field and (name not in self.unknown or how == "stated"):
            base = self.by_field.get(like)
            line, file = (base.line, base.file) if base else (0, "")
            self.by_field[name] = JobFact(
                name=name, value=value, how=how, source=source, line=line, file=file
            )

    def take(self, name: str, value: Any, word: str) -> None:
        """Add a fact that another one states, with its words and place, unless something is known.

        What a published default states is one too.
        """
        base = self.by_field[word]
        how: How = "default" if base.how == "default" else "stated"
        self.put(name, value, how, base.source, like=word)

    def stated(self, name: str) -> bool:
        """Whether a word of the file says it."""
        fact = self.by_field.get(name)
        return fact is not None and fact.how == "stated"


def meaning(setting: Setting, words: Mapping[str, str]) -> str | None:
    """The field that a setting states, by the longest end of its name that is a word."""
    path = setting.path
    least = max((len(path) - at for at, part in enumerate(path[:-1]) if part in SKIPPED_PARTS), default=1)
    for length in range(min(LONGEST_WORD, len(path)), least - 1, -1):  # a word that names the part itself
        field_name = words.get(".".join(path[-length:]))
        if field_name is not None:
            return field_name
    return None


def fields_recognised(settings: Iterable[Setting], family: Family) -> int:
    """How many different fields of a job some settings state, machines left out."""
    fields = {meaning(setting, family.words) for setting in settings}
    machines = (
        "said.nodes",
        "said.gpus_per_node",
        "said.visible_gpus",
        "said.num_gpus",
        "said.machines",
        "said.gpu",
        "said.ignored",
        "said.only_of_trainer",
        None,
    )
    return len(fields.difference(machines))


def job_facts_of(settings: Iterable[Setting], family: Family, file: str) -> JobFacts:
    """What settings state, in the words of a family; the first of several holds."""
    facts = JobFacts()
    given = tuple(settings)
    off = tables_switched_off(given)
    for setting in given:
        if any(setting.path[: len(table)] == table and len(setting.path) > len(table) for table in off):
            continue
        name = meaning(setting, family.words)
        value = None if name is None else _value(name, setting.value)
        switches_on = name in _ANY and truth_of(facts.value(name)) is False and truth_of(value) is True
        if name in facts.by_field and not switches_on:
            held = facts.by_field[name]
            if (
                value not in (None, NOT_KNOWN, held.value)
                and name[:5] != "said."
                and len(facts.notes) < MOST_NOTES
            ):
                differs = f"{setting.name} {setting.value} (line {setting.line})"
                facts.notes.append(f"{held.source} (line {held.line}) holds over {differs}")
            continue
        if name is None or name in facts.unknown or name == "said.ignored":
            continue
        if value == NOT_KNOWN:
            facts.unknown.add(name)
        elif value is not None:
            source = f"{setting.name} {setting.value}" + (f" ({setting.how})" if setting.how else "")
            facts.by_field[name] = JobFact(
                name=name, value=value, line=setting.line, source=source, file=file, word=setting.name
            )
    return facts


def tables_switched_off(settings: tuple[Setting, ...]) -> frozenset[tuple[str, ...]]:
    """Tables that say of themselves that they are off: the rest of them means nothing."""
    tables = {
        setting.path[:-1]
        for setting in settings
        if setting.path[-1] in ("enabled", "enable")
        and len(setting.path) > 1
        and setting.path[-2] not in _PLACES
        and truth_of(setting.value) is False
    }
    return frozenset(tables)


def _value(name: str, value: Scalar) -> Any:
    """A value of the kind that a field has; None leaves the field open (``auto``, ``null``)."""
    text = str(value).strip().strip("'\"")
    if value == NOT_KNOWN:
        return NOT_KNOWN if name in _WHOLE else None
    if name == "said.recompute" and text.lower() in ("none", "null"):
        return "none"
    if name == "said.recompute_full" and text.lower() in OFFLOADED:
        return True
    if value is None or text.lower() in ("", "none", "null", "auto") or text.startswith("$"):
        return None if name != "said.bf16" or text.lower() != "auto" else "auto"
    if name in _WHOLE or (
        name.startswith("model.") and name not in ("model.gated_mlp", "model.tie_word_embeddings")
    ):
        count = whole_or_none(value)
        if name in _TYPED and ":" in text:  # h100:8
            count = whole_or_none(text.rpartition(":")[2])
        if name == "said.gpus_per_node" and text == "gpu":  # as many as torchrun finds
            return NOT_KNOWN
        return count if count is not None and count > 0 else None
    if name == "layout.sequence_parallel":
        return truth_of(value)
    if name in ("said.zero_stage", "said.dp_shard", "said.dp_shard_of_slices", "said.dp_replicate"):
        return whole_or_none(value)
    return value if isinstance(value, bool | int | float) else text[:500]
