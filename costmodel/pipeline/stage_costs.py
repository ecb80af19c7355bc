"""One layout as its pipeline sees it: what a layer costs, what the ends cost, and how a split becomes a step.

The stage solver chooses how many layers of each run of identical layers a pipeline rank holds, and how many
of them it recomputes. Everything it needs is linear in those counts, so the same few numbers serve the
solver, the exact dynamic program that checks it, and the estimate that is printed.

Legend: ``n[s,k]`` layers of run ``k`` on rank ``s`` · ``r[s,k]`` recomputed ones · ``M`` microbatches ·
``t_s`` seconds of one microbatch on rank ``s`` · ``u_s`` seconds rank ``s`` needs after its last microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.pipeline.stages import layers_of_chunks
from topology.base.arrays import Quantity, Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Costs of one layout, before its layers are split over pipeline ranks.

    Attributes:
        runs: Layers of each kind, in order of appearance: runs of identical layers, unless `order` says more.
        layer_s: Per run, forward and backward of one layer and microbatch, exposed communication included.
        recompute_s: Per run, what recomputing one layer adds.
        static_bytes: Per run, weights, gradients and optimizer of one layer on one rank.
        saved_bytes: Per run, activations one layer keeps per microbatch in flight.
        saved_bytes_recomputed: The same if the layer is recomputed.
        fixed_s: Per rank, seconds per microbatch of what is not a layer (embedding, head).
        fixed_static_bytes: Per rank, bytes of what is not a layer.
        fixed_activation_bytes: Per rank, activations that do not grow with the microbatches in flight
            (logits).
        in_flight: Per rank, microbatches whose activations are kept at once.
        working_bytes: Transient bytes on every rank.
        recompute_working_bytes: Per rank, added if it recomputes any layer.
        tail_layer_s: Shape (forms, runs): seconds after the last microbatch per layer, one row per linear
            form.
        tail_fixed_s: Shape (forms, ranks): the part of each form that is not a layer.
        num_microbatches: Microbatches per step and pipeline.
        bubble_weight: Share of the other ranks' time that the schedule leaves as bubble (1 for 1F1B, 1/V
            interleaved).
        forward_share: Share of a microbatch's compute that is forward.
        weight_share: Share of it that is the gradient of weights.
        constant_s: Seconds of the step that depend on no split.
        capacity_bytes: What a rank may hold.
        order: Where the layers of each kind are, if not one kind after the other.
    """

    runs: tuple[int, ...]
    layer_s: tuple[float, ...]
    recompute_s: tuple[float, ...]
    static_bytes: tuple[float, ...]
    saved_bytes: tuple[float, ...]
    saved_bytes_recomputed: tuple[float, ...]
    fixed_s: tuple[float, ...]
    fixed_static_bytes: tuple[float, ...]
    fixed_activation_bytes: tuple[float, ...]
    in_flight: tuple[float, ...]
    working_bytes: float
    recompute_working_bytes: tuple[float, ...]
    tail_layer_s: tuple[tuple[float, ...], ...]
    tail_fixed_s: tuple[tuple[float, ...], ...]
    num_microbatches: int
    bubble_weight: float
    forward_share: float = 1 / 3
    weight_share: float = 1 / 3
    constant_s: float
    capacity_bytes: float
    order: tuple[tuple[int, int], ...] = ()

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks the layers are split over."""
        return len(self.fixed_s)

    @property
    def fixed_bytes(self) -> tuple[float, ...]:
        """Per rank, all bytes of what is not a layer."""
        fixed = zip(self.fixed_static_bytes, self.fixed_activation_bytes, strict=True)
        return tuple(static + activations + self.working_bytes for static, activations in fixed)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlikeStages:
    """Costs of one layout whose stages run on unlike GPUs: those of each kind, and the kind of each stage.

    What is a number per rank is read of the stage's own kind; microbatches and sends are the same for all.
    Only schedules whose closed form holds for unequal ranks have them (1F1B).

    Attributes:
        kinds: Costs as if every rank were of this kind.
        kind_of_stage: Kind of every rank.
    """

    kinds: tuple[StageCosts, ...]
    kind_of_stage: tuple[int, ...]

    def rows(self, of_kind: Callable[[StageCosts], Vector]) -> Vector:
        """Rows of an array per rank, each of the rank's own kind."""
        every = np.stack([of_kind(kind) for kind in self.kinds])
        values: Vector = every[np.array(self.kind_of_stage), np.arange(len(self.kind_of_stage))]
        return values

    @property
    def runs(self) -> tuple[int, ...]:
        """Layers of each kind of layer."""
        return self.kinds[0].runs

    @property
    def num_microbatches(self) -> int:
        """Microbatches per step and pipeline."""
        return self.kinds[0].num_microbatches

    @property
    def bubble_weight(self) -> float:
        """Share of the other ranks' time that shows as bubble."""
        return max(kind.bubble_weight for kind in self.kinds)

    @property
    def constant_s(self) -> float:
        """Seconds of the step that depend on no split."""
        return max(kind.constant_s for kind in self.kinds)

    @property
    def in_flight(self) -> tuple[float, ...]:
        """Per rank, microbatches whose activations are kept at once."""
        return self.kinds[0].in_flight

    def of(self, rank: int) -> StageCosts:
        """Costs of the kind of one rank."""
        return self.kinds[self.kind_of_stage[rank]]


