"""What a serving question says of adapters: their kind, and how many of them are held at once."""

from __future__ import annotations

from typing import Any

from costmodel.models.spec import ModelSpec
from costmodel.serving.adapters import refuse_adapters
from costmodel.serving.engine import serving_stack
from costmodel.updates.adapters import parse_adapter
from planner.questions.flags import ServeFlags
from topology.base.counts import parse_count
from topology.base.errors import InputError

MOST_ADAPTERS = 1024
"""Slots of a batch; S-LoRA (arXiv 2311.03285) serves thousands, a few hundred of them at once."""


def served_adapters(flags: ServeFlags, model: ModelSpec) -> dict[str, Any]:
    """The fields of a job that say which adapters requests name; none where no question is asked of them.

    Raises:
        InputError: a number of adapters of no kind, or a kind that is not priced or not served.
    """
    if not flags.adapter:
        if flags.adapters:
            raise InputError(
                what="adapters need a kind",
                cause=f"--adapters {flags.adapters}, and --adapter is missing",
                fix="add for example --adapter lora:r=16",
            )
        return {}
    adapter = parse_adapter(flags.adapter)
    refuse_adapters(model, serving_stack(flags.engine or "vllm"), adapter)
    count = parse_count(flags.adapters or "1", "--adapters", largest=MOST_ADAPTERS)
    return {"adapter": adapter, "adapters": count}
