"""What ZeRO-3 moves in a GPU's own memory, and how DeepSpeed gathers what it computes again."""

import dataclasses

import pytest

from costmodel.stack import stack, stacks
from costmodel.training.data_parallel import _memory_bytes


def test_buffers_that_are_copied_cost_the_passes_counted() -> None:
    """Gathering 2 bytes: in, on, and copied out; 4 summed: three passes, and read narrow, written wide."""
    assert _memory_bytes(stack("torchtitan")) == (4 * 2, 3 * 4 + 2 + 4)
    assert _memory_bytes(stack("pytorch")) == (4 * 2, 3 * 2 + 2 + 2)
    assert _memory_bytes(stack("megatron-core")) == (2 * 2, 3 * 4)


@pytest.mark.parametrize("name", sorted(stacks()))
def test_copies_never_make_an_exchange_cheaper(name: str) -> None:
    """Every profile moves more with copies than without."""
    one = stack(name)
    with_copies, without = (
        dataclasses.replace(one, timing=dataclasses.replace(one.timing, copies_sharded=copies))
        for copies in (True, False)
    )
    for more, less in zip(_memory_bytes(with_copies), _memory_bytes(without), strict=True):
        assert more > less
