"""Figures state the numbers of the plan: bars sum, ranks do one thing at a time, links carry what the flows say."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from app.figures.curves import pareto_chart, pareto_front, scaling_curve
from app.figures.memory import memory_bars
from app.figures.network import drawn_graph, kind_words, network_map, wires_by_level
from app.figures.roofline import roofline
from app.figures.schedule.gantt import busy_share, schedule_gantt, shown_events, trace_json
from app.figures.step_time import drawn_parts, waterfall, waterfall_parts, waterfalls
from app.figures.style import GREY, alt_text
from app.figures.tornado import tornado
from costmodel.estimate import Estimate, TimeBreakdown
from costmodel.layout import ParallelLayout
from costmodel.memory.fit import fit_text
from costmodel.memory.stage import MemoryBreakdown
from costmodel.pipeline.simulator import StageSeconds, simulate_step
from planner.analysis.link_load import axis_load, carried_bytes_per_s, link_load
from planner.analysis.op_points import OpPoint
from planner.analysis.what_if import Purchase, ScalePoint, Sensitivity
from planner.plan import Plan
from planner.questions.flags import Flags
from planner.questions.training import understand
from planner.search.search import search
from topology.base.units import GIB, format_seconds
from topology.builders import build, default_cluster, machine_node
from topology.hardware.datasheets import machines
from topology.spec import ClusterSpec

CAPACITY = 80 * GIB
STAGES = tuple(
    MemoryBreakdown(
        weights_bytes=w * GIB, gradients_bytes=4 * GIB, optimizer_bytes=16 * GIB, activations_bytes=20 * GIB,
        buffers_bytes=2 * GIB, overhead_bytes=GIB,
    )
    for w in (10, 8, 9)
)  # fmt: skip
TIME = TimeBreakdown(
    compute_s=8.0, recompute_s=0.5, tp_s=1.0, bubble_s=0.4, optimizer_s=0.1, hidden_s={"dp": 0.3}
)
ESTIMATE = Estimate(
    time=TIME, step_time_s=TIME.total_s, lower_s=9.0, upper_s=11.0, memory_by_stage=STAGES, peak_memory_bytes=53 * GIB,
    memory_lower_bytes=50 * GIB, memory_upper_bytes=56 * GIB, mfu=0.5, hfu=0.5, tokens_per_s_per_gpu=1.0, usd_per_step=None,
    usd_per_billion_tokens=None, wh_per_step=1.0, wh_per_billion_tokens=1.0, bound_by="compute",
)  # fmt: skip
SECONDS = StageSeconds(forward_s=(1.0,) * 4, input_s=(1.0,) * 4, weight_s=(1.0,) * 4)


def test_memory_bars_sum_to_the_total_of_every_stage():
    """The parts of a stage stack up to its total in GiB."""
    bars = [np.array(trace.y, dtype=float) for trace in memory_bars(STAGES, CAPACITY).data]
    assert np.sum(bars, axis=0).tolist() == pytest.approx([stage.total_bytes / GIB for stage in STAGES])


def test_memory_bars_say_which_stage_is_fullest_and_whether_it_fits():
    """The reading names the stage, both numbers, and the word of the chance; without a chance no word."""
    assert alt_text(memory_bars(STAGES, CAPACITY)) == "Stage 0 is fullest with 53 GiB of 80 GiB."
    for chance in (0.001, 0.42, 0.95):
        assert alt_text(memory_bars(STAGES, CAPACITY, chance=chance)).endswith(f"GiB: {fit_text(chance)}.")


def test_memory_has_the_whisker_of_its_band():
    """At the top of the fullest stage, from lower to upper; the reading names both."""
    picture = memory_bars(STAGES, CAPACITY, band_bytes=(50 * GIB, 56 * GIB), chance=0.42)
    whisker = picture.data[-1]
    assert (whisker.x[0], whisker.y[0]) == ("stage 0", 53)
    assert (whisker.error_y.array[0], whisker.error_y.arrayminus[0]) == (3, 3)
    assert alt_text(picture).endswith("tight, 42 % chance of OOM; the 80 % band is 50 GiB to 56 GiB.")


def test_memory_line_stands_at_the_capacity_of_the_gpu():
    """The dashed line is at 80 GiB."""
    assert memory_bars(STAGES, CAPACITY).layout.shapes[0].y0 == 80


def test_the_waterfall_climbs_to_the_step():
    """Every bar starts where the one before ended; the last part ends at the total; hidden time stands apart."""
    bars = waterfall(ESTIMATE).data
    parts, whole, hidden = bars[:5], bars[5], bars[6:]
    ends = np.cumsum([bar.x[0] for bar in parts])
    assert [bar.base[0] for bar in parts] == pytest.approx([0.0, *ends[:-1]])
    assert ends[-1] == pytest.approx(whole.x[0]) == pytest.approx(ESTIMATE.step_time_s)
    assert [(bar.y[0], bar.x[0]) for bar in hidden] == [("DP hidden", 0.3)]


def test_the_band_of_the_step_is_its_error_bar():
    """From lower to upper."""
    error = waterfall(ESTIMATE).data[5].error_x
    assert (error.array[0], error.arrayminus[0]) == (pytest.approx(1.0), pytest.approx(1.0))


def test_parts_too_small_to_see_are_drawn_as_one():
    """Nothing is lost: the drawn parts still sum to the step."""
    small = replace(ESTIMATE, time=replace(TIME, optimizer_s=0.09, host_s=0.006, pp_s=0.004))
    drawn = drawn_parts(small)
    assert drawn["rest"] == pytest.approx(0.01)
    assert sum(drawn.values()) == pytest.approx(sum(waterfall_parts(small.time).values()))


def small_plan(estimate: Estimate = ESTIMATE, **flags) -> Plan:
    """The plan of a small question, with an estimate of one's own."""
    found = search(understand(Flags(**{"model": "llama-3.1-8b", "gpus": "8", **flags})).request)
    assert isinstance(found, Plan)
    return replace(found, estimate=estimate)


