"""Bytes of compressed gradients are those that torch's hook hands over."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from costmodel.ops.compressed import spared_parameters
from costmodel.ops.op import ShardShape
from costmodel.ops.traced import traced_ops
from costmodel.stack import stack
from costmodel.updates.compression import parse_compression
from examples.compressed_gradients import KINDS, RANK, Encoder, predicted_bytes
from executor.tracing.trace import example_inputs, trace_module


def test_factors_of_a_traced_encoder_are_those_of_torch() -> None:
    """The example counts what `powerSGD_hook` sends, and measures it; its layers, without embeddings."""
    layers = Encoder().layers
    table = trace_module(layers, example_inputs("8x32x96"))
    shard = ShardShape(microbatch_size=8, sequence_length=1)
    how = parse_compression(f"powersgd:{RANK}")
    spared = sum(
        count * spared_parameters(traced_ops(kind, stack("torchtitan"), shard), how, experts=False)
        for count, kind in zip(table.counts, table.kinds, strict=True)
    )
    assert 4 * (table.parameters - spared) == predicted_bytes(KINDS[2], layers)
