"""What the contract of an engine reads from files, and what it would have them say instead.

Where the engine of a job has a contract (`planner.engines.contracts`), stages, recomputed layers and switches
are read by it, and changes are what it writes of one job and not of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec, layer_order, layer_runs
from costmodel.pipeline.even_split import even_split
from costmodel.pipeline.stage_costs import StageSplit
from costmodel.pipeline.stages import layers_of_chunks, ranks_of_chunks
from costmodel.stack import SoftwareStack
from planner.audit.read import Reading
from planner.engines.contract import Contract, read, write
from planner.engines.contract import Reading as Told
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import layout_facts, model_facts, stack_facts, told_model, told_stack
from planner.engines.megatron_lm.stages import RECOMPUTED_HOW
from planner.engines.refusal import Refused
from planner.engines.setting import Setting as EngineSetting
from planner.formats.settings import NOT_KNOWN, Setting
from planner.plan import PlanRequest
from planner.problem import Setting as Question
from planner.problem import setting_of, split_of
from topology.base.errors import InputError

_WHOLE = ("Megatron-LM",)
"""Families whose files state everything that is not the engine's default."""
Words = Mapping[str, Any]
"""Values by word of an engine."""


def told_of(reading: Reading, request: PlanRequest) -> Told | None:
    """What the contract of the job's engine reads; None where it has none or files are another's."""
    contract = contract_of(reading)
    if contract is None or request.stack not in contract.stacks:
        return None
    told = read(contract, words_of(reading, contract), request.cluster.num_gpus)
    whole = reading.family.name in _WHOLE  # of others a file says only what differs from a recipe
    return told if whole else replace(told, assumed={})


def model_told(reading: Reading, model: ModelSpec) -> ModelSpec:
    """A model of stated sizes as the engine would build it: its norm, activation, positions and biases."""
    contract = contract_of(reading)
    if contract is None or reading.family.name not in _WHOLE:
        return model
    found = read(contract, words_of(reading, contract)).fields
    try:
        return told_model(model, {name: said for name, said in found.items() if name.startswith("model.")})
    except (InputError, TypeError, ValueError):
        return model


def told_modules(reading: Reading) -> tuple[str, ...]:
    """Modules of a layer that files have recomputed."""
    contract = contract_of(reading)
    if contract is None:
        return ()
    return tuple(read(contract, words_of(reading, contract)).fields.get("recipe.recompute_modules", ()))


def contract_of(reading: Reading) -> Contract | None:
    """The contract of the engine whose files these are."""
    return CONTRACTS.get(reading.family.engine)


def splits_sequences(reading: Reading) -> bool:
    """Whether the engine splits sequences with tensors where files do not say."""
    contract = contract_of(reading)
    if contract is None:
        return False
    return bool(read(contract, words_of(reading, contract)).fields.get("layout.sequence_parallel"))


def add_chunks(reading: Reading) -> None:
    """Chunks of a rank that only a string of stages states."""
    contract = contract_of(reading)
    if contract is None or "said.stage_layout" not in reading.facts.found:
        return
    chunks = read(contract, words_of(reading, contract)).stated.get("layout.virtual_stages")
    if isinstance(chunks, int) and chunks > 1:
        reading.facts.take("layout.virtual_stages", chunks, "said.stage_layout")
        reading.facts.take("layout.schedule", "interleaved", "said.stage_layout")


def words_of(reading: Reading, contract: Contract) -> dict[str, Any]:
    """The settings of files as words of a contract; those it does not know are left out."""
    known = contract.spellings
    return {
        name: [setting.value, *setting.more] if known[name].kind == "list" and setting.more else setting.value
        for name, setting in _spelled(reading.settings, contract).items()
        if setting.value != NOT_KNOWN
    }


def _spelled(settings: Iterable[Setting], contract: Contract) -> dict[str, Setting]:
    """Settings by the words of a contract that they are, the first of each."""
    known = contract.spellings
    found: dict[str, Setting] = {}
    for setting in settings:
        names = (f"--{setting.path[-1].replace('_', '-')}", ".".join(setting.path), setting.name)
        name = next((name for name in names if name in known), None)
        before = None if name is None else found.get(name)
        if name is not None and setting.value is not None and (before is None or before.value == NOT_KNOWN):
            found[name] = setting
    return found


