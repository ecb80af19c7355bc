"""Properties of the memory model that hold for every layout."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.layout import RECOMPUTES, SCHEDULES, LayoutTable, ParallelLayout, Schedule, num_microbatches
from costmodel.memory.stage import (
    holds_ends,
    in_flight,
    memory_by_stage,
    memory_form,
    memory_pieces,
    stage_parts,
    stage_total_bytes,
)
from costmodel.models.catalog import model
from costmodel.stack import stack, stacks
from tests.counts import tries

JOB = TrainingJob(sequence_length=4096, global_batch_size=256)
DEGREES = st.sampled_from([1, 2, 4, 8])


@st.composite
def layouts(draw: st.DrawFn) -> ParallelLayout:
    """Layouts of up to 4,096 GPUs, legal or not: memory is defined for all."""
    return ParallelLayout(
        tp=draw(DEGREES),
        pp=draw(DEGREES),
        dp=draw(DEGREES),
        cp=draw(DEGREES),
        ep=draw(DEGREES),
        virtual_stages=draw(st.sampled_from([1, 2])),
        microbatch_size=draw(st.integers(1, 4)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        zero_stage=draw(st.integers(0, 3)),
        recompute=draw(st.sampled_from(RECOMPUTES)),
        sequence_parallel=draw(st.booleans()),
        cp_kind=draw(st.sampled_from(("ring", "ulysses"))),
    )


names = st.sampled_from(["llama-3.1-8b", "deepseek-v2-lite", "gpt-3-175b", "gemma-2-9b"])
profiles = st.sampled_from(sorted(stacks()))


def peak(name: str, profile: str, layout: ParallelLayout, job: TrainingJob = JOB) -> float:
    """Most bytes of any stage, layers split as evenly as they go."""
    spec = model(name)
    runs = 2 if spec.num_dense_layers else 1
    split = [[0] * (runs - 1) + [spec.num_layers / layout.pp] for _ in range(layout.pp)]
    recomputed = split if layout.recompute == "full" else [[0] * runs] * layout.pp
    stages = memory_by_stage(Workload(model=spec, job=job, stack=stack(profile)), layout, split, recomputed)
    return max(stage.total_bytes for stage in stages)


@settings(max_examples=tries(20, 60), deadline=None)
@given(names, profiles, layouts())
def test_parts_sum_to_the_total_and_none_is_negative(name: str, profile: str, layout: ParallelLayout) -> None:
    """A breakdown is a breakdown."""
    spec = model(name)
    runs = 2 if spec.num_dense_layers else 1
    counts = [[1] * runs] * layout.pp
    for stage in memory_by_stage(
        Workload(model=spec, job=JOB, stack=stack(profile)), layout, counts, [[0] * runs] * layout.pp
    ):
        parts = (
            stage.weights_bytes, stage.gradients_bytes, stage.optimizer_bytes, stage.activations_bytes,
            stage.kv_cache_bytes, stage.buffers_bytes, stage.overhead_bytes,
        )  # fmt: skip
        assert min(parts) >= 0
        assert np.isclose(sum(parts), stage.total_bytes, rtol=1e-12)
        assert np.isfinite(stage.total_bytes)


@settings(max_examples=tries(15, 40), deadline=None)
@given(names, profiles, st.lists(layouts(), min_size=1, max_size=8))
def test_a_table_of_layouts_is_scored_as_each_alone(
    name: str, profile: str, rows: list[ParallelLayout]
) -> None:
    """One code path: vectorised and scalar agree to the last bit."""
    spec, chosen = model(name), stack(profile)
    counts = [3.0, 5.0][: 2 if spec.num_dense_layers else 1]
    none = [0.0] * len(counts)

    def total(layout: ParallelLayout | LayoutTable) -> list[float]:
        """Bytes of a stage with both ends and two microbatches in flight."""
        pieces = memory_pieces(Workload(model=spec, job=JOB, stack=chosen), layout)
        parts = stage_parts(pieces, layers=counts, recomputed=none, in_flight=2.0, first=1.0, last=1.0)
        return list(np.atleast_1d(sum(parts.values())))

    assert total(LayoutTable.from_rows(rows)) == [total(row)[0] for row in rows]


@settings(max_examples=tries(20, 60), deadline=None)
@given(names, profiles, layouts(), st.sampled_from(["tp", "zero_stage", "ep", "cp"]))
def test_more_sharding_never_needs_more_of_its_state(
    name: str, profile: str, layout: ParallelLayout, field: str
) -> None:
    """Raising a degree, or the ZeRO stage up to 2, never grows weights, gradients or optimizer state."""
    value = getattr(layout, field)
    finer = replace(layout, **{field: min(value + 1, 2) if field == "zero_stage" else 2 * value})
    if field == "zero_stage" and layout.zero_stage > 1:
        finer = layout
    states = []
    for chosen in (layout, finer):
        pieces = memory_pieces(Workload(model=model(name), job=JOB, stack=stack(profile)), chosen)
        states.append([float(np.max(layer.state.total_bytes)) for layer in pieces.layers])
    assert all(after <= before * (1 + 1e-12) for before, after in zip(*states, strict=True))


@settings(max_examples=tries(20, 60), deadline=None)
@given(names, profiles, layouts())
def test_recomputing_everything_never_keeps_more_activations(
    name: str, profile: str, layout: ParallelLayout
) -> None:
    """The input of a layer is among what no recomputation keeps, and policies are ordered."""
    pieces = memory_pieces(Workload(model=model(name), job=JOB, stack=stack(profile)), layout)
    for layer in pieces.layers:
        assert np.all(np.asarray(layer.saved_bytes_recomputed) <= np.asarray(layer.saved_bytes))


@settings(max_examples=tries(20, 60), deadline=None)
@given(names, profiles, layouts())
def test_longer_sequences_and_larger_microbatches_need_more(
    name: str, profile: str, layout: ParallelLayout
) -> None:
    """Memory grows with the tokens of a microbatch."""
    job = replace(JOB, global_batch_size=4096)
    longer = replace(job, sequence_length=2 * job.sequence_length)
    larger = replace(layout, microbatch_size=2 * layout.microbatch_size)
    held = replace(job, global_batch_size=2 * job.global_batch_size)  # the same number of microbatches
    base = peak(name, profile, layout, job)
    assert base <= peak(name, profile, layout, longer)
    assert base <= peak(name, profile, larger, held)


@settings(max_examples=tries(35, 100), deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(1, 16), st.integers(1, 4), st.integers(1, 64))
def test_in_flight_is_between_one_and_the_number_of_microbatches(
    schedule: Schedule, pp: int, virtual_stages: int, microbatches: int
) -> None:
    """No schedule holds more than all microbatches, none falls with an earlier stage, none is below one chunk."""
    code = SCHEDULES.index(schedule)
    held = [float(in_flight(code, pp, virtual_stages, microbatches, stage)) for stage in range(pp)]
    assert held == sorted(held, reverse=True)
    assert all(1 / virtual_stages <= count <= microbatches for count in held)


@settings(max_examples=tries(10, 30), deadline=None)
@given(st.sampled_from(SCHEDULES), st.integers(1, 16))
def test_exactly_one_stage_holds_each_end(schedule: Schedule, pp: int) -> None:
    """Embedding and head exist once, on the first rank alike when the schedule folds back."""
    code = SCHEDULES.index(schedule)
    ends = [holds_ends(code, pp, stage) for stage in range(pp)]
    folded = schedule in ("zbv", "dualpipev", "v-half")
    assert [bool(first) for first, _ in ends] == [stage == 0 for stage in range(pp)]
    assert [bool(last) for _, last in ends] == [stage == (0 if folded else pp - 1) for stage in range(pp)]


def test_in_flight_of_a_whole_table_is_that_of_its_rows() -> None:
    """Schedules of different kinds are told apart within one array."""
    rows = [ParallelLayout(pp=4, schedule=schedule, virtual_stages=2) for schedule in SCHEDULES]
    table = LayoutTable.from_rows(rows)
    M = num_microbatches(table, JOB)
    together = in_flight(table.schedule, table.pp, table.virtual_stages, M, 1)
    alone = [
        float(in_flight(SCHEDULES.index(row.schedule), 4, 2, num_microbatches(row, JOB), 1)) for row in rows
    ]
    assert np.asarray(together).tolist() == alone


@settings(max_examples=tries(15, 40), deadline=None)
@given(names, profiles, layouts(), st.integers(0, 3))
def test_the_linear_form_is_the_sum_of_the_parts(
    name: str, profile: str, layout: ParallelLayout, recomputed: int
) -> None:
    """Scoring many layouts and describing one are the same memory."""
    spec = model(name)
    counts = [3.0, 5.0][: 2 if spec.num_dense_layers else 1]
    recomputed_layers = [float(min(recomputed, count)) for count in counts]
    pieces = memory_pieces(Workload(model=spec, job=JOB, stack=stack(profile)), layout)
    parts = stage_parts(
        pieces, layers=counts, recomputed=recomputed_layers, in_flight=2.0, first=1.0, last=1.0
    )
    folded = stage_total_bytes(
        memory_form(pieces), layers=counts, recomputed=recomputed_layers, in_flight=2.0, first=1.0, last=1.0
    )
    assert np.allclose(folded, sum(parts.values()), rtol=1e-12)
