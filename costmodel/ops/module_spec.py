"""A traced module as a model that can be planned: one sample is its sequence, heads may be divided."""

from __future__ import annotations

from costmodel.models.spec import ModelSpec
from costmodel.models.traced import TracedModule

HALF_BYTES = 2  # bf16, in which a module is traced
FULL_HEAD = 128  # head size at which matrix units are filled, where a module has no attention


def spec_of_module(module: TracedModule) -> ModelSpec:
    """The model whose blocks are those of a trace; messages between stages are the largest of any cut.

    Its sequence has length 1, so that a job counts samples; its heads are the units that tensor parallelism
    divides, its vocabulary the classes, or as many as there are units.
    """
    attention = [op.head_dim for kind in module.kinds for op in kind.ops if op.kind == "attention"]
    return ModelSpec(
        name=module.builder,
        num_layers=sum(module.counts),
        hidden_size=max(1, round(module.largest_input_bytes / HALF_BYTES)),
        intermediate_size=1,
        num_attention_heads=module.units,
        num_key_value_heads=module.units,
        head_dim=round(attention[0]) if attention else FULL_HEAD,
        vocab_size=module.classes or module.units,
        max_sequence_length=1,
        unmodelled=("a traced module",),
        module=module,
        source=f"traced with inputs {', '.join(module.inputs)}",
    )
