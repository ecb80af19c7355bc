"""Fit the constants of the inference engines to measured serving runs, and cross-validate by model.

    python tools/fit_serving.py serving_runs_v2.csv [--every N] [--rounds N] [--bands FILE]

Gauss–Newton on log constants. Residuals are log(predicted/measured) of TPOT and TTFT over the scatter that
repeated publications show. Rows far off lose their weight, so that those which contradict their own columns
do not steer; every model on one GPU counts as at most `GROUP_ROWS` rows, since its rows share their errors;
and each constant is held by a prior that says what is plausible where a sample says nothing. First tokens
weigh the less the more they hang on whether the client sent requests of one length.

A model left out is predicted anew with the constants that the other models and the prior give, the residuals
linearised at the fit of all rows. `--every` thins the rows that are fitted, not those that are predicted.
`--bands` writes the quantiles of those errors by kind of run.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np

from costmodel.accuracy.checkpoint_names import checkpoint_model
from costmodel.accuracy.serving import fabric
from costmodel.accuracy.serving_limits import refuse_faster_than_machine, refuse_unstated_machines
from costmodel.accuracy.serving_predictions import length_shares, predict
from costmodel.accuracy.serving_runs import read_serving_run
from costmodel.kernels.tables import load_calibration
from costmodel.runs.cells import UnsupportedRunError
from costmodel.serving.engine import ServingStack, serving_stack, serving_stacks
from topology.base.arrays import Floats
from topology.base.errors import InputError

Row = Mapping[str, str]
Job = tuple[Sequence[Row], ServingStack]

SCATTER = np.array([0.10, 0.30])  # log errors of TPOT and of TTFT that count as one
FAR = 2.0  # scatters at which a row has lost three quarters of its weight
GROUP_ROWS = 15.0  # independent rows that one model on one GPU is worth
STEP = 0.1  # of a log constant, for finite differences
REWEIGHTINGS = 20
QUANTILES = (0.1, 0.9)
PARTS = 8  # of the rows of a model, for the processes
PRIOR: Mapping[str, tuple[float, float]] = {
    "host_s": (0.4e-3, 0.7),
    "scheduling_s": (0.6e-3, 0.5),
    "host_s_per_request": (10e-6, 0.7),
    "loop_s": (2e-3, 0.5),
    "loop_s_per_request": (30e-6, 0.7),
    "exposed_share": (0.5, 0.4),
    "kernel_s": (1.3e-6, 0.1),
    "launch_s": (40e-6, 0.35),
    "all_reduce_s": (6e-6, 0.15),
    "attention_s": (7e-6, 0.35),
    "attention_share": (1.1, 0.2),
    "eight_bit_share": (1.4, 0.2),
    "expert_share": (1.0, 0.15),
    "mxfp4_share": (1.0, 0.25),
    "native_mxfp4_share": (1.0, 0.25),
    "sustained": (1.05, 0.1),
    "request_s": (2e-3, 0.5),
    "response_s": (12e-3, 0.6),
}
"""Every fitted constant of `ServingStack`: its centre, and the spread of its logarithm.

