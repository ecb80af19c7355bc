"""Where the members of groups sit, against ranks laid out one by one."""

import itertools
import math

import numpy as np
import pytest

from costmodel.layout import AXIS_ORDERS, LayoutTable, ParallelLayout
from costmodel.training.rank_strides import axis_strides

NODE = 8
SIZES = [(2, 2, 4, 4), (1, 2, 4, 4), (2, 1, 8, 2), (4, 2, 2, 4), (2, 4, 1, 8), (1, 1, 8, 2)]


def members_in_first_node(layout: ParallelLayout, axes: tuple[str, ...], start: int, size: int) -> int:
    """Members in GPU 0's node of the first group of `size` ranks over these axes, `start` apart in their block.

    Ranks of the block are numbered with the fastest axis first, whatever axis lies between on the GPUs.
    """
    strides, stride = {}, 1
    for axis in reversed(layout.axis_order):
        strides[axis], stride = stride, stride * getattr(layout, axis)
    block = [axis for axis in layout.axis_order if axis in axes]
    places = [
        sum(index * strides[axis] for axis, index in zip(block, indices, strict=True))
        for indices in itertools.product(*(range(getattr(layout, axis)) for axis in block))
    ]
    return sum(place < NODE for place in places[: start * size : start])


@pytest.mark.parametrize("order", AXIS_ORDERS)
@pytest.mark.parametrize(("tp", "cp", "dp", "pp"), SIZES)
def test_a_node_never_seems_to_hold_more_gradient_ranks_than_it_does(order, tp, cp, dp, pp):
    """Ranks of dp and cp together are as dense on the fabric as they are, with any axis between the two."""
    layout = ParallelLayout(tp=tp, cp=cp, dp=dp, pp=pp, axis_order=order)
    stride = int(axis_strides(LayoutTable.from_rows([layout]))["data"][0])
    held = min(dp * cp, max(1, NODE // stride))
    assert held <= members_in_first_node(layout, ("dp", "cp"), 1, dp * cp)


@pytest.mark.parametrize("order", AXIS_ORDERS)
@pytest.mark.parametrize(("tp", "cp", "dp", "pp"), SIZES)
def test_a_node_never_seems_to_hold_more_expert_ranks_than_it_does(order, tp, cp, dp, pp):
    """Expert groups over dp·cp·tp are as dense on the fabric as their ranks, also with pp between those axes."""
    for ep in (2, 4, 8, 16):
        if dp * cp * tp % ep == 0:
            layout = ParallelLayout(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, axis_order=order)
            strides = axis_strides(LayoutTable.from_rows([layout]))
            for name, start, size in (("ep", 1, ep), ("expert_data", ep, layout.expert_dp)):
                held = min(size, max(1, NODE // int(strides[name][0])))
                assert held <= members_in_first_node(layout, ("dp", "cp", "tp"), start, size)


def test_an_axis_between_two_spreads_their_group():
    """With tp between cp and dp a node holds two of the ranks that share a shard, not eight."""
    layout = ParallelLayout(tp=4, cp=2, dp=64, axis_order=("pp", "dp", "tp", "cp"))
    assert int(axis_strides(LayoutTable.from_rows([layout]))["data"][0]) == 4


def test_neighbours_keep_their_distance_in_the_default_order():
    """With pp slowest the block is contiguous: nothing but the degrees sets a distance."""
    layout = ParallelLayout(tp=2, cp=4, dp=8, pp=4, ep=4, expert_tp=2)
    strides = {name: int(stride[0]) for name, stride in axis_strides(LayoutTable.from_rows([layout])).items()}
    assert strides == {
        "tp": 1, "cp": 2, "dp": 8, "pp": 64, "data": 2, "expert_tp": 1, "ep": 2, "expert_data": 8,
    }  # fmt: skip
    assert math.prod((2, 4, 8)) == strides["pp"]
    assert np.all(np.array(list(strides.values())) >= 1)
