"""How files split a job: what the contract of its engine reads of them, else what their words state.

There is one reader. Where an engine has a contract, a field that its words state is what the contract reads;
where files state everything that differs from the engine's defaults, so is every other field.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from costmodel.layout import INTERLEAVED_SCHEDULE, RECOMPUTES, ParallelLayout
from costmodel.parallel.divisions import RANKS
from costmodel.pipeline.schedules import usual_schedule
from planner.audit.conclusions import BATCH_BY_CLASS
from planner.audit.contract_reading import contract_of, file_spellings, has_untold_words, is_whole
from planner.audit.facts import JobFacts
from planner.audit.read import Reading
from planner.audit.unsettled import Unsettled, leanest_value
from planner.audit.words import FAMILIES
from planner.engines.contract import EngineReading
from planner.formats.settings import truth_of, whole_or_none
from planner.plan import PlanRequest

LARGEST = 10**7
_NAMES = tuple(field.name for field in fields(ParallelLayout) if field.name not in ("cp_kind", "axis_order"))
_COUNTS = ("tp", "pp", "cp", "ep", "expert_tp", "dp", "virtual_stages", "microbatch_size", "shard_degree")
_OF_MEMORY = ("zero_stage", "recompute", "sequence_parallel", "expert_tp")
_RECIPES_SHARD = "a distributed optimizer, as the recipes that such files change have it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """The value of a field, and whether files or the engine's contract settle it."""

    value: Any = None
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLayout:
    """How files split a job.

    Attributes:
        layout: The split; None where its degrees do not divide the GPUs.
        assumed: What was taken for granted.
        unsettled: What of it decides memory and is not known.
    """

    layout: ParallelLayout | None
    assumed: tuple[str, ...] = ()
    unsettled: tuple[Unsettled, ...] = ()


def value_of(reading: Reading, parsed: EngineReading | None, name: str) -> Value:
    """A field by the words of its engine, else by other words, else as the engine has it without a word.

    Args:
        reading: What the files say.
        parsed: What the contract reads of them; None without one.
        name: The canonical field.
    """
    fact = reading.facts.by_field.get(name)
    known = parsed is not None and name in parsed.fields
    if fact is not None and (fact.how == "given" or (fact.word and not _is_of_engine(reading, fact.word))):
        return Value(value=fact.value, settled=True)
    if parsed is not None and is_whole(reading) and name in parsed.stated:
        return Value(value=parsed.stated[name], settled=True)
    if fact is not None and fact.word and is_whole(reading) and not known:
        return Value()  # a word of the engine, which says nothing beside the others
    if fact is not None:
        stated = parsed is not None and name in parsed.stated and fact.how == "stated"
        return Value(value=parsed.stated[name] if parsed and stated else fact.value, settled=True)
    if name in reading.family.usual:
        return Value(value=reading.family.usual[name], settled=True)
    if parsed is None or not known:
        return Value()
    by_family = any(word in reading.family.sets for word in parsed.words_of.get(name, ()))
    settled = by_family or (is_whole(reading) and not _left_to_program(reading, name))
    return Value(value=parsed.fields[name], settled=settled)


def _is_of_engine(reading: Reading, word: str) -> bool:
    """Whether the contract of the files' engine knows a word."""
    return word in file_spellings(reading).values()


def _left_to_program(reading: Reading, name: str) -> bool:
    """Whether a field is decided by what files do not show: the user's own program, or words of a run."""
    contract = contract_of(reading)
    by_program = contract is not None and bool(contract.program) and name == "layout.recompute"
    return by_program or has_untold_words(reading)


