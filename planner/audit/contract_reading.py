"""What the contract of an engine reads from files, and what it would have them say instead.

Where the engine of a job has a contract (`planner.engines.contracts`), stages, recomputed layers and switches
are read by it, and changes are what it writes of one job and not of the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from costmodel.kernels.tables import load_calibration
from costmodel.layout import INTERLEAVED_SCHEDULE, ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.pipeline.stages import ranks_of_chunks
from costmodel.stack import SoftwareStack
from planner.audit.contract_words import (
    contract_of_family,
    contract_words,
    hidden_words,
    spelled_settings,
)
from planner.audit.launch import UNTOLD
from planner.audit.read import Reading
from planner.audit.trainer_switches import fields_of_files
from planner.engines.contract import Contract, EngineReading, read, write
from planner.engines.contracts import even_layers_of
from planner.engines.even_layers import as_even_as_possible
from planner.engines.fields import (
    is_numeric,
    layout_facts,
    model_facts,
    model_with,
    stack_facts,
    stack_with,
)
from planner.engines.megatron_lm.stages import RECOMPUTED_HOW
from planner.engines.setting import EngineSetting
from planner.formats.settings import Setting
from planner.law import Violation
from planner.plan import PlanRequest, Problem, problem_of, stack_of
from planner.pricing import split_of
from topology.base.errors import InputError

PADDED = "model.vocab_size"
"""A size that follows from tp: rows that fill it up are no token's."""
Words = Mapping[str, Any]
"""Values by word of an engine."""
_POSITIONS = ("--max-position-embeddings",)
"""What a file says of a model beside what a release says of it."""


def contract_of(reading: Reading) -> Contract | None:
    """The contract of the engine whose files these are."""
    return contract_of_family(reading.family)


def is_whole(reading: Reading) -> bool:
    """Whether files state everything that is not the default of their engine: no recipe fills the rest."""
    return contract_of(reading) is not None and not reading.family.recipes and not is_of_sentences(reading)


def is_of_sentences(reading: Reading) -> bool:
    """Whether nothing is known of a job but what a log says of it: no argument, command or file."""
    return set(reading.kinds.values()) == {"log"} and not reading.settings


def has_untold_words(reading: Reading) -> bool:
    """Whether the command has words that only a run knows: any setting could be among them."""
    return any(setting.name == UNTOLD for setting in reading.settings)


def engine_reading_of(
    reading: Reading, model: ModelSpec | None = None, num_gpus: int | None = None
) -> EngineReading | None:
    """What the contract of the files' engine reads; None where it has none.

    Args:
        reading: What the files say.
        model: What is trained, where files leave that out or it was asked for.
        num_gpus: GPUs that the job is started on, where known.
    """
    contract = contract_of(reading)
    if contract is None:
        return None
    return read(contract, words_of(reading, contract, model), num_gpus)


def profile_reading_of(reading: Reading, request: PlanRequest) -> EngineReading | None:
    """What files say of a job's profile; None where they are another engine's than the profile's.

    The contract of their engine reads it, `planner.audit.trainer_switches` what no contract has.
    """
    fields = fields_of_files(reading, stack_of(request))
    contract = contract_of(reading)
    if contract is None:
        return EngineReading(stated=fields, assumed={}, words_of={}) if fields else None
    if request.stack not in contract.stacks:
        return None
    parsed = engine_reading_of(reading, request.model, request.cluster.num_gpus)
    if parsed is None:
        return None
    assumed = parsed.assumed if is_whole(reading) else {}
    return replace(parsed, assumed=assumed, stated={**fields, **parsed.stated})


def model_as_built(reading: Reading, model: ModelSpec) -> ModelSpec:
    """A model of stated sizes as the engine would build it: its norm, activation, positions and biases."""
    contract = contract_of(reading)
    if contract is None or not is_whole(reading) or not contract.sizes:
        return model
    facts = read(contract, words_of(reading, contract)).fields
    try:
        return model_with(model, {name: value for name, value in facts.items() if name.startswith("model.")})
    except (InputError, TypeError, ValueError):
        return model


