"""The size of a recorded model by the shapes of its products is that of the model that ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.diagnose.model_size import model_size
from planner.traces.kineto import read_kineto
from tests.unit.planner.traces.micro import host, write


def step(
    number: int, passes: int, layers: int, *, once_more: bool = False, head: bool = True
) -> list[list[dict[str, Any]]]:
    """A step of microbatches: embedding, layers of 8x8 and 32x8, a head, perhaps forwards once more."""
    at, events = 1000.0 * number, list[list[dict[str, Any]]]()

    def call(name: str, shapes: list[list[int]]) -> None:
        nonlocal at
        (event,) = host(name, at, at + 1.0, category="cpu_op")
        event["args"] = {"Input Dims": shapes}
        events.append([event])
        at += 2.0

    def forward() -> None:
        for _ in range(layers):
            call("aten::linear", [[4, 8], [8, 8], []])
            call("aten::linear", [[4, 8], [32, 8], []])

    for _ in range(passes):
        call("aten::embedding", [[100, 8], [4]])
        forward()
        if head:
            call("aten::linear", [[4, 8], [100, 8], []])
        begun = at
        at += 1.0
        if once_more:
            forward()
        name = "torch/utils/checkpoint.py(1): recompute_fn"
        events.append(host(name, begun, at, category="python_function"))
        call("aten::mm", [[8, 4], [4, 8]])
    events.append(host(f"ProfilerStep#{number}", 1000.0 * number, 1000.0 * (number + 1)))
    return events


LAYER, TABLE = 8 * 8 + 32 * 8, 100 * 8


@pytest.mark.parametrize("once_more", [True, False])
@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("head", [True, False])
def test_each_weight_counts_once(tmp_path: Path, passes: int, once_more: bool, head: bool) -> None:
    """However many steps, microbatches and recomputed forwards there are; a tied head is the embedding."""
    events = [event for n in (1, 2) for event in step(n, passes, 3, once_more=once_more, head=head)]
    size = model_size(read_kineto(write(tmp_path / "rank0.json", *events)))
    assert size is not None
    assert (size.parameters, size.passes) == (3 * LAYER + TABLE, passes)
    assert (size.vocabulary, size.hidden_size) == (100, 8)


def test_without_shapes_there_is_none(tmp_path: Path) -> None:
    assert model_size(read_kineto(write(tmp_path / "rank0.json", host("aten::linear", 0.0, 5.0)))) is None
