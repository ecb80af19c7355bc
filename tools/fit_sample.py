"""All measured runs as arrays, so that other constants can be tried on them in milliseconds.

Raw times are computed once. Every run becomes one entry of every array, with two runs of layers, a module
that predicts a further token (most have none of it) and eight kinds of pipeline rank whatever its model and
layout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from costmodel.accuracy.training import alike
from costmodel.accuracy.training_runs import TrainingRun, read_rows, read_runs
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable
from costmodel.models.spec import layer_order, layer_runs
from costmodel.pipeline.even_split import RankTypes, rank_types
from costmodel.training.data_parallel import GradientTraffic
from costmodel.training.raw_times import Features, features_of
from topology.base.arrays import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measured runs, ready to be predicted under any constants."""

    features: Features
    types: RankTypes
    recomputed: Vector
    measured: Vector
    weight: Vector
    source: NDArray[Any]
    stack: NDArray[Any]
    layout: NDArray[Any]
    name: NDArray[Any]
    dense: NDArray[np.bool_]

    def take(self, index: NDArray[Any]) -> Sample:
        """Some of the runs."""
        f = _map(self.features, lambda a: a[..., index])
        rows = np.arange(int(np.arange(len(self.measured))[index].size))
        f = replace(f, placed_shard=rows, replication=rows)
        by_row = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("features", "types")
        }
        return Sample(
            features=f,
            types=self.types.take(index),
            **{k: v[index] for k, v in by_row.items()},
        )


def _map(value: Any, change: Any) -> Any:
    """Apply `change` to every array of a nested dataclass."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{f.name: _map(getattr(value, f.name), change) for f in fields(value)})
    if isinstance(value, tuple):
        return tuple(_map(item, change) for item in value)
    return change(value)


def _zip(values: Sequence[Any]) -> Any:
    """Concatenate nested dataclasses of arrays along their last axis."""
    first = values[0]
    if is_dataclass(first) and not isinstance(first, type):
        return type(first)(**{f.name: _zip([getattr(v, f.name) for v in values]) for f in fields(first)})
    if isinstance(first, tuple):
        return tuple(_zip([v[i] for v in values]) for i in range(len(first)))
    return np.concatenate(values, axis=-1)


PER_PLACED_SHARD = ("hidden_elements", "single", "paired", "tp", "tp_inside", "over_sockets")
PER_REPLICATION = ("send_s", "send_s_per_byte")
"""Arrays of `Features` with one entry per placed cut, and per replication."""


BY_PART = (
    "step_reduce_s", "step_gather_s", "microbatch_reduce_s", "microbatch_gather_s",
    "microbatch_gathered_bytes", "microbatch_reduced_bytes", "updated_parameters", "update_s",
)  # fmt: skip
"""Traffic with one row per part."""


def _with_row(traffic: GradientTraffic, at: int, size: int) -> GradientTraffic:
    """The same traffic with a part that has none before this one."""
    rows = {name: np.insert(getattr(traffic, name), at, np.zeros(size), axis=0) for name in BY_PART}
    return replace(traffic, **rows)


def _expanded(f: Features, size: int) -> Features:
    """One entry per run in every array, two runs of layers in every model (the first may be empty)."""
    runs = tuple(_map(part, lambda a: a[f.placed_shard]) for part in f.runs)
    traffic = _map(f.traffic, lambda a: a[..., f.replication])
    if f.mtp is None:
        mtp, traffic = _map(runs[-1], np.zeros_like), _with_row(traffic, len(runs), size)
    else:
        mtp = _map(f.mtp, lambda a: a[f.placed_shard])
    if len(runs) == 1:
        runs, traffic = (_map(runs[0], np.zeros_like), *runs), _with_row(traffic, 0, size)
    rows_, names = np.arange(size), {field.name for field in fields(f)}
    return replace(
        f,
        environment=_map(f.environment, lambda a: np.full(size, float(a))),
        runs=runs,
        mtp=mtp,
        mtp_layers=np.full(size, f.mtp_layers),
        embedding=_map(f.embedding, lambda a: a[f.placed_shard]),
        head=_map(f.head, lambda a: a[f.placed_shard]),
        traffic=traffic,
        placed_shard=rows_,
        replication=rows_,
        **{name: getattr(f, name)[f.placed_shard] for name in PER_PLACED_SHARD if name in names},
        **{name: getattr(f, name)[f.replication] for name in PER_REPLICATION},
    )


def load_sample(path: str) -> Sample:
    """Raw times of every timed run of a table."""
    rows = read_rows(path)
    decoded = read_runs(rows)
    runs = {i: r for i, r in enumerate(decoded) if isinstance(r, TrainingRun) and r.step_time_s}
    cal = load_calibration()
    pieces: list[tuple[Features, RankTypes]] = []
    order: list[TrainingRun] = []
    for members in alike(runs).values():
        shared, layouts = next(iter(members.values())), [run.layout for run in members.values()]
        table = LayoutTable.from_rows(layouts)
        f = features_of(shared.case(cal), table)
        counts = [run.count for run in layer_runs(shared.model)]
        order_of, modules = layer_order(shared.model), shared.job.mtp_layers
        types = rank_types(counts, table, order_of, modules, shared.chunk_layers)
        pieces.append((_expanded(f, len(layouts)), _padded(types)))
        order += members.values()
    source = np.array([run.source for run in order])
    number = {s: int((source == s).sum()) for s in set(source)}
    every = np.arange(len(order))
    return Sample(
        features=replace(_zip([f for f, _ in pieces]), placed_shard=every, replication=every),
        types=RankTypes.concat([t for _, t in pieces]),
        recomputed=np.array([run.recomputed_share for run in order]),
        measured=np.array([float(run.step_time_s or 0) for run in order]),
        weight=np.array([number[s] ** -0.5 for s in source]),
        source=source,
        stack=np.array([run.stack.name for run in order]),
        layout=np.array([f"{run.model.name} {run.job} {run.cluster.gpu.name} {run.layout}" for run in order]),
        name=np.array([run.name for run in order]),
        dense=np.array([not run.model.is_moe for run in order]),
    )


MOST_TYPES = 8


def _padded(types: RankTypes) -> RankTypes:
    """Eight kinds of rank and two runs of layers, whatever the pipeline."""
    layers = types.layers
    if layers.shape[1] == 1:
        layers = np.concatenate([np.zeros_like(layers), layers], axis=1)
    missing = MOST_TYPES - len(layers)

    def pad(a: Vector) -> Vector:
        return np.concatenate([a, np.repeat(a[:1], missing, axis=0)])

    ranks = np.concatenate([types.ranks, np.zeros((missing, types.ranks.shape[1]))])
    return RankTypes(
        layers=pad(layers), ranks=ranks, first=pad(types.first), last=pad(types.last), stage=pad(types.stage)
    )