def recomputed_modules_of(reading: Reading) -> tuple[str, ...]:
    """Modules of a layer that files have recomputed."""
    parsed = engine_reading_of(reading)
    return () if parsed is None else tuple(parsed.fields.get("recipe.recompute_modules", ()))


def add_chunks(reading: Reading) -> None:
    """Chunks of a rank that only a string of stages states."""
    contract = contract_of(reading)
    if contract is None or "said.stage_layout" not in reading.facts.by_field:
        return
    chunks = read(contract, words_of(reading, contract)).stated.get("layout.virtual_stages")
    if isinstance(chunks, int) and chunks > 1:
        reading.facts.take("layout.virtual_stages", chunks, "said.stage_layout")
        reading.facts.take("layout.schedule", INTERLEAVED_SCHEDULE, "said.stage_layout")


def words_of(reading: Reading, contract: Contract, model: ModelSpec | None = None) -> dict[str, Any]:
    """The settings of files as words of a contract; those it does not know are left out.

    Args:
        reading: What the files say.
        contract: Of their engine.
        model: What is trained, in words that take the place of the files' where those do not state its sizes.
    """
    words = contract_words(reading.settings, contract)
    given = {contract.spellings[name].name for name in spelled_settings(reading.settings, contract)}
    words |= {name: value for name, value in reading.family.sets.items() if name not in given}
    if model is None or states_all(reading, contract):
        return words
    return {**model_words(contract, model), **words}


def model_words(contract: Contract, model: ModelSpec) -> dict[str, Any]:
    """A model in the words of a contract; none of how many positions its release was trained on."""
    facts = {**layout_facts(ParallelLayout()), **model_facts(model)}
    words: dict[str, Any] = {}
    for setting in contract.settings:
        if setting.words and _of_model(setting):
            words.update(setting.write(facts))
    return {name: value for name, value in words.items() if name not in _POSITIONS}


def refused_by(
    reading: Reading, model: ModelSpec | None = None
) -> Iterator[tuple[Violation, Setting | None]]:
    """What the engine stops at, and where that stands; of files that say all that differs from its defaults.

    Of those that leave the model to another file, only what has every word, or the model that was named. A
    log is of a job that started.
    """
    contract = contract_of(reading)
    if contract is None or not is_whole(reading):
        return
    stated = tuple(setting for setting in reading.settings if reading.kinds.get(setting.file) != "log")
    spelled = spelled_settings(stated, contract)
    hidden = hidden_words(stated, contract)
    shown = replace(reading, settings=stated)
    words = words_of(shown, contract, model)
    if model is None and not states_all(reading, contract):
        hidden |= contract.words.keys() - {contract.spellings[name].name for name in words}
    for refusal in read(contract, words, reading.facts.count("cluster.num_gpus"), hidden).refused:
        yield (
            refusal.violation,
            next((spelled[word] for word in refusal.words if word in spelled and spelled[word].line), None),
        )


def unpriced_by(reading: Reading) -> tuple[str, ...]:
    """Words of the engine that are given and that nothing prices, with what they do."""
    parsed = engine_reading_of(reading)
    return () if parsed is None else parsed.unpriced


def states_all(reading: Reading, contract: Contract) -> bool:
    """Whether files state everything that is not the engine's default, the model too."""
    stated = {contract.spellings[name].name for name in contract_words(reading.settings, contract)}
    return is_whole(reading) and bool(contract.sizes) and stated.issuperset(contract.sizes)


def file_spellings(reading: Reading) -> dict[str, str]:
    """How the files spell the words of their engine."""
    contract = contract_of(reading)
    if contract is None:
        return {}
    known = contract.spellings
    spelled = spelled_settings(reading.settings, contract)
    return {known[name].name: setting.name for name, setting in spelled.items()}