AnyStages = StageCosts | UnlikeStages


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSplit:
    """Layers of each run on each pipeline rank, and how many layers of the rank are recomputed.

    Attributes:
        layers_of_stage: Shape (ranks, runs).
        recompute_of_stage: Shape (ranks,); the layers that free most bytes per added second are taken first.
        layers_of_chunk: Layers of every chunk in model order, where those of the ranks do not decide them
            (`costmodel.pipeline.stages.layers_of_chunks`).
    """

    layers_of_stage: tuple[tuple[int, ...], ...]
    recompute_of_stage: tuple[int, ...]
    layers_of_chunk: tuple[int, ...] = ()

    @property
    def layers_of_rank(self) -> tuple[int, ...]:
        """Layers of every pipeline rank, of all kinds."""
        return tuple(sum(row) for row in self.layers_of_stage)

    def chunk_layers(self, chunk_ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Layers of every chunk in model order.

        Args:
            chunk_ranks: Pipeline rank of every chunk (`costmodel.pipeline.stages.ranks_of_chunks`).
        """
        return self.layers_of_chunk or layers_of_chunks(chunk_ranks, self.layers_of_rank)


def recompute_order(costs: StageCosts) -> tuple[int, ...]:
    """Runs in the order in which a rank recomputes their layers: most bytes freed per added second first."""
    freed = np.subtract(costs.saved_bytes, costs.saved_bytes_recomputed)
    seconds = np.maximum(costs.recompute_s, 1e-30)
    return tuple(int(run) for run in np.argsort(-freed / seconds, kind="stable"))


def recomputed_layers(costs: AnyStages, split: StageSplit) -> Vector:
    """Recomputed layers of each run on each rank, shape (ranks, runs)."""
    if isinstance(costs, UnlikeStages):
        return costs.rows(lambda stage_costs: recomputed_layers(stage_costs, split))
    left = np.asarray(split.recompute_of_stage, dtype=float)
    layers = np.asarray(split.layers_of_stage, dtype=float)
    recomputed = np.zeros_like(layers)
    for run in recompute_order(costs):
        recomputed[:, run] = np.minimum(layers[:, run], left)
        left = left - recomputed[:, run]
    return recomputed


def microbatch_seconds(costs: AnyStages, split: StageSplit) -> Vector:
    """Seconds of a microbatch per rank: t_s = Σ_k n[s,k]·layer_s[k] + r[s,k]·recompute_s[k] + fixed_s[s]."""
    if isinstance(costs, UnlikeStages):
        return costs.rows(lambda stage_costs: microbatch_seconds(stage_costs, split))
    layers = np.asarray(split.layers_of_stage, dtype=float)
    return np.asarray(
        layers @ np.asarray(costs.layer_s)
        + recomputed_layers(costs, split) @ np.asarray(costs.recompute_s)
        + np.asarray(costs.fixed_s)
    )


def tail_seconds(costs: AnyStages, split: StageSplit) -> Vector:
    """Seconds after the last microbatch: u_s = max_j (Σ_k n[s,k]·tail_layer_s[j,k] + tail_fixed_s[j,s])."""
    if isinstance(costs, UnlikeStages):
        return costs.rows(lambda stage_costs: tail_seconds(stage_costs, split))
    layers = np.asarray(split.layers_of_stage, dtype=float)
    forms = layers @ np.asarray(costs.tail_layer_s).T + np.asarray(costs.tail_fixed_s).T
    return np.asarray(forms.max(axis=1))


PHASES = ("microbatches", "fill", "tail", "once")
"""What follows one another in a step: every microbatch on the slowest rank, the others' filling and draining,
the exchange and update after the last, and what depends on no split."""


def step_phases(costs: AnyStages, split: StageSplit) -> tuple[float, float, float, float]:
    """Seconds of every one of `PHASES`: M·max_s t_s, β·(Σ_s t_s − max_s t_s), max_s u_s, constant."""
    t = microbatch_seconds(costs, split)
    slowest, tail = float(t.max()), float(tail_seconds(costs, split).max())
    filling = costs.bubble_weight * (float(t.sum()) - slowest)
    return costs.num_microbatches * slowest, filling, tail, costs.constant_s


def step_time(costs: AnyStages, split: StageSplit) -> float:
    """Seconds of one optimizer step, the sum of its `PHASES`.

    ``T = M·max_s t_s + β·(Σ_s t_s − max_s t_s) + max_s u_s + constant``: every microbatch passes the slowest
    rank, the other ranks fill and drain the pipeline once (β of it shows), then gradients are reduced and
    parameters updated. For 1F1B with equal ranks this is the closed form (M + P − 1)·t; for unequal ranks it
    lies between the lower bound max_s(M·t_s + Σ_{j<s} t_j) and the upper bound (M − 1)·max t + Σ t, and
    equals the latter.
    """
    return sum(step_phases(costs, split))


def stage_bytes(
    *,
    static_bytes: Sequence[Quantity],
    saved_bytes: Sequence[Quantity],
    saved_bytes_recomputed: Sequence[Quantity],
    layers: Sequence[Quantity],
    recomputed: Sequence[Quantity],
    in_flight: Quantity,
    fixed_bytes: Quantity,
    recompute_working_bytes: Quantity,
) -> Quantity:
    """Peak bytes of a stage; broadcasts. Estimates and scores call it, bounds and solvers invert it.

    fixed + Σ_k (n_k·static_k + in_flight·((n_k − r_k)·saved_k + r_k·saved_recomputed_k)), and the
    activations of one layer where any is recomputed.

    Args:
        static_bytes: Weights, gradients and optimizer of a layer, by run.
        saved_bytes: Activations of a layer and microbatch, by run.
        saved_bytes_recomputed: The same if the layer is recomputed.
        layers: Layers n of each run.
        recomputed: Recomputed ones r of each run.
        in_flight: Microbatches whose activations are held.
        fixed_bytes: What is not a layer.
        recompute_working_bytes: Activations that exist while a layer is recomputed.
    """
    total: Quantity = fixed_bytes
    any_recomputed: Quantity = 0.0
    runs = zip(layers, recomputed, static_bytes, saved_bytes, saved_bytes_recomputed, strict=True)
    for n, r, static, saved, input_only in runs:
        total = total + n * static + in_flight * ((n - r) * saved + r * input_only)
        any_recomputed = any_recomputed + r
    working: Quantity = np.greater(any_recomputed, 0) * recompute_working_bytes
    return total + working


def memory_of_stages(costs: AnyStages, split: StageSplit) -> Vector:
    """Bytes of each rank: state, activations of the microbatches in flight, and transient buffers."""
    if isinstance(costs, UnlikeStages):
        return costs.rows(lambda stage_costs: memory_of_stages(stage_costs, split))
    return np.asarray(
        stage_bytes(
            static_bytes=costs.static_bytes,
            saved_bytes=costs.saved_bytes,
            saved_bytes_recomputed=costs.saved_bytes_recomputed,
            layers=list(np.asarray(split.layers_of_stage, dtype=float).T),
            recomputed=list(recomputed_layers(costs, split).T),
            in_flight=np.asarray(costs.in_flight),
            fixed_bytes=np.asarray(costs.fixed_bytes),
            recompute_working_bytes=np.asarray(costs.recompute_working_bytes),
        )
    )


def fits_capacity(costs: AnyStages, split: StageSplit) -> bool:
    """Whether every rank stays within its capacity."""
    if isinstance(costs, UnlikeStages):
        room = np.array([kind.capacity_bytes for kind in costs.kinds])[np.array(costs.kind_of_stage)]
        return bool((memory_of_stages(costs, split) <= room).all())
    return bool((memory_of_stages(costs, split) <= costs.capacity_bytes).all())