An engine has an all-reduce of its own because it is shorter than NCCL's, 7.3 µs between two GPUs. A cache of
eight bits takes between half of the time and all of it: √2, and the spread of an even logarithm in between.
"""


def is_evidence(row: Row) -> bool:
    """Whether a row is one to fit on and to judge by: its table trusts it, and it can be read."""
    try:
        read_serving_run(row, 0)
    except (UnsupportedRunError, InputError):
        return False
    return True


def errors(job: Job) -> Floats:
    """Log(predicted/measured) of TPOT and TTFT of rows under one engine profile, shape (rows, 2)."""
    rows, stack = job
    cal = load_calibration()
    found = np.full((len(rows), 2), np.nan)
    for index, row in enumerate(rows):
        try:
            run = read_serving_run(row, index)
            refuse_faster_than_machine(cal, run)
            refuse_unstated_machines(row, run, fabric(run.gpu))
            latency = predict(cal, run, fabric(run.gpu), stack)
        except (UnsupportedRunError, InputError):
            continue
        found[index] = np.log([latency.tpot_s / run.tpot_s, latency.ttft_s / run.ttft_s])
    return found


def lengths_matter(job: Job) -> Floats:
    """By how much, in logarithms, the first token of rows hangs on the lengths that their client sent."""
    rows, stack = job
    cal = load_calibration()
    gap = np.zeros(len(rows))
    for index, row in enumerate(rows):
        try:
            run = read_serving_run(row, index)
            shares = length_shares(run) if run.prefill is None else ()
            each = [dataclasses.replace(run, lowest_length_share=share) for share in shares]
            found = [predict(cal, one, fabric(run.gpu), stack).ttft_s for one in each]
        except (UnsupportedRunError, InputError):
            continue
        gap[index] = float(np.ptp(np.log(found))) if found else 0.0
    return gap


def with_constants(stack: ServingStack, theta: Floats) -> ServingStack:
    """The profile with these log constants."""
    changes: dict[str, float] = dict(zip(PRIOR, np.exp(theta).tolist(), strict=True))
    return dataclasses.replace(stack, **changes)  # type: ignore[arg-type]  # all of them are floats


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Linearised:
    """Log errors of rows near one set of log constants: `residual` (rows, 2), `jacobian` (rows, 2, n).

    `told` (rows, 2) is the weight of what a row tells of them: all of its time per token, and of its first
    token the less the more that hangs on the client's lengths, which no column states.
    """

    theta: Floats
    residual: Floats
    jacobian: Floats
    told: Floats
    groups: tuple[str, ...]

    def take(self, rows: Sequence[int]) -> Linearised:
        """Only these rows."""
        return dataclasses.replace(
            self,
            residual=self.residual[rows],
            jacobian=self.jacobian[rows],
            told=self.told[rows],
            groups=tuple(self.groups[i] for i in rows),
        )


def linearised(
    pool: ProcessPoolExecutor, rows: Sequence[Row], stack: ServingStack, theta: Floats
) -> Linearised:
    """Log errors and their finite differences around `theta`."""
    points = [theta, *(theta + STEP * np.eye(len(theta)))]
    found = list(pool.map(errors, [(rows, with_constants(stack, point)) for point in points]))
    known = np.isfinite(np.stack(found)).all(axis=0)
    residual, *others = (np.where(known, one, 0.0) for one in found)
    slopes = np.stack([(other - residual) / STEP for other in others], axis=-1)
    groups = tuple(f"{row['model']} {row['gpu']}" for row in rows)
    parts = [(rows[start::PARTS], with_constants(stack, theta)) for start in range(PARTS)]
    gap = np.zeros(len(rows))
    for start, part in enumerate(pool.map(lengths_matter, parts)):
        gap[start::PARTS] = part
    told = np.stack([np.ones_like(gap), 1 / (1 + (gap / SCATTER[1]) ** 2)], axis=1)
    return Linearised(theta=theta, residual=residual, jacobian=slopes, told=told, groups=groups)


def solve(around: Linearised) -> Floats:
    """Log constants that minimise the weighted errors and the distance from the prior."""
    centre = np.log([value for value, _ in PRIOR.values()])
    stiffness = np.array([width for _, width in PRIOR.values()]) ** -2.0
    size = {name: around.groups.count(name) for name in set(around.groups)}
    share = np.array([min(1.0, GROUP_ROWS / size[name]) for name in around.groups])[:, None]
    slopes = around.jacobian / SCATTER[:, None]
    start = around.residual / SCATTER - slopes @ around.theta
    theta = around.theta
    for _ in range(REWEIGHTINGS):
        off = start + slopes @ theta
        weight = share * around.told / (1 + (off / FAR) ** 2) ** 2
        pull = np.einsum("rqi,rq,rqj->ij", slopes, weight, slopes) + np.diag(stiffness)
        push = stiffness * centre - np.einsum("rqi,rq,rq->i", slopes, weight, start)
        theta = np.linalg.solve(pull, push)
    return theta


def held_out(
    pool: ProcessPoolExecutor,
    rows: Sequence[Row],
    predicted: Sequence[Row],
    stack: ServingStack,
    around: Linearised,
) -> Iterator[tuple[str, list[Row], Floats, Floats]]:
    """For every model: its name, its rows among those to predict, their errors without it and as shipped.

    The constants are those of the other models; disaggregated rows, on which nothing is fitted, are predicted
    with them too.
    """
    models = [checkpoint_model(row["model"]).name for row in rows]
    for name in sorted(set(models)):
        theta = solve(around.take([i for i, model in enumerate(models) if model != name]))
        of_model = [row for row in predicted if checkpoint_model(row["model"]).name == name]
        parts = [of_model[start::PARTS] for start in range(PARTS)]
        without = pool.map(errors, [(part, with_constants(stack, theta)) for part in parts])
        shipped = pool.map(errors, [(part, stack) for part in parts])
        rows_of_model = [row for part in parts for row in part]
        yield name, rows_of_model, np.concatenate(list(without)), np.concatenate(list(shipped))


def summary(label: str, found: Floats) -> str:
    """Medians and 90th percentiles of absolute relative errors."""
    off = np.abs(np.expm1(found[np.isfinite(found).all(axis=1)]))
    tpot, ttft = np.quantile(off, [0.5, 0.9], axis=0).T
    return (
        f"{label:40s} {len(off):5d} rows  TPOT {tpot[0]:6.1%} p90 {tpot[1]:6.1%}"
        f"  TTFT {ttft[0]:6.1%} p90 {ttft[1]:6.1%}\n"
    )


def kinds_of(row: Row) -> list[tuple[str, str, str, str]]:
    """Mode, engine, GPU and attention data parallelism of a row, and every wider kind that it belongs to.

    Of two pools that of decode, by which a plan asks for its band.
    """
    run = read_serving_run(row, 0)
    shared = "yes" if run.decode.layout.attention_dp > 1 else "no"
    engine = serving_stack(run.engine).name
    wider = product((engine, ""), (run.gpu, ""), (shared, ""))
    return [(run.mode, *names) for names in wider if names[0] or not any(names)]


def bands_toml(rows: Sequence[Row], found: Floats, shipped: Floats, source: str) -> str:
    """The document of quantiles of measured over predicted, by kind; kinds of few rows tell their number.

    A band reaches as far as either errors say: of models left out, and of the constants as they are shipped.
    It holds the prediction itself, even where that is biased.
    """
    kinds: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        if np.isfinite(found[at]).all() and np.isfinite(shipped[at]).all():
            for kind in kinds_of(row):
                kinds[kind].append(at)
    lines = [
        f"# Quantiles {QUANTILES[0]} and {QUANTILES[1]} of measured over predicted by kind, each model",
        "# predicted with constants fitted without it, or of all as shipped where these reach further",
        "# (tools/fit_serving.py, which writes this file).",
        f"# {source}.",
    ]
    for kind, members in sorted(kinds.items()):
        names = zip(("mode", "engine", "gpu", "attention_dp"), kind, strict=True)
        first, second = (
            np.exp(-np.quantile(one[members], QUANTILES[::-1], axis=0)) for one in (found, shipped)
        )
        ends = np.stack((np.minimum(first[0], second[0]), np.maximum(first[1], second[1])))
        lines += ["", "[[bands]]", *(f'{name} = "{value}"' for name, value in names if value)]
        lines += [f"rows = {len(members)}"]
        for column, latency in enumerate(("tpot", "ttft")):
            low, high = min(ends[0, column], 0.98), max(ends[1, column], 1.02)
            lines += [f"{latency} = [{low:.3f}, {high:.3f}]"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit every engine, then leave out every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--every", type=int, default=1, help="use every n-th row")
    parser.add_argument("--rounds", type=int, default=2, help="Gauss–Newton steps")
    parser.add_argument("--bands", type=Path, help="write the error bands here")
    arguments = parser.parse_args()
    with arguments.runs.open(newline="") as file:
        everything = [row for row in csv.DictReader(file) if is_evidence(row)]
    table = [row for row in everything if not row["mode"].startswith("disagg")]
    pools = [row for row in everything if row["mode"].startswith("disagg") and row["decode_workers"]]
    say, fitted, outside, inside = sys.stdout.write, [], [], []
    told: list[Row] = []
    with ProcessPoolExecutor(2) as pool:
        for engine, stack in serving_stacks().items():
            rows = [row for row in table[:: arguments.every] if row["engine"] == engine]
            theta = np.log([getattr(stack, name) for name in PRIOR])
            for _ in range(arguments.rounds):
                around = linearised(pool, rows, stack, theta)
                theta = solve(around)
            say("".join(f"{name} = {value:.3g}\n" for name, value in zip(PRIOR, np.exp(theta), strict=True)))
            fitted.append(errors((rows, with_constants(stack, theta))))
            say(summary(f"{engine}, fitted", fitted[-1]))
            of_engine = [row for row in (*table, *pools) if row["engine"] == engine]
            for name, left_out, found, shipped in held_out(pool, rows, of_engine, stack, around):
                outside.append(found)
                inside.append(shipped)
                told += left_out
                say(summary(f"{engine} without {name}", found))
            sys.stdout.flush()
    say(summary("fitted", np.concatenate(fitted)) + summary("leave one model out", np.concatenate(outside)))
    if arguments.bands:
        errors_of = np.concatenate(outside), np.concatenate(inside)
        arguments.bands.write_text(bands_toml(told, *errors_of, arguments.runs.name))


if __name__ == "__main__":
    main()