def stack_as_run(stack: SoftwareStack, parsed: EngineReading | None, layout: ParallelLayout) -> SoftwareStack:
    """A profile with the mechanisms that files switch off.

    Messages of tensor parallelism hide under products where sequences are split with them: Megatron-LM
    refuses ``--tp-comm-overlap`` otherwise, Megatron-Bridge switches it off (``comm_overlap.py``), so a file
    that asks for neither has neither.
    """
    fields = {} if parsed is None else {**parsed.assumed, **parsed.stated}
    if layout.tp > 1 and not layout.sequence_parallel and (parsed is None or _OVERLAP not in parsed.stated):
        fields[_OVERLAP] = False
    return stack_with(stack, fields) if fields else stack


_OVERLAP = "stack.tp_overlap_share"


def problem_as_asked(request: PlanRequest) -> Problem:
    """What layouts of a request are judged against, by rules: they read nothing of a calibration."""
    return problem_of(request, load_calibration())


def problem_as_run(reading: Reading, request: PlanRequest, layout: ParallelLayout) -> Problem:
    """What a layout of the job is judged against: the profile has only what the files switch on."""
    problem = problem_as_asked(request)
    return problem.of(stack=stack_as_run(problem.stack, profile_reading_of(reading, request), layout))


def mechanisms_off(stack: SoftwareStack, parsed: EngineReading | None) -> tuple[str, ...]:
    """Mechanisms that the profile has and the files do not switch on."""
    if parsed is None:
        return ()
    usual = stack_facts(stack)
    return tuple(name for name, value in parsed.fields.items() if value is False and usual.get(name))


def split_as_run(request: PlanRequest, layout: ParallelLayout, parsed: EngineReading | None) -> StageSplit:
    """Layers and recomputed layers of every rank: as files say, else as the engine fills its stages.

    Where it makes none of so many layers, which a finding says, they are as even as possible.
    """
    number, modules = request.model.num_layers, request.job.mtp_layers
    filled = even_layers_of(request.engine)(number, layout, modules)
    usual = filled or as_even_as_possible(number, layout, modules)
    even = split_of(request.model, layout, usual, (0,) * layout.pp)
    if layout.recompute == "full":
        even = replace(even, recompute_of_stage=even.layers_of_rank)
    if parsed is None:
        return even
    layers, recomputed = (
        parsed.stated.get("split.layers"),
        parsed.stated.get("split.recompute"),
    )
    try:
        split = (
            even
            if layers is None
            else split_of(request.model, layout, tuple(layers), even.recompute_of_stage)
        )
        held = tuple(sum(row) for row in split.layers_of_stage)
        whole = held if layout.recompute == "full" else (0,) * len(held)
        if recomputed is not None and len(recomputed) == len(held):
            whole = tuple(map(min, recomputed, whole))
        return replace(split, recompute_of_stage=whole)
    except (InputError, ValueError, IndexError, TypeError):
        return even


def facts_of_job(
    request: PlanRequest, layout: ParallelLayout, split: StageSplit, stack: SoftwareStack
) -> dict[str, Any]:
    """Everything that a job says, by field."""
    return {
        "cluster.num_gpus": layout.num_gpus,
        "cluster.gpu": request.cluster.nodes[0].gpu,
        **layout_facts(layout),
        "split.layers": split.chunk_layers(ranks_of_chunks(layout)),
        "split.recompute": tuple(split.recompute_of_stage),
        **{f"job.{field.name}": getattr(request.job, field.name) for field in fields(request.job)},
        **model_facts(request.model.with_positions(request.job.sequence_length)),
        **stack_facts(stack),
    }


