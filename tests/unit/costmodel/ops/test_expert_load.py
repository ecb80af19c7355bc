"""Measured counts of tokens by expert: who is busiest, what a step and its memory make of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshplan
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from costmodel.ops.expert_load import busiest, busiest_over_mean
from costmodel.ops.layer import model_flop_per_step
from topology.base.errors import InputError

MIXTRAL = model("mixtral-8x7b")
SKEWED = "4 1 1 1 1 1 1 2"


def counted(folder: Path, *lines: str) -> Path:
    """A file of counts."""
    path = folder / "load.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_busiest_rank_by_hand() -> None:
    """Eight experts with 4, 1, 1, 1, 1, 1, 1, 2 of twelve: 1, 7/12·2, 5/12·4 and 4/12·8 times the mean."""
    found = dict(busiest_over_mean(np.array([[4, 1, 1, 1, 1, 1, 1, 2]], dtype=float)))
    assert found == pytest.approx({1: 1.0, 2: 7 / 6, 4: 5 / 3, 8: 8 / 3})


def test_layers_wait_each_for_its_own_busiest() -> None:
    """Two layers that are skewed to unlike ends are as uneven as each, not as even as their sum."""
    ends = np.array([[3.0, 1.0], [1.0, 3.0]])
    assert dict(busiest_over_mean(ends))[2] == pytest.approx(1.5)
    assert dict(busiest_over_mean(ends.sum(axis=0, keepdims=True)))[2] == pytest.approx(1.0)


def test_many_layouts_are_looked_up_at_once() -> None:
    """And nothing measured is one everywhere."""
    load = ((1, 1.0), (2, 1.2), (4, 1.5))
    assert busiest(load, np.array([4, 1, 2])).tolist() == [1.5, 1.0, 1.2]  # type: ignore[union-attr]  # an array
    assert busiest((), np.array([4, 1])) == 1.0


def test_even_counts_change_nothing_and_skewed_ones_cost_time_and_memory(tmp_path: Path) -> None:
    """Of a layout whose ranks split the experts; with all experts on every rank nothing waits."""
    for ep in (1, 4):
        at = {"gpus": 16, "set": {"layout.tp": 2, "layout.pp": 2, "layout.dp": 4, "layout.ep": ep}}
        plain = meshplan.estimate("mixtral-8x7b", **at)
        even = meshplan.estimate("mixtral-8x7b", expert_load=counted(tmp_path, " ".join("1" * 8)), **at)
        skewed = meshplan.estimate("mixtral-8x7b", expert_load=counted(tmp_path, SKEWED), **at)
        assert even.estimate.step_time_s == pytest.approx(plain.estimate.step_time_s, rel=1e-12)
        if ep == 1:
            assert skewed.estimate.step_time_s == pytest.approx(plain.estimate.step_time_s, rel=1e-12)
        else:
            assert skewed.estimate.step_time_s > 1.1 * plain.estimate.step_time_s
            assert skewed.estimate.peak_memory_bytes > plain.estimate.peak_memory_bytes


def test_a_search_prefers_what_splits_uneven_experts_less(tmp_path: Path) -> None:
    """Its plan is no faster than with even ones, and proven."""
    even = meshplan.plan("mixtral-8x7b", gpus=16, top=1)
    skewed = meshplan.plan("mixtral-8x7b", gpus=16, top=1, expert_load=counted(tmp_path, SKEWED))
    assert skewed.optimality.status == "proven"
    assert skewed.layout.ep <= even.layout.ep
    assert skewed.estimate.step_time_s >= even.estimate.step_time_s
    for ep in (1, 2, 4, 8):
        pinned = {"layout.ep": ep}
        try:
            other = meshplan.plan(
                "mixtral-8x7b", gpus=16, top=1, set=pinned, expert_load=counted(tmp_path, SKEWED)
            )
        except InputError:
            continue
        assert other.estimate.step_time_s >= skewed.optimality.bound_s * (1 - 1e-9)


def test_model_flop_does_not_depend_on_who_computes_it() -> None:
    """MFU is of the tokens, not of the busiest rank's."""
    job = TrainingJob(sequence_length=4096, global_batch_size=8)
    loaded = TrainingJob(sequence_length=4096, global_batch_size=8, expert_load=((1, 1.0), (8, 2.0)))
    assert model_flop_per_step(MIXTRAL, job) == model_flop_per_step(MIXTRAL, loaded)


@pytest.mark.parametrize(
    ("name", "lines", "says"),
    [
        ("70b", (SKEWED,), "has no experts"),
        ("mixtral-8x7b", (), "is empty"),
        ("mixtral-8x7b", ("1 2 3",), "3 numbers, mixtral-8x7b has 8 experts"),
        ("mixtral-8x7b", (SKEWED, "1 1 1 1 1 1 1 x"), "line 2"),
        ("mixtral-8x7b", ("0 0 0 0 0 0 0 0",), "has no counts"),
        ("mixtral-8x7b", ("1 1 1 1 1 1 1 -1",), "has no counts"),
        ("mixtral-8x7b", ("1 1 1 1 1 1 1 nan",), "has no counts"),
        ("mixtral-8x7b", ("1 1 1 1 1 1 1 inf",), "has no counts"),
    ],
)
def test_what_is_no_load_of_the_model_is_refused(
    tmp_path: Path, name: str, lines: tuple[str, ...], says: str
) -> None:
    """In three lines."""
    with pytest.raises(InputError) as caught:
        meshplan.plan(name, gpus=16, expert_load=counted(tmp_path, *lines))
    assert says in f"{caught.value.what} {caught.value.cause}"


@pytest.mark.parametrize("load", [((0, 1.0),), ((2, 0.9),), ((2, 2.5),)])
def test_a_busiest_rank_that_cannot_be_is_refused(load: tuple[tuple[int, float], ...]) -> None:
    """Less than the mean, or more than there is."""
    with pytest.raises(InputError, match="not possible"):
        TrainingJob(sequence_length=4096, global_batch_size=8, expert_load=load)
