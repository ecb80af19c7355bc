"""Every engine that a plan can be for, by name."""

from __future__ import annotations

from collections.abc import Mapping

from planner.engines.accelerate import ACCELERATE
from planner.engines.bridge import BRIDGE
from planner.engines.contract import Contract
from planner.engines.deepspeed import DEEPSPEED
from planner.engines.megatron_lm.contract import MEGATRON
from planner.engines.own import OWN
from planner.engines.torchtitan.contract import TORCHTITAN
from planner.engines.wrappers.colossalai import COLOSSALAI
from planner.engines.wrappers.horovod import HOROVOD
from planner.engines.wrappers.tensorflow import TENSORFLOW
from planner.plan import FREE, Recomputes

CONTRACTS: Mapping[str, Contract] = {
    contract.engine: contract
    for contract in (
        MEGATRON, BRIDGE, TORCHTITAN, ACCELERATE, DEEPSPEED, COLOSSALAI, HOROVOD, TENSORFLOW, OWN
    )
}  # fmt: skip


def recomputes_of(engine: str) -> Recomputes:
    """How many layers an engine can be told to recompute; each rank its own number in the free space."""
    return "per-rank" if engine == FREE else CONTRACTS[engine].recomputes


def engine_of_stack(stack: str) -> str:
    """The engine that a profile prices: the one it is first of, else the first that has it; else none.

    >>> engine_of_stack("megatron-core"), engine_of_stack("ideal")
    ('megatron', 'any')
    """
    first = [name for name, contract in CONTRACTS.items() if contract.stacks[0] == stack]
    others = [name for name, contract in CONTRACTS.items() if stack in contract.stacks]
    return next(iter((*first, *others)), FREE)
