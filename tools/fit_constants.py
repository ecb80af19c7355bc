"""Fit the constants of the training cost model to measured runs, and cross-validate them.

    python tools/fit_constants.py ../shared/data/training_runs.csv             # tables before and after a fit
    python tools/fit_constants.py RUNS.csv --cross-validate layouts,sources    # held-out errors by source
    python tools/fit_constants.py RUNS.csv --cross-validate layouts,sources --save CSV    # keep the latter
    python tools/fit_constants.py RUNS.csv --write                             # store the fitted values

Raw times are computed once; every evaluation of all runs under other constants then takes some 30 ms. The
residual is log(predicted/measured) under a Huber loss, sources weigh in by the root of their number of rows,
and every constant is drawn towards its shipped value by a weak prior on its relative change, within physical
bounds.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from costmodel.accuracy import alike
from costmodel.calibration import load_calibration
from costmodel.composition import compose
from costmodel.constants import default_constants
from costmodel.environment import Environment
from costmodel.features import Features, features_of
from costmodel.layout import LayoutTable
from costmodel.model import layer_runs
from costmodel.runs import TrainingRun, read_rows, read_runs
from costmodel.scoring import even_step_seconds
from costmodel.splits import RankTypes, rank_types
from costmodel.stack import stacks

Vector = NDArray[np.float64]
HUBER = 0.06  # residuals beyond this count linearly
PRIOR = 3e-5  # loss of a relative change of one in a constant; runs cost half their squared residual
STEPS = 25

GLOBALS: Mapping[str, tuple[float, float, float]] = {
    "gemm_in_step": (1.049, 0.9, 1.3),
    "throttle_exponent": (0.167, 0.05, 0.4),
    "fp8_gemm": (0.75, 0.6, 1.2),
    "grouped_gemm": (0.8, 0.8, 2.5),
    "batched_matmul": (0.6, 0.25, 0.8),
    "batched_matmul_head_exponent": (0.3, 0.0, 1.0),
    "misaligned_head": (3.19, 1.0, 5.0),
    "scores_in_step": (0.82, 0.6, 2.0),
    "elementwise_in_step": (1.3, 1.0, 1.8),
    "loss_passes": (1.4, 0.8, 2.5),
    "scaleup_in_step": (1.1, 1.0, 1.3),
    "network_in_step": (1.0, 0.9, 1.4),
    "p2p_exposed": (2.0, 0.5, 3.0),
    "p2p_latency_s": (0.0001, 1e-5, 3e-4),
    "p2p_overlapped": (0.25, 0.0, 0.6),
    "step_fixed_s": (0.006, 0.0, 0.03),
    "jitter": (0.004, 0.0, 0.012),
    "blocking_host": (1.5, 1.0, 4.0),
    "expert_host_s": (0.0006, 0.0, 3e-3),
    "operation_recompute": (0.5, 0.2, 1.0),
}
"""Constants that are fitted: where the prior is centred, and the range in which each is physical."""

STACK_FIELDS: Mapping[str, tuple[float, float, float]] = {
    "megatron-lm-2021.product_slowdown": (0.92, 0.8, 1.1),
    "megatron-deepspeed.host_s_per_layer": (0.00092, 5e-4, 1.5e-3),
    "megatron-deepspeed.host_s_per_collective": (3e-05, 0.0, 2e-4),
    "megatron-deepspeed.host_s_across_sockets": (0.00015, 0.0, 6e-4),
    "megatron-deepspeed.host_s_per_microbatch": (0.0011, 0.0, 5e-3),
    "megatron-deepspeed.product_slowdown": (1.0, 0.8, 1.2),
    "megatron-deepspeed.tp_slowdown": (1.5, 1.0, 2.5),
    "megatron-core.host_s_per_layer": (4e-4, 1e-4, 1.5e-3),
    "megatron-core.tp_overlap_share": (0.5, 0.3, 0.8),
    "megatron-core.hopper_bf16_products": (0.93, 0.85, 1.05),
    "pytorch-fsdp1.fsdp_exposed_share": (0.43, 0.05, 0.7),
    "torchtitan.product_slowdown": (1.2, 0.9, 1.4),
}
"""Properties of stacks that are fitted: the same."""


SHARED: Mapping[str, tuple[str, ...]] = {
    "megatron-core.host_s_per_layer": ("megatron-core", "megatron-core-noov"),
}
"""Fitted properties that several profiles of one engine have in common."""


def profiles_of(name: str) -> tuple[str, ...]:
    """Profiles a fitted property belongs to."""
    return SHARED.get(name, (name.split(".", maxsplit=1)[0],))


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
    hopper: NDArray[np.bool_]

    def take(self, index: NDArray[Any]) -> Sample:
        """Some of the runs."""
        f = _map(self.features, lambda a: a[..., index])
        rows = np.arange(int(np.arange(len(self.measured))[index].size))
        f = replace(f, cut=rows, replication=rows)
        own = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("features", "types")
        }
        return Sample(
            features=f,
            types=_map(self.types, lambda a: a[..., index]),
            **{k: v[index] for k, v in own.items()},
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


def _expanded(f: Features, size: int) -> Features:
    """One entry per run in every array, and two runs of layers in every model (the first may be empty)."""
    runs = tuple(_map(part, lambda a: a[f.cut]) for part in f.runs)
    traffic = _map(f.traffic, lambda a: a[..., f.replication])
    if len(runs) == 1:
        runs = (_map(runs[0], np.zeros_like), *runs)
        rows = (
            "step_reduce_s",
            "step_gather_s",
            "microbatch_reduce_s",
            "microbatch_gather_s",
            "updated_parameters",
        )
        traffic = replace(
            traffic,
            **{n: np.concatenate([np.zeros((1, size)), getattr(traffic, n)]) for n in rows},
        )
    rows_ = np.arange(size)
    return replace(
        f,
        environment=_map(f.environment, lambda a: np.full(size, float(a))),
        runs=runs,
        embedding=_map(f.embedding, lambda a: a[f.cut]),
        head=_map(f.head, lambda a: a[f.cut]),
        hidden_elements=f.hidden_elements[f.cut],
        single=f.single[f.cut],
        tp=f.tp[f.cut],
        cut=rows_,
        traffic=traffic,
        send_s=f.send_s[f.replication],
        send_s_per_byte=f.send_s_per_byte[f.replication],
        replication=rows_,
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
        some, layouts = next(iter(members.values())), [run.layout for run in members.values()]
        table = LayoutTable.of(layouts)
        f = features_of(some.model, some.cluster, some.job, some.stack, table, cal)
        counts = [run.count for run in layer_runs(some.model)]
        types = rank_types(counts, table)
        pieces.append((_expanded(f, len(layouts)), _padded(types)))
        order += members.values()
    source = np.array([run.source for run in order])
    number = {s: int((source == s).sum()) for s in set(source)}
    every = np.arange(len(order))
    return Sample(
        features=replace(_zip([f for f, _ in pieces]), cut=every, replication=every),
        types=_zip([t for _, t in pieces]),
        recomputed=np.array([run.recomputed_share for run in order]),
        measured=np.array([float(run.step_time_s or 0) for run in order]),
        weight=np.array([number[s] ** -0.5 for s in source]),
        source=source,
        stack=np.array([run.stack.name for run in order]),
        layout=np.array([f"{run.model.name} {run.job} {run.cluster.gpu.name} {run.layout}" for run in order]),
        name=np.array([run.name for run in order]),
        dense=np.array([not run.model.is_moe for run in order]),
        hopper=np.array([run.cluster.gpu.architecture == "hopper" for run in order]),
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


Values = dict[str, float]


def shipped() -> Values:
    """Shipped values of everything that is fitted."""
    values = {name: getattr(default_constants(), name) for name in GLOBALS}
    for name in STACK_FIELDS:
        profile, field = name.split(".")
        values[name] = float(getattr(stacks()[profile], field))
    return values


def prior_centres() -> Values:
    """Physical starting values, from which every fit sets out."""
    return {name: centre for name, (centre, _, _) in {**GLOBALS, **STACK_FIELDS}.items()}


def predict(sample: Sample, values: Values) -> Vector:
    """Step times of all runs under these constants."""
    constants = replace(default_constants(), **{n: v for n, v in values.items() if "." not in n})
    changed: dict[str, Vector] = {}
    for name, value in values.items():
        if "." not in name:
            continue
        field = name.split(".")[1]
        where = np.isin(sample.stack, profiles_of(name))
        if field == "hopper_bf16_products":
            where = where & sample.hopper & (sample.features.environment.fp8 == 0)
            field = "product_slowdown"
        old = changed.get(field, getattr(sample.features.environment, field))
        changed[field] = np.where(where, value, old)
    if "tp_overlap_share" in changed:  # notes of single rows may state another share
        keep = sample.stack == "megatron-core"
        changed["tp_overlap_share"] = np.where(
            keep, changed["tp_overlap_share"], sample.features.environment.tp_overlap_share
        )
    environment: Environment = replace(sample.features.environment, **changed)
    costs = compose(replace(sample.features, environment=environment), constants)
    return even_step_seconds(costs, sample.types, sample.recomputed)


def bounds_of(names: Sequence[str]) -> tuple[Vector, Vector]:
    """Lower and upper bounds."""
    both = {**GLOBALS, **STACK_FIELDS}
    return np.array([both[n][1] for n in names]), np.array([both[n][2] for n in names])


def fit(sample: Sample, start: Values, names: Sequence[str] | None = None, steps: int = STEPS) -> Values:
    """Constants with the least Huber loss plus prior; damped Gauss–Newton within bounds."""
    names = list(names or start)
    centre = np.array([start[n] for n in names])
    low, high = bounds_of(names)
    scale = np.maximum(np.abs(centre), 0.05 * (high - low))
    weight = sample.weight / sample.weight.sum()

    def residual(x: Vector) -> Vector:
        return np.log(
            predict(sample, {**start, **dict(zip(names, x.tolist(), strict=True))}) / sample.measured
        )

    def loss(x: Vector, r: Vector) -> float:
        a = np.abs(r)
        huber = np.where(a < HUBER, 0.5 * a * a, HUBER * (a - 0.5 * HUBER))
        return float((weight * huber).sum() + PRIOR * (((x - centre) / scale) ** 2).sum())

    x, r = centre.copy(), residual(centre)
    best, damping = loss(x, r), 1e-2
    for _ in range(steps):
        robust = weight * np.where(np.abs(r) < HUBER, 1.0, HUBER / np.maximum(np.abs(r), 1e-12))
        jacobian = np.empty((len(r), len(x)))
        for j in range(len(x)):
            h = 2e-3 * scale[j] * (1 if x[j] + 2e-3 * scale[j] <= high[j] else -1)
            moved = x.copy()
            moved[j] += h
            jacobian[:, j] = (residual(moved) - r) / h * scale[j]
        prior = 2 * PRIOR
        normal = jacobian.T @ (robust[:, None] * jacobian) + prior * np.eye(len(x))
        slope = -(jacobian.T @ (robust * r)) - prior * (x - centre) / scale
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), slope) * scale
            candidate = np.clip(x + step, low, high)
            found = residual(candidate)
            value = loss(candidate, found)
            if value < best:
                break
            damping *= 4
        else:
            break
        gain, x, r, best, damping = best - value, candidate, found, value, max(damping / 3, 1e-7)
        if gain < 1e-6 * best:
            break
    return {**start, **dict(zip(names, x.tolist(), strict=True))}


def cross_validate(sample: Sample, start: Values, groups: NDArray[Any]) -> Vector:
    """Predictions of every run by constants fitted without its group."""
    predicted = np.zeros(len(sample.measured))
    for group in sorted(set(groups.tolist())):
        held = groups == group
        values = fit(sample.take(~held), start, steps=8)
        predicted[held] = predict(sample.take(held), values)
        print(f"  held out {group} ({held.sum()})", flush=True)
    return predicted


def folds(sample: Sample, number: int = 5) -> NDArray[Any]:
    """Fold of every run; runs of one layout of one job share it."""
    names = sorted(set(sample.layout.tolist()))
    shuffled = np.random.default_rng(0).permutation(len(names))
    fold = {name: int(place) % number for name, place in zip(names, shuffled, strict=True)}
    return np.array([fold[layout] for layout in sample.layout])


def source_groups(sample: Sample) -> NDArray[Any]:
    """Sources, the MLPerf rounds together: the same team and code."""
    return np.array(["mlperf" if s.startswith("mlperf") else s for s in sample.source])


def table(sample: Sample, predictions: Mapping[str, Vector]) -> None:
    """Print median / mean / p90 absolute error and median bias by source, in percent."""
    print(f"{'source':28s}{'n':>6s}" + "".join(f"{name:>30s}" for name in predictions))
    dense = sample.dense & (sample.source != "vtrain_single_node")
    groups = {s: sample.source == s for s in sorted(set(sample.source.tolist()))}
    groups |= {"DENSE without vTrain": dense, "MoE": ~sample.dense, "ALL": np.ones_like(dense)}
    for name, rows in groups.items():
        line = f"{name:28s}{rows.sum():6d}"
        for predicted in predictions.values():
            e = 100 * (predicted[rows] / sample.measured[rows] - 1)
            a = np.abs(e)
            line += f"   {np.median(a):6.1f}{a.mean():6.1f}{np.quantile(a, 0.9):6.1f} {np.median(e):+6.1f}"
        print(line)


def save(path: str, sample: Sample, predictions: Mapping[str, Vector]) -> None:
    """Store measured and held-out predicted seconds of every run, five digits."""
    predictions = {name: seconds for name, seconds in predictions.items() if name.startswith("held-out")}
    columns = [name.replace(" ", "_").replace("-", "_") + "_s" for name in predictions]
    lines = [",".join(["id", "source", "stack", "dense", "measured_s", *columns])]
    for i, name in enumerate(sample.name):
        seconds = [sample.measured[i], *(predicted[i] for predicted in predictions.values())]
        words = [name, sample.source[i], sample.stack[i], str(int(sample.dense[i]))]
        lines.append(",".join([*words, *(f"{s:.5g}" for s in seconds)]))
    Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write(values: Values) -> None:
    """Store fitted values in the data files, three significant digits."""
    data = Path(__file__).resolve().parents[1] / "costmodel" / "data"
    for name, value in values.items():
        field = name.split(".")[1] if "." in name else "value"
        file = data / ("stacks.toml" if "." in name else "constants.toml")
        for section in profiles_of(name):
            text = file.read_text(encoding="utf-8")
            start = text.index(f"[{section}]\n")
            head, body = text[:start], text[start:]
            body = re.sub(rf"^{field} = .*$", f"{field} = {value:.3g}", body, count=1, flags=re.MULTILINE)
            file.write_text(head + body, encoding="utf-8")


def main() -> None:
    """Fit, show, and store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs")
    parser.add_argument("--cross-validate", default="", help="layouts, sources, or both")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--save", metavar="CSV", help="store held-out seconds of every run")
    options = parser.parse_args()
    sample, start = load_sample(options.runs), prior_centres()
    predictions = {"shipped": predict(sample, shipped()), "not fitted": predict(sample, start)}
    fitted = fit(sample, start)
    predictions["fitted in-sample"] = predict(sample, fitted)
    if "layouts" in options.cross_validate:
        predictions["held-out layouts"] = cross_validate(sample, start, folds(sample))
    if "sources" in options.cross_validate:
        predictions["held-out sources"] = cross_validate(sample, start, source_groups(sample))
    for name, value in fitted.items():
        print(f"{name:48s}{start[name]:12.4g}{value:12.4g}")
    table(sample, predictions)
    if options.save:
        save(options.save, sample, predictions)
    if options.write:
        write(fitted)


if __name__ == "__main__":
    main()