def layout_of_files(reading: Reading, parsed: EngineReading | None, request: PlanRequest) -> StatedLayout:
    """How the files split a job; a degree that nobody states is one.

    Args:
        reading: What the files say.
        parsed: What the contract of their engine reads of them, with the job's GPUs and model.
        request: The job.
    """
    assumed: list[str] = []
    values = {
        name: value_of(reading, parsed, f"layout.{name}") for name in (*_NAMES, "cp_kind", "axis_order")
    }
    plain, family = ParallelLayout(), reading.family.name
    parts: dict[str, Any] = {
        name: _typed(name, value.value)
        for name, value in values.items()
        if value.value is not None and _typed(name, value.value) is not None
    }
    others = parts.get("tp", 1) * parts.get("pp", 1) * parts.get("cp", 1)
    gpus = request.cluster.num_gpus
    if RANKS.rest(gpus, others):
        return StatedLayout(layout=None)
    if parts.get("dp", 0) * others != gpus:
        parts["dp"] = gpus // others
    replicas = parts["dp"] * parts.get("cp", 1)
    if not values["zero_stage"].settled and reading.family.recipes and replicas > 1:
        parts["zero_stage"] = 1
        assumed.append(_RECIPES_SHARD)
    if not values["expert_tp"].settled and family == "Megatron-Bridge" and request.model.is_moe:
        parts["expert_tp"] = 1
        assumed.append("an expert on one tensor rank, as the recipes that such files change have it")
    beside_tensors = reading.family.recipes and request.model.is_moe and parts.get("tp", 1) > 1
    if beside_tensors and not values["sequence_parallel"].settled:
        parts["sequence_parallel"] = True
        assumed.append("sequences split with tensors, without which Megatron stops at experts beside them")
    if replicas == 1 and parts.get("zero_stage", 0) > 1:
        parts["zero_stage"] = plain.zero_stage  # gradients and weights have nobody to be shared with
    if not request.model.is_moe:
        parts["expert_tp"] = 1  # what engines print of dense models too
    shard = parts.get("shard_degree")
    if shard is not None and (shard >= replicas or replicas % shard):
        parts["shard_degree"] = None
    _schedule(parts, assumed)
    parts["sequence_parallel"] = parts.get("tp", 1) > 1 and parts.get("sequence_parallel", False)
    layout = replace(plain, **parts)
    unsettled = tuple(
        Unsettled(
            field=f"layout.{name}",
            taken=getattr(layout, name),
            leanest=leanest_value(f"layout.{name}", layout, _stack_of(request)),
            why=_unpriced_policy(reading.facts, name) or f"{_WHAT[name]} is {_decided_by(reading)}",
        )
        for name in (*_OF_MEMORY, *(("microbatch_size",) if family in BATCH_BY_CLASS else ()))
        if not values[name].settled and _matters(name, layout, request)
    )
    return StatedLayout(layout=layout, assumed=tuple(assumed), unsettled=unsettled)


def _decided_by(reading: Reading) -> str:
    """What decides a field that files do not state: the recipe that they change, or nothing that is known."""
    if reading.family.recipes and reading.family.name != FAMILIES[-1].name:
        return "decided by the recipe, which is not shown"
    return f"not stated, and what {reading.family.name} has then is not known"


def _unpriced_policy(facts: JobFacts, name: str) -> str:
    """That files name a policy of recomputation which has no price; empty where they name none."""
    fact = facts.by_field.get("said.recompute") if name == "recompute" else None
    return "" if fact is None else f"{fact.source} is stated, and what it keeps has no price"


_WHAT = {
    "zero_stage": "what replicas share of their state",
    "recompute": "what is recomputed",
    "microbatch_size": "how many samples a device takes",
    "sequence_parallel": "whether sequences are split with tensors",
    "expert_tp": "how many tensor ranks share an expert",
}


def _stack_of(request: PlanRequest) -> Any:
    from costmodel.stack import stack

    return stack(request.stack)


def _matters(name: str, layout: ParallelLayout, request: PlanRequest) -> bool:
    """Whether a field changes the memory of this layout at all."""
    if name == "zero_stage":
        return layout.replicas > 1
    if name == "sequence_parallel":
        return layout.tp > 1
    return name != "expert_tp" or (request.model.is_moe and layout.tp > 1)


def _typed(name: str, value: Any) -> Any:
    """A value of the kind that a field of a layout has; None where it is none of that kind."""
    if name in _COUNTS:
        count = whole_or_none(value)
        return min(count, LARGEST) if count is not None and count > 0 else None
    if name == "zero_stage":
        return whole_or_none(value)
    if name == "sequence_parallel":
        return truth_of(value)
    if name == "recompute":
        return value if value in RECOMPUTES else None
    return value


def _schedule(parts: dict[str, Any], assumed: list[str]) -> None:
    """Chunks of a rank and their schedule, which belong together; none without a pipeline."""
    if parts.get("pp", 1) == 1:
        parts |= {"virtual_stages": 1, "schedule": usual_schedule(1)}
        return
    chunks = parts.get("virtual_stages", 1)
    schedule = parts.get("schedule") or usual_schedule(chunks)
    if schedule == INTERLEAVED_SCHEDULE and chunks == 1:
        chunks = 2
        assumed.append("2 chunks a rank, the least that an interleaved schedule has")
    parts |= {"virtual_stages": chunks, "schedule": schedule}
