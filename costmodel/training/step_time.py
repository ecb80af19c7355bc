"""From the time of a layer to the time of a step, for many layouts before their layers are split.

One code path serves the scalar estimate (arrays of length one), the scoring of many layouts, and the fit of
the constants over all measured runs. The equations:

    ZeRO-3 layer  = max(layer, parameter traffic) + share · min(layer, parameter traffic) + its memory passes
    recomputed layer = forward and backward, each at least as long as an offloaded input travels
    tail          = reduction and gathering not hidden under the last backward and first forward,
                    then the optimizer

A module that predicts a further token is a layer of the head's rank, and its head is once more the model's.

Legend: ``K`` runs of layers, ``c`` constants, ``e`` environment; arrays end in the layout axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.layout import RECOMPUTES, SCHEDULES
from costmodel.pipeline.bubble import waited_sends
from costmodel.pipeline.schedules import RECORDS, chunks_per_rank, column
from costmodel.training.constants import Constants
from costmodel.training.layer_time import LayerStep, embedding_step, head_step, layer_step, mtp_steps
from costmodel.training.parts import stacked_parts, summed
from costmodel.training.raw_times import Features, input_bytes, stage_message_bytes
from costmodel.training.slowdowns import Environment
from topology.base.arrays import Index, Quantity, Vector
from topology.base.columns import Columns

_EARLY_CHUNKS = column(lambda schedule: schedule.early_chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostColumns(Columns):
    """The fields of `StageCosts` that concern time, for many layouts: the last axis is the layout.

    `first_s`, `last_s` and `every_s` are seconds per microbatch of the rank with the embedding, the rank with
    the head, and every rank.
    """

    layer_s: Vector
    recompute_s: Vector
    first_s: Vector
    last_s: Vector
    every_s: Vector
    tail_layer_s: Vector
    tail_first_s: Vector
    tail_last_s: Vector
    num_microbatches: Vector
    bubble_weight: Vector
    forward_share: Vector
    weight_share: Vector
    constant_s: Vector
    stretch: Vector
    host_share: Vector


def bubble_weight(f: Features, step: LayerStep) -> Vector:
    """Share of the other ranks' time left as bubble by each layout's schedule.

    1/V of the schedule's chunks, or by how forward, input gradient and weight gradient share a microbatch
    (`costmodel.pipeline.schedules`).

    Args:
        f: Raw times.
        step: A layer, for the shares of F and W.
    """
    n, F, W = f.layout_numbers, step.forward_share[f.placed_shard], step.weight_share[f.placed_shard]
    share = 1 / np.asarray(chunks_per_rank(n.schedule, n.virtual_stages))
    for code, name in enumerate(SCHEDULES):
        closed_form, at = RECORDS[name].bubble, np.flatnonzero(n.schedule == code)
        if closed_form is not None and len(at):
            share[at] = closed_form(n.pp[at], n.num_microbatches[at], F[at], W[at])
    return share


def step_stretch(nodes: Quantity, level: Quantity, c: Constants) -> Vector:
    """Factor on the times of a step: the level of the user's own runs, and stragglers among nodes.

    stretch = level · (1 + jitter · log₂ nodes)
    """
    return np.asarray(level * (1 + c.jitter * np.log2(nodes)))


def compose(f: Features, c: Constants, *, by_part: bool = False) -> CostColumns:
    """Time costs of every layout, before its layers are split over pipeline ranks.

    Args:
        f: Raw times.
        c: Constants.
        by_part: Keep the parts apart whose sum every array of seconds is: a first axis of
            `costmodel.training.parts.PARTS` more.
    """
    numbers, e, traffic = f.layout_numbers, f.environment, _scaled_traffic(f, c)
    add = stacked_parts if by_part else summed
    steps = [layer_step(part, f, c) for part in f.runs]
    every = [*steps, *mtp_steps(f, c)]
    ends = (embedding_step(f, c), head_step(f, c))
    K, stretch = len(steps), step_stretch(numbers.nodes, e.level, c)
    layers = [_layer(run, step, f, traffic) for run, step in enumerate(every)]
    kept_s = [layer.kept_s for layer in layers]
    if by_part:
        kept_s = [_layer_parts(step, layer, f) for step, layer in zip(every, layers, strict=True)]
    embedding, head = (add(compute_s=end.compute_s, tp_s=end.tp_s)[..., f.placed_shard] for end in ends)
    first = embedding + add(dp_s=traffic.gather[-2]) + add(dp_s=traffic.scatter[-2])
    last = head + add(dp_s=traffic.gather[-1]) + add(dp_s=traffic.scatter[-1])
    if f.mtp is not None:
        last = last + f.mtp_layers * (head + kept_s[-1])
    exchanged = (traffic.gather[:K] + traffic.scatter[:K]).max(axis=0)
    exposed, update = _tail(f, c, traffic, layers)
    tail = add(dp_s=exposed, optimizer_s=update)
    tail_last = tail[..., -1, :]
    if f.mtp is not None:
        tail_last = tail_last + f.mtp_layers * tail[..., -3, :]
    return CostColumns(
        layer_s=np.stack([stretch * seconds for seconds in kept_s[:K]], axis=-2),
        recompute_s=add(recompute_s=np.stack([stretch * layer.extra_s for layer in layers[:K]])),
        first_s=stretch * first,
        last_s=stretch * last,
        every_s=stretch * add(dp_s=exchanged, host_s=e.host * e.host_s_per_microbatch),
        tail_layer_s=tail[..., :K, :],
        tail_first_s=tail[..., -2, :],
        tail_last_s=tail_last,
        num_microbatches=numbers.num_microbatches,
        bubble_weight=np.where(numbers.pp > 1, bubble_weight(f, steps[-1]), 0.0),
        forward_share=steps[-1].forward_share[f.placed_shard],
        weight_share=steps[-1].weight_share[f.placed_shard],
        constant_s=add(pp_s=stretch * _sends(f, c), host_s=e.level * e.host * c.step_fixed_s),
        stretch=stretch,
        host_share=_host_share(steps[-1])[f.placed_shard],
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """Seconds of a layer and microbatch beside its parameters' traffic, by layout.

    `kept_s` is its forward and backward under the layout's own policy, what is recomputed in full kept;
    `extra_s` what recomputing it in full adds; `backward_s` its backward alone with nothing recomputed.
    """

    forward_s: Vector
    backward_s: Vector
    kept_s: Vector
    extra_s: Vector


def _layer(run: int, step: LayerStep, f: Features, traffic: _Traffic) -> _Layer:
    """A layer of a run, or of a module that stands after the runs."""
    e, base = f.environment, _kept_policy(f)
    none, full = RECOMPUTES.index("none"), RECOMPUTES.index("full")
    away = e.inputs_away * input_bytes(f) / e.host_link_bytes_per_s
    out_s = traffic.gather_memory_s[run]
    in_s = out_s + traffic.scatter_memory_s[run]
    forward = out_s + _with_parameters(step.forward_s[f.placed_shard], traffic.gather[run], e)
    exchange = traffic.gather[run] + traffic.scatter[run]
    backward = in_s + _with_parameters(step.backward_s[base, f.placed_shard], exchange, e)
    once_more = e.regathers_recomputed * traffic.gather[run]
    recomputing = in_s + _with_parameters(step.backward_s[full, f.placed_shard], exchange + once_more, e)
    waits = np.maximum(0.0, away - forward) + np.maximum(0.0, away - recomputing)
    return _Layer(
        forward_s=forward,
        backward_s=in_s + _with_parameters(step.backward_s[none, f.placed_shard], exchange, e),
        kept_s=forward + backward,
        extra_s=recomputing + waits - backward,
    )


def _layer_parts(step: LayerStep, layer: _Layer, f: Features) -> Vector:
    """The seconds of a layer by part: each is what it adds to those before it, up to what is kept.

    Kernels, exposed transfers, the host that launches them, what the policy repeats, parameters' traffic.
    """
    base, at = _kept_policy(f), f.placed_shard
    parts = {name: getattr(step, name)[at] for name in ("compute_s", "tp_s", "cp_s", "ep_s")}
    plain = step.forward_s[at] + step.backward_s[RECOMPUTES.index("none"), at]
    repeated = step.forward_s[at] + step.backward_s[base, at]
    return stacked_parts(
        **parts,
        host_s=np.maximum(0.0, plain - summed(**parts)),
        recompute_s=repeated - plain,
        dp_s=layer.kept_s - repeated,
    )


def _kept_policy(f: Features) -> Index:
    """Recompute policy of the layers that are not recomputed in full."""
    chosen, full = f.layout_numbers.recompute, RECOMPUTES.index("full")
    return np.where(chosen == full, RECOMPUTES.index("none"), chosen)


def _host_share(step: LayerStep) -> Vector:
    """Host time of a layer over the time of the layer, at most 1."""
    return np.asarray(np.minimum(1.0, step.host_s / (step.forward_s + step.backward_s[0])))


@dataclass(frozen=True, slots=True)
class _Traffic:
    """Data-parallel seconds inside a step, shape (parts, layouts): every microbatch, then once a step."""

    gather: Vector
    scatter: Vector
    step_gather: Vector
    step_reduce: Vector
    tied: Vector
    last_bucket: Vector
    updated: Vector
    update_s: Vector
    gather_memory_s: Vector
    scatter_memory_s: Vector


def _scaled_traffic(f: Features, c: Constants) -> _Traffic:
    """Gather every layout's traffic, scaled from the collective alone to the collective in a step."""
    t, at = f.traffic, f.replication
    factor = f.environment.exchange * np.where(t.network, c.network_in_step, 1.0)
    return _Traffic(
        gather=(factor * t.microbatch_gather_s)[:, at],
        scatter=(factor * t.microbatch_reduce_s)[:, at],
        step_gather=(factor * t.step_gather_s)[:, at],
        step_reduce=(factor * t.step_reduce_s)[:, at],
        tied=(factor * t.tied_s)[at],
        last_bucket=(factor * t.last_bucket_s)[at],
        updated=t.updated_parameters[:, at],
        update_s=t.update_s[:, at],
        gather_memory_s=(t.microbatch_gathered_bytes / f.environment.memory_bandwidth_bytes_per_s)[:, at],
        scatter_memory_s=(t.microbatch_reduced_bytes / f.environment.memory_bandwidth_bytes_per_s)[:, at],
    )