def test_compared_steps_stack_to_their_totals():
    """Each plan's bar is as long as its step, which stands written at its end."""
    other = replace(ESTIMATE, time=replace(TIME, compute_s=6.0), step_time_s=8.0, lower_s=7.2, upper_s=8.8)
    picture = waterfalls([("A", small_plan()), ("B", small_plan(other))])
    *bars, ends = picture.data
    lengths = np.sum([np.array(bar.x, dtype=float) for bar in bars], axis=0).tolist()
    assert lengths == pytest.approx([10.0, 8.0]) == list(ends.x)
    assert [text.strip() for text in ends.text] == ["10 s", "8 s"]
    assert alt_text(picture) == "B is fastest with 8 s a step."


def test_steps_of_unequal_batches_compare_by_tokens():
    """Twice the batch in 1.8 times the time is faster; bars are those of a million tokens."""
    double = replace(
        ESTIMATE, time=replace(TIME, compute_s=16.0), step_time_s=18.0, lower_s=17.0, upper_s=19.0
    )
    picture = waterfalls([("A", small_plan()), ("B", small_plan(double, global_batch_size="1024"))])
    ends = picture.data[-1]
    assert list(ends.x) == pytest.approx([10 / 4.194304, 18 / 8.388608])
    assert "of a million tokens" in picture.layout.xaxis.title.text
    assert alt_text(picture) == "B has 466,000 tokens/s; the error band cannot tell A from it."


def test_plans_that_the_band_cannot_tell_apart_have_no_winner():
    """One per cent is a tie."""
    close = replace(ESTIMATE, step_time_s=10.1, lower_s=9.1, upper_s=11.1)
    reading = alt_text(waterfalls([("A", small_plan()), ("B", small_plan(close))]))
    assert reading.endswith("the error band cannot tell B from it.")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_a_rank_of_the_gantt_does_one_thing_at_a_time(schedule):
    """Bars of one row do not overlap, and all passes are drawn."""
    layout = ParallelLayout(pp=4, schedule=schedule)
    events = simulate_step(layout, 8, SECONDS).events
    spans: dict[str, list[tuple[float, float]]] = {}
    for trace in schedule_gantt(events).data:
        for rank, start, length in zip(trace.y, trace.base, trace.x, strict=True):
            spans.setdefault(rank, []).append((start, start + length))
    assert sum(map(len, spans.values())) == len(events)
    for row in spans.values():
        ordered = sorted(row)
        assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(ordered))


def test_the_bubble_of_gpipe_is_its_closed_form():
    """Idle share = (P − 1) / (M + P − 1)."""
    events = simulate_step(ParallelLayout(pp=4, schedule="gpipe"), 8, SECONDS).events
    assert 1 - busy_share(events) == pytest.approx(3 / 11)


def test_long_schedules_show_the_outer_ranks():
    """Of 32 ranks the first and the last eight are drawn."""
    seconds = StageSeconds(forward_s=(1.0,) * 32, input_s=(1.0,) * 32, weight_s=(1.0,) * 32)
    ranks = {event.rank for event in shown_events(simulate_step(ParallelLayout(pp=32), 32, seconds).events)}
    assert ranks == {*range(8), *range(24, 32)}


def test_a_schedule_that_is_cut_says_until_when_it_is_drawn():
    """Of more passes than can be seen, the earliest are drawn."""
    events = simulate_step(ParallelLayout(pp=4), 600, SECONDS).events
    end_s = max(event.end_s for event in shown_events(events))
    assert len(shown_events(events)) < len(events)
    assert alt_text(schedule_gantt(events)).endswith(f"Drawn are the first {format_seconds(end_s)}.")


