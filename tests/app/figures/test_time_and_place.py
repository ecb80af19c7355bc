"""Pictures of time and place: memory over the schedule, a stretch of it, levels by axis; sums are the headline's."""

import itertools
import re

import numpy as np
import pytest

from app.figures.fabric_tree import fabric_tree, row_sizes, unfolds
from app.figures.link_heat import link_heat
from app.figures.schedule.gantt import STRETCHES, schedule_gantt, stretch
from app.figures.schedule.memory_over_time import drawn_ranks, held_over_time, memory_over_time
from app.figures.schedule.timeline import busy_s, timeline
from app.figures.style import alt_text
from app.store.profiles import lanes_from
from costmodel.kernels.saved import calibration_for
from costmodel.layout import ParallelLayout
from planner.analysis.lanes import IN_PASSES, lanes_of
from planner.analysis.link_load import axis_load, link_load
from planner.analysis.schedule import schedule_of
from planner.plan import Plan
from planner.pricing import capacity_of_fullest
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from topology.base.errors import InputError
from topology.base.units import GIB
from topology.builders import build
from topology.fabric.mesh import mesh


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan of four pipeline ranks with five chunks each."""
    pins = ("layout.tp=4", "layout.pp=4", "layout.virtual_stages=5", "layout.microbatch_size=1")
    found = search(understand(Flags(model="llama-3.1-70b", gpus="32", settings=pins)).request)
    assert isinstance(found, Plan)
    return found


def test_the_most_that_a_rank_holds_is_its_peak_and_what_lasts_is_never_let_go(plan):
    """Over the schedule memory lies between what lasts and the stage's total, and reaches it."""
    events = schedule_of(plan, calibration_for(plan.request.cluster))
    for rank, stage in enumerate(plan.estimate.memory_by_stage):
        held = [held_bytes for _, held_bytes in held_over_time(events, rank, stage)]
        lasting = stage.total_bytes - stage.activations_bytes
        assert max(held) == pytest.approx(stage.total_bytes)
        assert min(held) == held[-1] == pytest.approx(lasting)


def test_the_lines_are_in_gib_and_the_fullest_rank_is_among_them(plan):
    """Its highest point is the headline's peak memory."""
    events = schedule_of(plan, calibration_for(plan.request.cluster))
    stages, capacity = plan.estimate.memory_by_stage, capacity_of_fullest(plan)
    picture = memory_over_time(events, stages, capacity)
    peak = max(max(line.y) for line in picture.data)
    assert peak == pytest.approx(plan.estimate.peak_memory_bytes / GIB)
    fullest = max(range(len(stages)), key=lambda rank: stages[rank].total_bytes)
    assert alt_text(picture).startswith(f"Rank {fullest} is fullest")
    many = [*stages[1:2] * 15, stages[0]]
    assert {0, 15} <= set(drawn_ranks(many))
    assert len(drawn_ranks(many)) <= 6


def test_the_lanes_of_a_rank_fill_its_passes_in_the_proportions_of_the_step(plan):
    """Every pass is its parts without gap or overlap; their sums stand as the headline's parts do."""
    slices, count = lanes_of(plan, calibration_for(plan.request.cluster), rank=1)
    time = plan.estimate.time
    shown = [one for one in slices if not one.hidden and one.lane in IN_PASSES]
    for before, after in itertools.pairwise(shown):
        assert after.start_s >= before.end_s - 1e-9
    assert count == 8
    for lane in IN_PASSES:
        ratio = busy_s(shown, lane) / busy_s(shown, "compute")
        assert ratio == pytest.approx(getattr(time, f"{lane}_s") / time.compute_s, abs=1e-9)
    hidden = [one for one in slices if one.hidden and one.lane == "tp"]
    assert 0 < busy_s(hidden, "tp") <= time.hidden_s["tp"]
    last_s = max(one.end_s for one in slices)
    assert busy_s([one for one in slices if not one.hidden], "dp") == pytest.approx(time.dp_s)
    assert [one.end_s for one in slices if one.lane == "optimizer"] == [pytest.approx(last_s)]


