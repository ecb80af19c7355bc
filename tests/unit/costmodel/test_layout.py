"""Layouts as values and as columns."""

import dataclasses

import numpy as np
import pytest

from costmodel.job import ServingJob, TrainingJob
from costmodel.layout import AXIS_ORDERS, LayoutTable, ParallelLayout, num_microbatches
from topology.base.errors import InputError

LAYOUTS = [
    ParallelLayout(),
    ParallelLayout(
        tp=8, pp=4, dp=2, sequence_parallel=True, zero_stage=1, recompute="selective", schedule="zbv"
    ),
    ParallelLayout(
        cp=4, dp=4, ep=8, expert_tp=2, cp_kind="ulysses", shard_degree=8, axis_order=AXIS_ORDERS[5]
    ),
]


def test_a_layout_uses_the_product_of_its_four_axes() -> None:
    """Experts re-use the other axes; they add no GPUs."""
    assert [layout.num_gpus for layout in LAYOUTS] == [1, 64, 16]
    assert LayoutTable.from_rows(LAYOUTS).num_gpus.tolist() == [1, 64, 16]


def test_experts_are_replicated_over_what_is_left_of_the_block() -> None:
    """Over dp 4 · cp 4 · tp 1, ep 8 · expert_tp 2 leaves one replica."""
    assert [layout.expert_dp for layout in LAYOUTS] == [1, 16, 1]
    assert LayoutTable.from_rows(LAYOUTS).expert_dp.tolist() == [1, 16, 1]


def test_a_table_gives_back_the_layouts_it_was_made_of() -> None:
    """Columns lose nothing."""
    table = LayoutTable.from_rows(LAYOUTS)
    assert [table.layout(index) for index in range(len(table))] == LAYOUTS


def test_a_shard_degree_of_all_ranks_reads_back_as_the_default() -> None:
    """Sharding over all dp·cp ranks is what None means."""
    table = LayoutTable.from_rows([ParallelLayout(dp=4, cp=2, shard_degree=8)])
    assert (table.shard_degree.tolist(), table.layout(0).shard_degree) == ([8], None)


def test_rows_are_taken_by_index_and_by_mask() -> None:
    """The enumerator prunes with masks."""
    table = LayoutTable.from_rows(LAYOUTS)
    assert table.take(np.array([2])).layout(0) == LAYOUTS[2]
    assert len(table.take(table.tp > 1)) == 1


def test_microbatches_of_a_table_are_those_of_its_layouts() -> None:
    """Global batch over dp times microbatch size, at least one."""
    job = TrainingJob(sequence_length=128, global_batch_size=12)
    layouts = [ParallelLayout(dp=2, microbatch_size=3), ParallelLayout(dp=64)]
    assert [num_microbatches(layout, job) for layout in layouts] == [2, 1]
    assert num_microbatches(LayoutTable.from_rows(layouts), job).tolist() == [2, 1]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"sequence_length": 0}, "sequence_length = 0"),
        ({"global_batch_size": -4}, "global_batch_size = -4"),
        ({"deadline_s": float("nan")}, "deadline_s = nan"),
        ({"deadline_s": float("inf")}, "deadline_s = inf"),
        ({"total_tokens": 0}, "total_tokens = 0"),
        ({"sequence_length": 10**18}, "sequence_length = 1000000000000000000"),
        ({"global_batch_size": 10**9}, "global_batch_size = 1000000000"),
        ({"deadline_s": 1e30}, "deadline_s = 1e+30"),
    ],
)
def test_a_job_without_tokens_or_with_impossible_limits_is_refused(
    change: dict[str, float], cause: str
) -> None:
    """The error names the number."""
    job = TrainingJob(sequence_length=4096, global_batch_size=64)
    with pytest.raises(InputError) as error:
        dataclasses.replace(job, **change)
    assert error.value.cause == cause


def test_a_serving_job_without_output_is_refused() -> None:
    """A request generates at least one token."""
    with pytest.raises(InputError, match="output_tokens = 0"):
        ServingJob(input_tokens=128, output_tokens=0)


def test_tokens_per_step_are_batch_times_length() -> None:
    """A step consumes the whole global batch."""
    assert TrainingJob(sequence_length=4096, global_batch_size=1024).tokens_per_step == 4096 * 1024


@pytest.mark.parametrize(
    "change", [{"request_rate_per_s": 1e18}, {"concurrency": 10**18}, {"input_tokens_p99": -1}]
)
def test_a_load_nobody_has_is_refused(change: dict[str, float]) -> None:
    """1e18 requests a second reached the solver, which knows no such integer."""
    job = ServingJob(input_tokens=10, output_tokens=10)
    with pytest.raises(InputError, match=next(iter(change))):
        dataclasses.replace(job, **change)


@pytest.mark.parametrize("order", [("pp", "dp", "cp", "xx"), ("pp", "dp", "cp"), (), ("tp",) * 4])
def test_an_order_of_other_axes_is_refused(order: tuple[str, ...]) -> None:
    """An unknown axis was looked for in the tuple of orders, and not found."""
    with pytest.raises(InputError, match="axis_order"):
        ParallelLayout(axis_order=order)