def test_the_trace_has_every_pass_on_the_track_of_its_rank():
    """Complete events in microseconds, tracks named."""
    events = simulate_step(ParallelLayout(pp=4), 4, SECONDS).events
    document = json.loads(trace_json(events, "llama"))
    passes = [entry for entry in document["traceEvents"] if entry["ph"] == "X"]
    drawn = sorted((p["tid"], p["name"], p["ts"], p["dur"]) for p in passes)
    expected = sorted(
        (e.rank, f"{e.kind} {e.microbatch}", e.start_s * 1e6, (e.end_s - e.start_s) * 1e6) for e in events
    )
    assert [row[:2] for row in drawn] == [row[:2] for row in expected]
    assert [row[2:] for row in drawn] == [pytest.approx(row[2:]) for row in expected]


def ring_share_of_uplinks(num_gpus: int, size: int, stride: int, gpus_per_node: int) -> float:
    """Flows of all rings of an axis that leave the busiest node, per GPU of the node."""
    leaving = [0] * (num_gpus // gpus_per_node)
    for start in range(num_gpus):
        place = (start // stride) % size
        after = start + stride if place < size - 1 else start - (size - 1) * stride
        if start // gpus_per_node != after // gpus_per_node:
            leaving[start // gpus_per_node] += 1
    return max(leaving) / gpus_per_node


@pytest.mark.parametrize(
    ("tp", "dp", "axis"), [(1, 32, "dp"), (4, 8, "dp"), (8, 4, "dp"), (8, 4, "tp"), (2, 16, "dp")]
)
def test_link_utilisation_equals_the_flow_computation(tp, dp, axis):
    """What leaves a node per GPU is the ring rate times the share of rings that leave it, counted flow by flow."""
    from topology.fabric.hierarchy import ring_bandwidth

    hierarchy = default_cluster("h100-sxm", 32).hierarchy
    layout = ParallelLayout(tp=tp, dp=dp)
    size, stride = (dp, tp) if axis == "dp" else (tp, 1)
    share = ring_share_of_uplinks(32, size, stride, 8)
    assert carried_bytes_per_s(hierarchy, layout, axis, 8) == pytest.approx(
        share * float(ring_bandwidth(hierarchy, size, stride))
    )


def test_a_level_is_busy_for_the_time_its_axis_communicates():
    """Tensor parallelism inside a node keeps NVLink busy for exposed plus hidden seconds, and the network idle."""
    hierarchy = default_cluster("h100-sxm", 32).hierarchy
    scaleup, node = link_load(
        hierarchy, ParallelLayout(tp=8, dp=4), replace(TIME, hidden_s={"tp": 1.0}), 10.0
    )
    assert (scaleup.busy["tp"], node.busy["tp"]) == (pytest.approx(0.2), 0.0)


def test_the_network_map_has_a_line_for_every_link_and_a_mark_for_every_gpu():
    """32 GPUs in 4 nodes on 8 rails: 32 NVLinks, 32 network links, 32 marks."""
    cluster = default_cluster("h100-sxm", 32)
    wires = wires_by_level(drawn_graph(cluster.spec))
    assert {level: len(lines) for level, lines in wires.items()} == {"scale-up": 32, "node": 32}
    picture = network_map(cluster, (), [tuple(range(node * 8, node * 8 + 8)) for node in range(4)])
    gpus = next(trace for trace in picture.data if trace.marker.symbol == "circle")
    assert len(gpus.x) == 32
    assert len(set(gpus.marker.color)) == 4


def test_a_large_cluster_is_drawn_folded():
    """16,384 GPUs are a few marks, and the blocks say how many they stand for."""
    picture = network_map(default_cluster("h100-sxm", 16384), ())
    assert sum(len(trace.x or ()) for trace in picture.data if trace.mode != "lines") < 200
    assert any("more ×" in text for trace in picture.data for text in (trace.text or ()))


def test_the_scaling_curve_has_its_band_and_marks_the_plan():
    """The band is throughput at the ends of the step's band; the plan at hand is circled."""
    points = [
        ScalePoint(
            value=v, step_time_s=10.0, lower_s=8.0, upper_s=12.5, tokens_per_s=v * 100.0, layout="tp 8"
        )
        for v in (8, 16)
    ]
    band, line, mark = scaling_curve(points, "GPUs", 16).data
    assert list(line.y) == [800.0, 1600.0]
    assert list(band.y) == pytest.approx([1000.0, 2000.0, 1280.0, 640.0])
    assert list(mark.x) == [16]


def test_the_pareto_front_holds_only_what_nothing_beats():
    """Every offer off the front is beaten in time and money by one on it."""
    rng = np.random.default_rng(0)
    found = [
        Purchase(gpu="g", num_gpus=8, step_time_s=float(t), usd_per_billion_tokens=float(m), layout="")
        for t, m in rng.uniform(1, 9, (40, 2))
    ]
    front = pareto_front(found)
    for offer in set(found) - set(front):
        assert any(
            o.step_time_s <= offer.step_time_s and o.usd_per_billion_tokens <= offer.usd_per_billion_tokens
            for o in front
        )
    assert list(pareto_chart(found).data[0].x) == [offer.step_time_s for offer in front]


def test_the_tornado_has_the_largest_effect_on_top_and_says_where_there_is_no_plan():
    """Bars are sorted by reach; a missing plan is a bar of zero labelled so."""
    effects = [
        Sensitivity(name="small", lowered=0.01, raised=-0.01),
        Sensitivity(name="large", lowered=None, raised=-0.2),
        Sensitivity(name="none", lowered=0.0, raised=0.0),
    ]
    lowered, raised = tornado(effects, "step time").data
    assert list(lowered.y) == ["none", "small", "large"]
    assert (list(lowered.x), list(raised.x)) == ([0.0, 0.01, 0.0], [0.0, -0.01, -0.2])
    assert list(lowered.text) == ["", "+1 %", "no plan"]
    assert list(raised.text) == ["no effect", "-1 %", "-20 %"]


def test_the_roofline_parts_ops_at_the_ridge():
    """Ops left of peak / bandwidth are memory-bound."""
    gpu = default_cluster("h100-sxm", 8).gpu
    ops = [
        OpPoint(name="norm", flop=1e9, moved_bytes=1e9, seconds=1e-3),
        OpPoint(name="gemm", flop=1e12, moved_bytes=1e9, seconds=1e-3, calls=3),
    ]
    names = {trace.name: len(trace.x) for trace in roofline(ops, gpu).data}
    assert names == {"roof of h100-sxm": 3, "memory-bound": 1, "compute-bound": 1}
    assert alt_text(roofline(ops, gpu)).startswith("25 % of the forward kernels' time")


def test_every_figure_says_what_it_shows():
    """The reading is a sentence: it starts with a capital or a number and ends with a full stop."""
    gpu = default_cluster("h100-sxm", 8).gpu
    events = simulate_step(
        ParallelLayout(pp=2), 2, StageSeconds(forward_s=(1.0,) * 2, input_s=(1.0,) * 2, weight_s=(1.0,) * 2)
    ).events
    for picture in (
        memory_bars(STAGES, CAPACITY), waterfall(ESTIMATE), schedule_gantt(events), tornado([], "step time"),
        pareto_chart([]), roofline([], gpu), network_map(default_cluster("h100-sxm", 8), ()),
    ):  # fmt: skip
        reading = alt_text(picture)
        assert reading[0].isupper() or reading[0].isdigit()
        assert reading.endswith(".")


def test_the_network_map_tells_kinds_and_idle_nodes():
    """A symbol for each kind of node; GPUs of no group are grey, and their hosts are named."""
    dgx = default_cluster("h100-sxm", 8).spec.nodes[0]
    old = machine_node(machines()["dgx-a100"], 1)
    nodes = (replace(dgx, count=2, hosts=("n1", "n2")), replace(old, hosts=("n3",)))
    cluster = build(ClusterSpec(name="mixed", nodes=nodes))
    picture = network_map(cluster, (), [range(8), range(16, 24)])
    marks = {t.marker.symbol: t for t in picture.data if t.mode == "markers" and t.marker.symbol != "square"}
    assert {symbol: len(trace.x) for symbol, trace in marks.items()} == {"circle": 16, "diamond": 8}
    assert set(marks["circle"].marker.color[8:]) == {GREY}
    assert marks["circle"].hovertext[8] == "GPU 8 of n2 · idle"
    assert marks["diamond"].hovertext[0] == "GPU 16 of n3 · group 1"
    words = kind_words(cluster.spec, [range(8), range(16, 24)])
    assert words == ("Nodes differ: 2 × 8 h100-sxm (circles), 1 × 8 a100-sxm-80gb (diamonds).", "Idle: n2.")


def test_the_level_that_binds_an_axis_is_full_while_it_communicates():
    """Rings of four nodes fill the NICs and a ninth of NVLink; inside a node they fill NVLink."""
    h = default_cluster("h100-sxm", 32).hierarchy
    across = {load.name: load.utilisation for load in axis_load(h, ParallelLayout(tp=8, dp=4), "dp")}
    inside = {load.name: load.utilisation for load in axis_load(h, ParallelLayout(tp=8, dp=4), "tp")}
    assert (across["node"], inside["node"], inside["scale-up"]) == (1.0, 0.0, 1.0)