def refused_by(reading: Reading) -> Iterator[tuple[Refused, Setting | None]]:
    """What the engine stops at, and where that stands; of files that say all that differs from its defaults.

    Of those that leave the model to another file, only what has every word. A log is of a job that started.
    """
    contract = contract_of(reading)
    if contract is None or reading.family.name not in _WHOLE:
        return
    told = tuple(setting for setting in reading.settings if reading.kinds.get(setting.file) != "log")
    spelled = _spelled(told, contract)
    hidden = {name for name, setting in spelled.items() if setting.value == NOT_KNOWN}
    words = words_of(replace(reading, settings=told), contract)
    if not states_all(reading, contract):
        hidden |= contract.words.keys() - {contract.spellings[name].name for name in words}
    for one in read(contract, words, reading.facts.count("cluster.num_gpus"), hidden).refused:
        yield one, next((spelled[word] for word in one.words if spelled[word].line), None)


def unpriced_by(reading: Reading) -> tuple[str, ...]:
    """Words of the engine that are given and that nothing prices, with what they do."""
    contract = contract_of(reading)
    return () if contract is None else read(contract, words_of(reading, contract)).unpriced


def states_all(reading: Reading, contract: Contract) -> bool:
    """Whether files state everything that is not the engine's default, the model too."""
    stated = {contract.spellings[name].name for name in words_of(reading, contract)}
    return reading.family.name in _WHOLE and stated.issuperset(contract.sizes)


def own_names(reading: Reading) -> dict[str, str]:
    """How the files spell the words of their engine."""
    contract = contract_of(reading)
    if contract is None:
        return {}
    known = contract.spellings
    return {known[name].name: setting.name for name, setting in _spelled(reading.settings, contract).items()}


def stack_told(stack: SoftwareStack, told: Told | None) -> SoftwareStack:
    """A profile with the mechanisms that files switch off."""
    return stack if told is None else told_stack(stack, {**told.assumed, **told.stated})


def setting_told(reading: Reading, request: PlanRequest) -> Question:
    """What layouts of the job are judged against: the profile has only what the files switch on."""
    setting = setting_of(request)
    return replace(setting, stack=stack_told(setting.stack, told_of(reading, request)))


def switched_off(stack: SoftwareStack, told: Told | None) -> tuple[str, ...]:
    """Mechanisms that the profile has and the files do not switch on."""
    if told is None:
        return ()
    usual = stack_facts(stack)
    return tuple(name for name, value in told.fields.items() if value is False and usual.get(name))


def split_told(request: PlanRequest, layout: ParallelLayout, told: Told | None) -> StageSplit:
    """Layers and recomputed layers of every rank: as files say, else even."""
    even = even_split([run.count for run in layer_runs(request.model)], layout, layer_order(request.model))
    if told is None:
        return even
    layers, again = told.stated.get("split.layers"), told.stated.get("split.recompute")
    try:
        split = (
            even
            if layers is None
            else split_of(request.model, layout, tuple(layers), even.recompute_of_stage)
        )
        held = tuple(sum(row) for row in split.layers_of_stage)
        whole = held if layout.recompute == "full" else (0,) * len(held)
        if again is not None and len(again) == len(held):
            whole = tuple(map(min, again, whole))
        return replace(split, recompute_of_stage=whole)
    except (InputError, ValueError, IndexError, TypeError):
        return even


def facts_of_job(
    request: PlanRequest, layout: ParallelLayout, split: StageSplit, stack: SoftwareStack
) -> dict[str, Any]:
    """Everything that a job says, by field."""
    held = tuple(sum(row) for row in split.layers_of_stage)
    return {
        "cluster.num_gpus": layout.num_gpus,
        "cluster.gpu": request.cluster.nodes[0].gpu,
        **layout_facts(layout),
        "split.layers": layers_of_chunks(ranks_of_chunks(layout), held),
        "split.recompute": tuple(split.recompute_of_stage),
        **{f"job.{field.name}": getattr(request.job, field.name) for field in fields(request.job)},
        **model_facts(request.model),
        **stack_facts(stack),
    }


def words_between(
    reading: Reading, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Words, tuple[str, ...]] | None:
    """Words to write so that a job becomes another, and words to take away; None where no contract says."""
    contract = contract_of(reading)
    if contract is None:
        return None
    found = read(contract, words_of(reading, contract)).fields
    now = {**before, **{name: said for name, said in found.items() if name == RECOMPUTED_HOW}}
    try:
        old, new = write(contract, now), write(contract, after)
    except (InputError, ValueError, KeyError, IndexError, TypeError, StopIteration):
        return None
    sizes = {word.name for setting in contract.settings if _of_model(setting) for word in setting.words}
    said = {name: value for name, value in new.items() if old.get(name) != value and name not in sizes}
    stated = own_names(reading)
    return said, tuple(name for name in old if name not in new and name not in sizes and name in stated)


def _of_model(setting: EngineSetting) -> bool:
    """Whether a setting states sizes of the model alone, which no change touches."""
    return all(name.startswith("model.") for name in setting.fields)
