"""Sequences beyond the positions of a configuration: rotary ones go on, a table of learned ones ends."""

from __future__ import annotations

import pytest

from executor.tracing.of_transformers import _usual
from topology.base.errors import InputError

transformers = pytest.importorskip("transformers")


def test_rotary_positions_go_on_and_a_table_of_them_ends() -> None:
    """Falcon has rotary positions and was trained on 2,048; GPT-2 has a row for each of its positions."""
    falcon = transformers.FalconConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=64
    )
    table = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=128, vocab_size=64)
    goes_on, ends = (transformers.AutoModel.from_config(config) for config in (falcon, table))
    assert _usual(falcon, goes_on, 4096)["input_ids"].endswith("x4096:long")
    with pytest.raises(InputError, match="longer than gpt2 reads"):
        _usual(table, ends, 4096)
