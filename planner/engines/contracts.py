"""Every engine that a plan can be for, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache

import numpy as np

from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.stack import stack, stacks
from planner.engines.accelerate import ACCELERATE
from planner.engines.bridge import BRIDGE
from planner.engines.contract import Contract
from planner.engines.deepspeed import DEEPSPEED
from planner.engines.even_layers import EvenLayers, as_even_as_possible
from planner.engines.limit import switch_limit
from planner.engines.megatron_lm.contract import MEGATRON
from planner.engines.meshplan import MESHPLAN
from planner.engines.torchtitan.contract import TORCHTITAN
from planner.engines.wrappers.colossalai import COLOSSALAI
from planner.engines.wrappers.horovod import HOROVOD
from planner.engines.wrappers.tensorflow import TENSORFLOW
from planner.law import PlanLaw
from planner.plan import FREE, Problem, Recomputes
from topology.base.names import resolve

CONTRACTS: Mapping[str, Contract] = {
    contract.engine: replace(
        contract, limits=(*contract.limits, switch_limit(contract.title, contract.settings))
    )
    for contract in (
        MEGATRON, BRIDGE, TORCHTITAN, ACCELERATE, DEEPSPEED, COLOSSALAI, HOROVOD, TENSORFLOW, MESHPLAN
    )
}  # fmt: skip


def recomputes_of(engine: str) -> Recomputes:
    """How many layers an engine can be told to recompute; each rank its own number in the free space."""
    return "per-rank" if engine == FREE else CONTRACTS[engine].recomputes


def even_layers_of(engine: str) -> EvenLayers:
    """How an engine fills its stages where nobody says how; as evenly as possible in the free space."""
    return as_even_as_possible if engine == FREE else CONTRACTS[engine].even_layers


def engine_of_stack(stack: str) -> str:
    """The engine that a profile prices: the one it is first of, else the first that has it; else none.

    >>> engine_of_stack("megatron-core"), engine_of_stack("ideal")
    ('megatron', 'any')
    """
    first = [name for name, contract in CONTRACTS.items() if contract.stacks[0] == stack]
    others = [name for name, contract in CONTRACTS.items() if stack in contract.stacks]
    return next(iter((*first, *others)), FREE)


TRAINERS: Mapping[str, str] = {
    "mcore": "megatron", "megatron-lm": "megatron", "nemo": "megatron-bridge",
    "transformers": "accelerate", "hf": "accelerate", "huggingface": "accelerate", "axolotl": "accelerate",
    "llama-factory": "accelerate", "llamafactory": "accelerate", "open-r1": "accelerate",
    "fsdp": "accelerate", "zero": "deepspeed",
}  # fmt: skip
"""Programs and methods that people name for an engine: the one that runs their jobs.

Transformers' Trainer, which Axolotl and LLaMA-Factory extend, starts its ranks and shards by Accelerate
(huggingface.co/docs/transformers/trainer). NeMo trains language models by Megatron-Bridge
(docs.nvidia.com/nemo/megatron-bridge).
"""


@cache
def engine_aliases() -> Mapping[str, str]:
    """Other words for an engine: its package, its title, the profiles that price it, and its trainers."""
    profiles = {name: engine_of_stack(name) for each in CONTRACTS.values() for name in each.stacks}
    called = {word: each.engine for each in CONTRACTS.values() for word in (each.package, each.title)}
    return {**TRAINERS, **profiles, **called, **{name: name for name in CONTRACTS}}


def engine_named(name: str) -> str:
    """The engine of a lenient name; ``any`` names the free space.

    >>> engine_named("megatron-core"), engine_named("trl"), engine_named("Megatron-LM")
    ('megatron', 'accelerate', 'megatron')

    Raises:
        InputError: no engine here is called so.
    """
    return resolve(name, (*CONTRACTS, FREE), "engine", engine_aliases())


def engine_or_preset(name: str) -> str:
    """The engine of a name, or the preset whose whole name it is.

    >>> engine_or_preset("megatron"), engine_or_preset("megatron-core"), engine_or_preset("axolotl")
    ('megatron', 'megatron-core', 'accelerate')
    """
    presets = {each for each in stacks() if each not in CONTRACTS}
    return resolve(
        name, (*CONTRACTS, *presets), "engine", {**engine_aliases(), **{each: each for each in presets}}
    )


MOST_NAMED = 2
"""Engines that a refusal names."""


def takes(contract: Contract, s: Problem, x: ParallelLayout, fixed: Collection[str]) -> bool:
    """Whether an engine, priced by a profile of its own, could be told a question.

    Args:
        contract: the engine.
        s: what is asked; its own profile counts where it is one of the engine's.
        x: a layout.
        fixed: fields of it that stay as they are; limits that read others can be kept by changing those.
    """
    problem = s if s.stack.name in contract.stacks else s.of(stack=stack(contract.stacks[0]))
    row = LayoutTable.from_rows([x])
    return not any(
        np.any(law.broken(problem, row)) for law in contract.limits if set(law.reads) <= set(fixed)
    )


def fixed_fields(s: Problem, x: ParallelLayout) -> frozenset[str]:
    """The fields that a layout says: all of one that fills the cluster, else what is not the default."""
    names = [field.name for field in fields(x)]
    if x.num_gpus == s.cluster.num_gpus:
        return frozenset(names)
    return frozenset(name for name in names if getattr(x, name) != getattr(ParallelLayout(), name))


def engines_taking(names: Sequence[str], s: Problem, x: ParallelLayout, fixed: Collection[str]) -> str:
    """Of some engines the first that take a question, as they are asked for; "" where none does."""
    takers = [f"--for {name}" for name in names if takes(CONTRACTS[name], s, x, fixed)]
    return " or ".join(takers[:MOST_NAMED])


def way_out(law: PlanLaw, s: Problem, x: ParallelLayout, fixed: Collection[str]) -> str:
    """What helps with a broken limit: another engine, of those that really take the question, or a change."""
    hint = law.says(s, x)[1]
    engines = engines_taking(law.others, s, x, fixed)
    if not engines:
        return hint
    why = f", {law.others_why}," if law.others_why else ""
    return f"use {engines}{why} or {hint}"
