"""Adapters that a server is started with: rank and slots of its buffers, and adapters that files name.

An engine keeps buffers for the adapters of one batch, all of one rank; an adapter of a larger rank is
refused, and requests of more adapters than slots wait for each other (vLLM 0.33, `LoRAConfig`, where the
rank is 16 and one slot is had unless told; SGLang 0.5.23, `max_loras_per_batch` 8).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from costmodel.models.spec import ModelSpec
from costmodel.serving.adapters import refuse_adapters
from costmodel.serving.engine import ServingStack
from costmodel.updates.adapters import Adapter
from planner.audit.read import Reading
from planner.formats.settings import whole_or_none
from topology.base.errors import InputError

USUAL_RANK = 16
USUAL_SLOTS = {"vllm": 1, "sglang": 8}
_SLOTS = {"vllm": "--max-loras", "sglang": "--max-loras-per-batch"}
_MODULES = ("lora_modules", "lora_paths")
_CONFIG = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAdapters:
    """Adapters of a server.

    Attributes:
        adapter: What its buffers hold one of.
        slots: Adapters of one batch.
        named: Adapters that files name; 0 where none does.
        ranks: Of those whose configuration is among the files.
        unpriced: Why they are not priced; "" where they are.
    """

    adapter: Adapter
    slots: int
    named: int = 0
    ranks: tuple[int, ...] = ()
    unpriced: str = ""


def adapters_of(reading: Reading, model: ModelSpec, stack: ServingStack) -> ServedAdapters | None:
    """The adapters of a server; None where it serves none."""
    facts, names = reading.facts, ("said.lora", "said.lora_modules")
    on = facts.truth("said.lora") or (stack.name == "sglang" and "said.lora_modules" in facts.by_field)
    if not on or not any(name in facts.by_field for name in names):
        return None
    modules = [
        value
        for setting in reading.settings
        if setting.path[-1].replace("-", "_") in _MODULES
        for value in (str(setting.value), *setting.more)
    ]
    ranks = tuple(
        rank
        for setting in reading.settings
        if setting.path == ("r",)
        and setting.file.endswith(_CONFIG)
        and (rank := whole_or_none(setting.value))
    )
    stated = facts.count("said.max_lora_rank")
    rank = stated or (USUAL_RANK if stack.name == "vllm" else max(ranks, default=USUAL_RANK))
    adapter, unpriced = Adapter(rank=rank), ""
    try:
        refuse_adapters(model, stack, adapter)
    except InputError as impossible:
        unpriced = f"{impossible.what} ({impossible.cause})"
    return ServedAdapters(
        adapter=adapter,
        slots=facts.count("said.max_loras") or USUAL_SLOTS.get(stack.name, 1),
        named=len(modules),
        ranks=ranks,
        unpriced=unpriced,
    )


def broken_ranks(served: ServedAdapters | None, stack: ServingStack) -> Iterator[tuple[str, str]]:
    """Ranks that the engine refuses, and what helps."""
    if served is None or stack.name != "vllm":
        return
    rank, known = served.adapter.rank, stack.adapter_ranks
    more = [each for each in known if each >= max(served.ranks, default=rank)]
    if rank not in known:
        yield (
            f"--max-lora-rank {rank} is none of {', '.join(map(str, known))}",
            f"give {more[0] if more else known[-1]}",
        )
    if served.ranks and max(served.ranks) > rank:
        fix = f"give --max-lora-rank {more[0]}" if more else "serve an adapter of a smaller rank"
        yield f"an adapter has rank {max(served.ranks)}, more than --max-lora-rank {rank}", fix


def waiting_adapters(served: ServedAdapters | None, engine: str) -> Iterator[tuple[str, str]]:
    """More adapters than slots, whose requests take turns; adapters that are not priced."""
    if served is None:
        return
    if served.named > served.slots:
        slots = "one runs at a time" if served.slots == 1 else f"{served.slots} run at once"
        flag = _SLOTS.get(engine, "slots")
        yield (
            f"{served.named} adapters are named and {slots}: requests of the others wait, not priced",
            (f"give {flag} {served.named}"),
        )
    if served.unpriced:
        yield f"the adapters are not in these figures: {served.unpriced}", "measure them"