def words_between(
    reading: Reading, before: Mapping[str, Any], after: Mapping[str, Any], *, keeps_numerics: bool = True
) -> tuple[Words, tuple[str, ...]] | None:
    """Words to write so that a job becomes another, and words to take away; None where no contract says.

    What is trained stays: model, batch, formats, optimizer and dropout of the job are those of the files.
    Words that the engine would read as another job than that are none.

    Args:
        reading: The files.
        before: The job as they have it, by field.
        after: The other one.
        keeps_numerics: False where a rule asks for another format.
    """
    contract = contract_of(reading)
    if contract is None:
        return None
    given = words_of(reading, contract)
    facts = read(contract, given).fields
    now = {**before, **{name: value for name, value in facts.items() if name == RECOMPUTED_HOW}}
    kept = {name: value for name, value in now.items() if is_numeric(name)} if keeps_numerics else {}
    try:
        old, new = write(contract, now), write(contract, {**after, **kept})
    except (InputError, ValueError, KeyError, IndexError, TypeError, StopIteration):
        return None
    sizes = {word.name for setting in contract.settings if _of_model(setting) for word in setting.words}
    changed = {name: value for name, value in new.items() if old.get(name) != value and name not in sizes}
    stated = file_spellings(reading)
    if _replicated(before) != _replicated(after):  # or the batch of files that do not state it is another
        batch = {
            word.name
            for setting in contract.settings
            if "job.global_batch_size" in setting.fields
            for word in setting.words
        }
        changed |= {name: value for name, value in new.items() if name in batch and name not in stated}
    gone = tuple(name for name in old if name not in new and name not in sizes and name in stated)
    if after["layout.pp"] == 1:
        gone += tuple(name for name in _of_stages(contract) if name in stated and name not in {*new, *gone})
    gone += tuple(name for name in _in_the_way(contract, given, changed, gone) if name not in sizes)
    held = file_spellings(replace(reading, settings=tuple(each for each in reading.settings if each.file)))
    gone = tuple(name for name in gone if name in held)  # nobody takes away a word that no file has
    if keeps_numerics and _trains_otherwise(contract, given, changed, gone):
        return {}, ()
    return changed, gone


_STAGES = frozenset(("split.layers", "layout.virtual_stages", "layout.schedule"))
"""What only a pipeline has."""


def _of_stages(contract: Contract) -> tuple[str, ...]:
    """Words that say how layers are split among stages: without a pipeline an engine may build some alone."""
    settings = (
        setting for setting in contract.settings if setting.fields and _STAGES.issuperset(setting.fields)
    )
    return tuple(dict.fromkeys(word.name for setting in settings for word in setting.words))


def _replicated(facts: Mapping[str, Any]) -> int:
    """Sequences that all replicas take at once."""
    return int(facts["layout.dp"] * facts["layout.microbatch_size"])


def _in_the_way(contract: Contract, given: Words, changed: Words, gone: Collection[str]) -> tuple[str, ...]:
    """Words of the files beside which the engine would refuse the new ones, where it refuses nothing now."""
    was, will = read(contract, given), read(contract, _given_with(contract, given, changed, gone))
    refused = {word for each in will.refused if each not in was.refused for word in each.words}
    names = dict.fromkeys(contract.spellings[name].name for name in given)
    return tuple(name for name in names if name in refused and name not in changed)


def _given_with(contract: Contract, given: Words, changed: Words, gone: Collection[str]) -> Words:
    """The words of files with others in their place, and without those that are gone."""
    known = contract.spellings
    left = {name: value for name, value in given.items() if known[name].name not in {*gone, *changed}}
    return {**left, **changed}


def _trains_otherwise(contract: Contract, given: Words, changed_words: Words, gone: tuple[str, ...]) -> bool:
    """Whether an engine that is told these words trains something else than without them, or stops."""
    was, will = read(contract, given), read(contract, _given_with(contract, given, changed_words, gone))
    numeric = {name for name in was.fields if is_numeric(name)} - {PADDED}
    changed = any(was.fields[name] != will.fields.get(name, was.fields[name]) for name in numeric)
    return changed or len(will.wrong) > len(was.wrong) or len(will.refused) > len(was.refused)


def _of_model(setting: EngineSetting) -> bool:
    """Whether a setting states sizes of the model alone, which no change touches."""
    return bool(setting.fields) and all(name.startswith("model.") for name in setting.fields)