def _with_parameters(layer: Vector, exchange: Vector, e: Environment) -> Vector:
    """Time of a layer beside the traffic of its parameters (zero below ZeRO-2)."""
    share = np.where(e.fsdp_prefetch, e.fsdp_exposed_share, 1.0)
    return np.asarray(np.maximum(layer, exchange) + share * np.minimum(layer, exchange))


def _tail(f: Features, c: Constants, traffic: _Traffic, layers: Sequence[_Layer]) -> tuple[Vector, Vector]:
    """Linear forms of the exchange after the last microbatch, and the update: of runs, modules and ends.

    Reduction R hides under the last backward B, and gathering A under the first forward F, as far as they
    overlap: exposed = κ·R + (1 − κ)·max(0, R − w·B) and likewise for A, so the tail is the largest of four
    linear forms. What is recomputed is no part of B: it delays gradients by as much as it hides. With
    interleaving the early chunks finish early: the window holds 1 + P(V − 1)/V
    microbatches instead of one, with P at most M. Of buckets whose size was said the last, b, is full when
    there is no backward left: κ·(R − b) + b + (1 − κ)·max(0, R − b − w·B), on the rank that ends last.
    """
    e, n = f.environment, f.layout_numbers
    in_window = np.minimum(n.pp, n.num_microbatches) * (n.virtual_stages - 1) / n.virtual_stages
    window = c.gradient_window * (1 + np.where(_EARLY_CHUNKS[n.schedule], in_window, 0.0))
    stays_r = np.where(e.gradient_overlap, c.contention, 1.0)
    stays_a = np.where(e.parameter_overlap, c.contention, 1.0)
    stretch = step_stretch(n.nodes, e.level, c)
    R, A = traffic.step_reduce, traffic.step_gather
    every = stays_r * R + stays_a * A
    every[-2:] += traffic.tied
    shown_r, shown_a = (1 - stays_r) * R, (1 - stays_a) * A
    shown_r[:-2] -= (1 - stays_r) * window * np.stack([layer.backward_s for layer in layers])
    shown_a[:-2] -= (1 - stays_a) * window * np.stack([layer.forward_s for layer in layers])
    forms = np.stack([every, every + shown_a, every + shown_r, every + shown_a + shown_r])
    forms[:2, -2] += (1 - stays_r) * traffic.last_bucket
    forms *= stretch
    return forms, e.level * update_seconds_per_parameter(e, c) * traffic.updated + e.level * traffic.update_s


def update_seconds_per_parameter(e: Environment, c: Constants) -> Quantity:
    """Seconds of an update: what it moves in the GPU's memory, and then what the host's share takes."""
    moved = (c.optimizer_bytes + e.update_bytes) / e.memory_bandwidth_bytes_per_s
    return (1 - e.host_updated) * e.passes * moved + e.host_updated * e.host_update_s


def _sends(f: Features, c: Constants) -> Vector:
    """Exposed pipeline sends of a step; a stack that overlaps interleaved sends shows a part of them."""
    e, n = f.environment, f.layout_numbers
    alone = f.send_s[f.replication] + f.send_s_per_byte[f.replication] * stage_message_bytes(f)
    values = c.p2p_exposed * alone + c.p2p_latency_s
    P, M, V = n.pp, n.num_microbatches, n.virtual_stages
    shown = np.where(e.p2p_overlap, c.p2p_overlapped, 1.0)
    return np.asarray(e.exchange * values * waited_sends(P, M, V, shown))