def test_a_trace_is_lanes_whose_overlaps_count_once():
    """Kernels on two streams, collectives by name; operators of the host are no work of a GPU."""
    kernel = {"ph": "X", "cat": "kernel"}
    lanes = lanes_from(
        [
            {**kernel, "name": "gemm", "ts": 1000.0, "dur": 400.0},
            {**kernel, "name": "gemm", "ts": 1200.0, "dur": 400.0},
            {**kernel, "name": "ncclDevKernel_AllGather_RING", "ts": 1100.0, "dur": 900.0},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 9000.0},
            {"ph": "X", "cat": "kernel", "name": "no length", "ts": 1.0},
            "no event",
        ]
    )
    assert {one.lane: (one.start_s, one.end_s) for one in lanes} == {
        "compute": (0.0, pytest.approx(600e-6)),
        "all-gather": (pytest.approx(100e-6), pytest.approx(1000e-6)),
    }
    many = [{**kernel, "name": "k", "ts": 10.0 * n, "dur": 5.0} for n in range(10_000)]
    close = lanes_from(many)
    assert len(close) < 3000
    assert busy_s(close, "compute") == pytest.approx(0.05)
    with pytest.raises(InputError, match="shows nothing"):
        lanes_from([{"ph": "M"}])


def test_predicted_and_measured_lanes_stand_one_above_the_other(plan):
    """Each lane says whose it is, in one picture with one axis of time."""
    slices, _ = lanes_of(plan, calibration_for(plan.request.cluster), rank=0)
    measured = lanes_from([{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0.0, "dur": 2e6}])
    picture = timeline(slices, measured, "A step.")
    rows = list(picture.layout.yaxis.categoryarray)
    assert rows[0] == "compute predicted"
    assert rows[-1] == "compute measured"
    assert "(predicted)" in alt_text(picture)
    assert "(measured)" in alt_text(picture)


def test_a_large_fabric_is_a_tree_with_one_unit_of_every_level_opened():
    """Five rows for 16,384 GPUs; counts multiply to all of them; what groups span is said where they do."""
    cluster = build(understand(Flags(model="llama-3.1-405b", gpus="16384")).request.cluster)
    layout = ParallelLayout(tp=8, pp=8, dp=256)
    loads = axis_load(cluster.hierarchy, layout, "dp")
    assert unfolds(cluster, loads)
    sizes = row_sizes(cluster.hierarchy.num_gpus, loads)
    assert sizes == [1, 8, 256, 1024, 16384]
    groups = mesh([("pp", 8), ("dp", 256), ("tp", 8)]).groups("tp")
    picture = fabric_tree(16384, loads, groups, "tp")
    assert "Each of the 2,048 groups of tp, 8 GPUs, stays within one node of 8 GPUs." in alt_text(picture)
    rows = [trace for trace in picture.data if trace.mode == "markers" and trace.x[0] is not None]
    more = [int(re.search(r"and ([\d,]+) more", note.text).group(1).replace(",", ""))
            for note in picture.layout.annotations if "more" in note.text]  # fmt: skip
    assert [len(row.x) for row in rows] == [8, 8, 4, 8, 1]
    assert more == [24, 8]
    assert "each over 8 such units" in rows[0].hovertext
    assert "each within one such unit" in rows[1].hovertext
    small = build(understand(Flags(model="llama-3.1-8b", gpus="64")).request.cluster)
    assert not unfolds(small, axis_load(small.hierarchy, ParallelLayout(tp=8, dp=8), "dp"))


def test_a_stretch_of_a_schedule_has_room_for_every_number(plan):
    """Bars of a stretch are numbered, lie in it, and all of the schedule is in the reading still."""
    events = schedule_of(plan, calibration_for(plan.request.cluster))
    assert stretch(events, STRETCHES[0]) is None
    for which in STRETCHES[1:]:
        low_s, high_s = stretch(events, which)
        picture = schedule_gantt(events, window_s=(low_s, high_s))
        assert all(bar.text is not None for bar in picture.data)
        for bar in picture.data:
            starts, lengths = np.asarray(bar.base, dtype=float), np.asarray(bar.x, dtype=float)
            left, right = picture.layout.xaxis.range
            assert (starts >= left).all()
            assert (starts + lengths <= right * (1 + 1e-9)).all()
            assert (lengths > 0).all()
    assert all(bar.text is None for bar in schedule_gantt(events).data)


def test_levels_by_axis_sum_to_how_busy_a_level_is(plan):
    """In percent; the last column is the sum of the others, and the scale ends at the busiest."""
    h = build(plan.request.cluster).hierarchy
    loads = link_load(h, plan.layout, plan.estimate.time, plan.estimate.step_time_s)
    (heat,) = link_heat(loads).data
    shares = np.asarray(heat.z, dtype=float)
    assert shares[:, :-1].sum(axis=1) == pytest.approx(shares[:, -1])
    assert shares[:, -1] == pytest.approx([100 * load.utilisation for load in loads])
    assert heat.zmax == pytest.approx(max(shares.max(), 1.0))
    assert list(heat.x)[-1] == "all"
