"""On small instances the search finds what exhaustive enumeration of every layout and every split finds.

The enumeration here is written independently of `planner.space.unfold` and `planner.stages.integer_program`: loops over degrees,
every legal layout by the rules alone, every way to split the layers, and the fewest recomputed layers found
by counting up.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import (
    AXIS_ORDERS,
    CP_KINDS,
    RECOMPUTES,
    SCHEDULES,
    LayoutTable,
    ParallelLayout,
    num_microbatches,
)
from costmodel.memory.fit import fit_of, out_of_memory_chance
from costmodel.memory.stage import held_microbatches, holds_ends, stage_parts
from costmodel.models.compressed_attention import AttentionCompression
from costmodel.models.parameters import parameter_count
from costmodel.models.recurrence import Recurrence
from costmodel.models.spec import ModelSpec, layer_order, layer_runs
from costmodel.pipeline.stages import ranks_of_chunks, runs_of_ranks
from costmodel.training.bands import peak_spread
from planner.bounds.priced import Priced, priced_columns
from planner.plan import PlanRequest, Problem, problem_of
from planner.rules.check import check, legal
from planner.search.best_first import explore
from planner.search.search import certificate
from tests.counts import cases_of_run, tries
from tests.unit.costmodel.models.small_modules import traced
from tests.unit.costmodel.models.small_towers import seeing
from topology.base.arrays import Vector
from topology.base.units import GIB
from topology.builders import default_cluster
from topology.catalog import gpu
from topology.spec import ClusterSpec

RELATIVE = 1e-6
CAL = load_calibration()
COMPRESSED: dict[str, Any] = {
    "compression": AttentionCompression(output_groups=4, output_rank=64), "q_lora_rank": 128, "residual_streams": 4,
    "sliding_window": 128, "index_heads": 4, "index_head_dim": 32, "index_topk": 64,
}  # fmt: skip


def small_model(
    *, layers: int, experts: int, dense_layers: int, vocab: int, hidden: int, kv_heads: int, pattern: str = ""
) -> ModelSpec:
    """A model of a few layers, dense or with experts, alike or of kinds that alternate."""
    recurrence = Recurrence(kind="gated-delta", key_heads=4, value_heads=8, key_dim=128, value_dim=128)
    return ModelSpec(
        name="small",
        layer_pattern=pattern,
        recurrence=recurrence if set(pattern) & set("lLM") else None,
        **(COMPRESSED if "S" in pattern else {}),
        num_layers=max(layers, len(pattern)),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_attention_heads=8,
        num_key_value_heads=kv_heads,
        head_dim=hidden // 8,
        vocab_size=vocab,
        max_sequence_length=4096,
        num_experts=experts,
        num_experts_per_token=2 if experts else 0,
        moe_intermediate_size=hidden if experts else 0,
        num_dense_layers=min(dense_layers, layers - 1) if experts and not pattern else 0,
    )


def cluster_with_memory(num_gpus: int, memory_bytes: float) -> ClusterSpec:
    """The usual cluster with GPUs of another capacity."""
    spec = default_cluster("h100-sxm", 16 if num_gpus == 16 else 8).spec
    if num_gpus < 8:
        node = replace(spec.nodes[0], gpus_per_node=num_gpus, nics_per_node=num_gpus)
        spec = replace(spec, nodes=(node,))
    return replace(spec, gpus=(replace(gpu("h100-sxm"), memory_bytes=memory_bytes),))


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    """Small requests: dense and mixtures of experts, odd layer counts, often tight memory, sometimes a pin."""
    experts = draw(st.sampled_from([0, 0, 4]))
    hybrids = ["lLA", "ME*", "LaA", "WSH"] if experts else ["la", "M-*-", "lla"]
    model = small_model(
        layers=draw(st.integers(1, 6)),
        experts=experts,
        pattern=draw(st.sampled_from(["", *hybrids])),
        dense_layers=draw(st.integers(0, 2)),
        vocab=draw(st.sampled_from([32_000, 262_144])),
        hidden=draw(st.sampled_from([1024, 4096])),
        kv_heads=draw(st.sampled_from([2, 8])),
    )
    if tower_layers := draw(st.sampled_from([0, 0, 0, 1, 3])):
        model = seeing(model, tower_layers, draw(st.sampled_from([128, 1024])))
    if module := draw(st.sampled_from([False] * 5 + [True])):
        tower_layers, tokens = 0, draw(st.sampled_from([0, 256]))
        model = traced(draw(st.integers(1, 4)), tokens=tokens, recognised=draw(st.booleans()))
    num_gpus = draw(st.sampled_from([1, 2, 2, 3, 4, 4, 6, 8, 16]))
    share = draw(st.sampled_from([0.3, 0.6, 1.0, 1.2, 1.5, 2.0, 4.0]))
    memory = 3 * GIB + share * 18 * parameter_count(model) / num_gpus
    pins = draw(
        st.sampled_from([{}, {}, {"tp": 2}, {"pp": 2}, {"recompute": "full"}, {"zero_stage": 1}, {"cp": 2}])
    )
    return PlanRequest(
        memory_headroom=draw(st.sampled_from([0.0, 0.0, None])),
        model=model,
        cluster=cluster_with_memory(num_gpus, memory),
        job=TrainingJob(
            sequence_length=1 if module else draw(st.sampled_from([256, 2048])),
            global_batch_size=draw(st.sampled_from([2, 6, 8])),
            images=draw(st.sampled_from([None, 3])) if tower_layers else None,
            frozen_tower=bool(tower_layers) and draw(st.booleans()),
        ),
        stack=draw(
            st.sampled_from(
                [
                    "megatron-core",
                    "megatron-bridge-modules",
                    "megatron-bridge-overlap",
                    "torchtitan",
                    "megatron-lm-2021",
                ]
            )
        ),
        pins=pins,
    )


def every_layout(s: Problem) -> Iterator[dict[str, Any]]:
    """Degrees of every layout, by plain loops."""
    N, B, S = s.cluster.num_gpus, s.job.global_batch_size, s.job.sequence_length
    for tp, cp, pp, dp in itertools.product(range(1, N + 1), repeat=4):
        if tp * cp * pp * dp > N or B % dp or S % cp:
            continue
        for size, ep, split in itertools.product(
            range(1, B // dp + 1), range(1, max(2, s.model.num_experts + 1)), (1, tp)
        ):
            if (B // dp) % size == 0 and (split == 1 or (s.model.is_moe and tp > 1)):
                yield {
                    "tp": tp,
                    "cp": cp,
                    "pp": pp,
                    "dp": dp,
                    "microbatch_size": size,
                    "ep": ep,
                    "expert_tp": split,
                }


def every_table(s: Problem, pins: dict[str, Any]) -> LayoutTable:
    """Every legal layout as a table: degrees crossed with everything else, judged by the rules."""
    idle = s.stack.timing.flash_attention and s.stack.timing.recomputed_modules == ("core_attn",)
    policies = [p for p in s.stack.supports.recomputes if p != "selective" or not idle]
    rows: dict[tuple[Any, ...], None] = {}
    names = [field.name for field in fields(ParallelLayout)]
    for degrees in every_layout(s):
        ranks, members = (
            degrees["dp"] * degrees["cp"],
            [a for a in ("pp", "dp", "cp", "tp") if degrees[a] > 1],
        )
        orders = {tuple(a for a in order if a in members): order for order in AXIS_ORDERS}
        parts = [n for n in range(1, ranks + 1) if ranks % n == 0]
        pairs = [("1f1b", 1)] if degrees["pp"] == 1 else [
            (schedule, v) for schedule in s.stack.supports.schedules for v in range(1, (s.model.num_layers + 2) // degrees["pp"] + 1)
        ]  # fmt: skip
        for (schedule, v), zero, policy, parallel, kind, order in itertools.product(
            pairs, s.stack.supports.zero_stages, policies, {False, degrees["tp"] > 1},
            s.stack.supports.cp_kinds if degrees["cp"] > 1 else s.stack.supports.cp_kinds[:1], orders.values(),
        ):  # fmt: skip
            for shard in parts if zero else [ranks]:
                chosen = degrees | {
                    "virtual_stages": v, "schedule": schedule, "zero_stage": zero, "shard_degree": shard,
                    "recompute": policy, "sequence_parallel": parallel, "cp_kind": kind, "axis_order": order,
                }  # fmt: skip
                if all(chosen[name] == value for name, value in pins.items()):
                    rows[tuple(chosen[name] for name in names)] = None
    codes = {"schedule": SCHEDULES, "recompute": RECOMPUTES, "cp_kind": CP_KINDS, "axis_order": AXIS_ORDERS}
    columns = {
        name: np.array([codes[name].index(row[i]) if name in codes else row[i] for row in rows])
        for i, name in enumerate(names)
    }
    if not rows:
        return LayoutTable.from_rows([])
    table = LayoutTable(**columns)
    keep, _ = legal(s, table)
    return table.take(keep)


def exhaustive(request: PlanRequest) -> float:
    """Least step time over every legal layout and every split of it that fits; infinite if there is none."""
    s = problem_of(request, CAL)
    table = every_table(s, dict(request.pins))
    best = math.inf
    pipelines = np.stack([table.pp, table.virtual_stages, table.schedule], axis=1)
    for pipeline in np.unique(pipelines, axis=0):
        same = table.take(np.flatnonzero((pipelines == pipeline).all(axis=1)))
        best = min(best, best_of_same_pipeline(s, same))
    return best


def best_of_same_pipeline(s: Problem, table: LayoutTable) -> float:
    """Least step time of layouts of one pipeline, over every split of the layers."""
    priced = priced_columns(s, table)
    layout, runs = table.layout(0), [run.count for run in layer_runs(s.model)]
    chunk_ranks = ranks_of_chunks(layout)
    best = math.inf
    for layers in splits_of(sum(runs), len(chunk_ranks), single=layout.virtual_stages == 1):
        rows = runs_of_ranks(chunk_ranks, layers, tuple(runs), layer_order(s.model))
        best = min(best, float(split_seconds(s, priced, rows).min(initial=math.inf)))
    return best


def splits_of(total: int, chunks: int, *, single: bool) -> list[tuple[int, ...]]:
    """Every split: any with one chunk a rank, else equal chunks but for the ends, empty as a last resort."""
    if single:
        return [c for c in itertools.product(range(1, total + 1), repeat=chunks) if sum(c) == total]
    longest = -(-total // chunks)
    for least in (1, 0):
        ends = itertools.product(range(least, longest + 1), repeat=2)
        every = [(first, *(longest,) * (chunks - 2), last) for first, last in ends]
        found = [layers for layers in every if sum(layers) == total]
        if found:
            return found
    return []


def split_seconds(s: Problem, priced: Priced, rows: tuple[tuple[int, ...], ...]) -> Vector:
    """Step time of layouts under one split, recomputing the fewest layers; infinite if none fit."""
    c = priced.costs
    ranks = [rank_seconds(s, priced, rank, np.array(row, dtype=float)) for rank, row in enumerate(rows)]
    t, u = np.stack([t for t, _ in ranks]), np.stack([u for _, u in ranks])
    slowest = t.max(axis=0)
    with np.errstate(invalid="ignore"):
        step = (
            c.num_microbatches * slowest
            + c.bubble_weight * (t.sum(axis=0) - slowest)
            + u.max(axis=0)
            + c.constant_s
        )
    return np.where(np.isfinite(slowest), step, math.inf)


def rank_seconds(s: Problem, priced: Priced, rank: int, layers: Vector) -> tuple[Vector, Vector]:
    """Microbatch and tail seconds of one rank, recomputing one layer more at a time until it fits."""
    c, table = priced.costs, priced.table
    first, last = (
        np.asarray(flag, dtype=float) for flag in holds_ends(table.schedule, table.pp, rank + 0 * table.pp)
    )
    M = num_microbatches(table, s.job)
    relief = priced.pieces.first_backward_relief
    held = held_microbatches(relief, table.schedule, table.pp, table.virtual_stages, M, rank)
    fixed = c.every_s + first * c.first_s + last * c.last_s
    t = np.full(len(table), math.inf)
    full = table.recompute == RECOMPUTES.index("full")
    for layers_recomputed in range(int(layers.sum()) + 1):
        recomputed = first_runs_recomputed(priced, layers, layers_recomputed)
        parts = stage_parts(
            priced.pieces,
            layers=list(layers),
            recomputed=list(recomputed),
            in_flight=held,
            first=first,
            last=last,
        )
        fits = (sum(parts.values()) <= s.memory_budget_bytes) & (full | (layers_recomputed == 0))
        seconds = layers @ c.layer_s + (recomputed * c.recompute_s).sum(axis=0) + fixed
        t = np.where(np.isinf(t) & fits, seconds, t)
    tails = np.einsum("k,jkn->jn", layers, c.tail_layer_s) + first * c.tail_first_s + last * c.tail_last_s
    return t, tails.max(axis=0)


def first_runs_recomputed(priced: Priced, layers: Vector, layers_recomputed: int) -> Vector:
    """Recomputed layers of each run: those that free most bytes per second first, shape (runs, layouts)."""
    rows = len(priced.table)
    freed = [np.broadcast_to(k.saved_bytes - k.saved_bytes_recomputed, (rows,)) for k in priced.pieces.layers]
    order = np.argsort(-np.stack(freed) / np.maximum(priced.costs.recompute_s, 1e-30), axis=0, kind="stable")
    recomputed, left = np.zeros((len(layers), rows)), np.full(rows, float(layers_recomputed))
    for place in range(len(layers)):
        run = order[place]
        take = np.minimum(layers[run], left)
        recomputed[run, np.arange(rows)] = take
        left = left - take
    return recomputed


@pytest.mark.slow
@settings(max_examples=tries(24, 300), deadline=None)
@given(request=requests())
def test_the_search_finds_the_optimum_of_exhaustive_enumeration(request: PlanRequest) -> None:
    """The plan is as fast as the best of all layouts and splits, proven, legal, and absent only if all are."""
    best_s = exhaustive(request)
    done = explore(request, CAL)
    if isinstance(done, tuple) or done.best is None:
        assert math.isinf(best_s)
        return
    assert done.best.step_time_s == pytest.approx(best_s, rel=RELATIVE)
    assert done.best is not None
    assert certificate(done, done.best).status == "proven"
    assert done.bound <= best_s * (1 + RELATIVE)
    s = done.problem
    assert check(s, done.best.layout) == ()
    assert done.best.peak_memory_bytes <= s.memory_budget_bytes * (1 + RELATIVE)
    if request.memory_headroom is None:
        chance = out_of_memory_chance(
            done.best.peak_memory_bytes, s.cluster.gpu.memory_bytes, peak_spread(s.case)
        )
        assert fit_of(chance) == "fits"


TRACED = list(itertools.product((2, 4, 8), (0, 256), (0.5, 1.2, 4.0), (0, 2)))
"""GPUs, tokens of the block, share of the memory that all need, tensor ranks that are asked for (0: any)."""
OF_OTHER_PAIRS = [
    case
    for case, places in zip(TRACED, itertools.product(range(3), range(2), range(3), range(2)), strict=True)
    if sum(places) % 3
]
"""What the suite tries has every pair of values."""


@pytest.mark.parametrize(("num_gpus", "tokens", "share", "tp"), cases_of_run(TRACED, OF_OTHER_PAIRS))
def test_traced_blocks_on_tensor_ranks_are_searched_in_full(
    num_gpus: int, tokens: int, share: float, tp: int
) -> None:
    """With a sequence that can be split and without, memory tight and wide: the optimum of all layouts."""
    model = traced(3, tokens=tokens)
    memory = 3 * GIB + share * 18 * parameter_count(model) / num_gpus
    request = PlanRequest(
        memory_headroom=0.0,
        model=model,
        cluster=cluster_with_memory(num_gpus, memory),
        job=TrainingJob(sequence_length=1, global_batch_size=8),
        stack="torchtitan",
        pins={"tp": tp} if tp else {},
    )
    best_s = exhaustive(request)
    done = explore(request, CAL)
    if isinstance(done, tuple) or done.best is None:
        assert math.isinf(best_s)
        return
    assert done.best.step_time_s == pytest.approx(best_s, rel=RELATIVE)
    assert certificate(done, done.best).status == "proven"
