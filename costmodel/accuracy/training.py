"""Predicted against measured training runs, row by row and summed up by group.

Rows that differ only in their layout are scored together, so a table of thousands of runs takes seconds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from costmodel.accuracy.mixture import as_each, of_unknown_engine
from costmodel.accuracy.ranking import JOB_COLUMNS, LAYOUT_COLUMNS, ranked_jobs
from costmodel.accuracy.training_runs import PROCESS_MEMORY_STACKS, TrainingRun, read_runs
from costmodel.case import Case
from costmodel.evidence.keys import Footing, footing
from costmodel.evidence.table import evidence_for
from costmodel.kernels.level import StackLevel
from costmodel.kernels.stand_ins import stand_in
from costmodel.kernels.tables import Calibration
from costmodel.layout import LayoutTable
from costmodel.memory.fit import out_of_memory_chance
from costmodel.memory.spread import Spread, mixture_quantile
from costmodel.runs.cells import STOPPED, Row, UnsupportedRunError
from costmodel.training.bands import (
    Doubts,
    doubts_of,
    interval,
    memory_spread,
    peak_interval,
    time_deviation,
)
from costmodel.training.constants import Constants, default_constants
from costmodel.training.score import TrainingScores, evaluate, part_shares
from topology.base.errors import InputError, shown
from topology.base.units import GBIT

RowStatus = Literal["ok", "unsupported", "error"]
_CERTAIN = Doubts()
LIKELY = 0.5
"""A chance of OOM above which the model expects a run to fail: its predicted peak is above the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One row, predicted. Fields are None where the row or the prediction lacks them.

    Attributes:
        name: The row's id.
        group: Values of the columns that results are grouped by.
        status: Whether it could be predicted.
        reason: Why not.
        measured_step_time_s: As published.
        predicted_step_time_s: By the model.
        lower_s: Lower end of the 80 % band.
        upper_s: Upper end of it.
        measured_peak_memory_bytes: As published.
        predicted_peak_memory_bytes: By the model.
        memory_upper_bytes: Upper end of the 80 % band of memory.
        out_of_memory_chance: By the model, that the run needs more than its GPU has, with what its row leaves
            open at its leanest.
        out_of_memory: The run needed more.
        stack: Profile its engine was taken for.
        not_priced: What the row states and no term of the cost model answers to.
        footing: What this prediction rests on.
        doubts: What makes it less sure.
        part_shares: How far its step follows each of `costmodel.kernels.level.PARTS`, where that was asked.
        level: Level of the user's own runs at which it was priced, if at any.
    """

    name: str
    group: Mapping[str, str]
    status: RowStatus
    reason: str = ""
    stack: str = ""
    not_priced: tuple[str, ...] = ()
    footing: Footing | None = None
    doubts: Doubts = _CERTAIN
    measured_step_time_s: float | None = None
    predicted_step_time_s: float | None = None
    lower_s: float | None = None
    upper_s: float | None = None
    measured_peak_memory_bytes: float | None = None
    predicted_peak_memory_bytes: float | None = None
    memory_upper_bytes: float | None = None
    out_of_memory_chance: float | None = None
    out_of_memory: bool = False
    part_shares: tuple[float, ...] = ()
    level: StackLevel | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, minus one."""
        if self.measured_step_time_s is None or self.predicted_step_time_s is None:
            return None
        return self.predicted_step_time_s / self.measured_step_time_s - 1

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, minus one."""
        if self.measured_peak_memory_bytes is None or self.predicted_peak_memory_bytes is None:
            return None
        return self.predicted_peak_memory_bytes / self.measured_peak_memory_bytes - 1

    @property
    def flagged(self) -> bool:
        """Whether the model expects the run to fail for memory: that is likelier than not."""
        return self.out_of_memory_chance is not None and self.out_of_memory_chance > LIKELY


def predict_rows(
    rows: Sequence[Row],
    cal: Calibration,
    *,
    constants: Constants | None = None,
    trust_paths: bool = False,
    done: dict[int, RunResult] | None = None,
    by_part: bool = False,
    levels: Sequence[StackLevel] = (),
) -> list[RunResult]:
    """Predict every row of a table; no row can fail the others.

    Args:
        rows: From `training_runs.read_rows`.
        cal: Kernel and collective tables.
        constants: Constants of the composition, the shipped ones by default.
        trust_paths: Whether a row's `cluster` may name a file, which is then read.
        done: Takes every result by its place as soon as it is there.
        by_part: Say how far every step follows each of its parts, as anchors ask.
        levels: Of the user's own runs, by stack; rows of these stacks are priced at them.
    """
    results, asked = {} if done is None else done, _Asked(cal=cal, constants=constants, by_part=by_part)
    decoded = read_runs(rows, trust_paths=trust_paths)
    of_stack = {level.stack: level for level in levels}
    runs = {i: _at_level(run, of_stack) for i, run in enumerate(decoded) if isinstance(run, TrainingRun)}
    results |= {
        i: _unpredicted(rows[i], i, "unsupported", str(reason))
        for i, reason in enumerate(decoded)
        if isinstance(reason, UnsupportedRunError)
    }
    mixed_of = {i: run for i, run in runs.items() if run.stand_ins or run.networks}
    for members in alike({i: run for i, run in runs.items() if i not in mixed_of}).values():
        results |= _predict_or_say(members, rows, asked)
    results |= _predict_mixtures(mixed_of, rows, asked)
    return [results[i] for i in range(len(rows))]


def _at_level(run: TrainingRun, levels: Mapping[str, StackLevel]) -> TrainingRun:
    """The run at the level of its stack; one whose engine nobody knows has none."""
    if run.stand_ins or run.stack.name not in levels:
        return run
    return replace(run, stack=replace(run.stack, measured=levels[run.stack.name]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """By which tables and constants rows are predicted, and whether part by part; see `predict_rows`."""

    cal: Calibration
    constants: Constants | None
    by_part: bool


def _predict_mixtures(
    runs: Mapping[int, TrainingRun], rows: Sequence[Row], asked: _Asked
) -> dict[int, RunResult]:
    """Predict runs whose engine or network nobody knows: as each that they may be, then the mixture."""
    parts: dict[int, list[RunResult]] = {i: [] for i in runs}
    for each in zip_longest(*(as_each(run) for run in runs.values())):
        there = {i: run for i, run in zip(runs, each, strict=True) if run is not None}
        for members in alike(there).values():
            for i, result in _predict_or_say(members, rows, asked).items():
                parts[i].append(result)
    return {i: _mixture(run, parts[i]) for i, run in runs.items()}


def _mixture(run: TrainingRun, parts: Sequence[RunResult]) -> RunResult:
    """One result of those under each profile; the first refusal where none was priced.

    The band is the mixture's. So is the middle, but of a network: one machine of many with a slow one moves
    the end of the band, not what most runs of such GPUs take.
    """
    if not any(part.status == "ok" for part in parts):
        return parts[0]
    machines = [having for having, _ in run.networks] or [1]
    shares = machines * (len(parts) // len(machines))
    priced = [
        part for part, share in zip(parts, shares, strict=True) if part.status == "ok" for _ in range(share)
    ]
    usual = [part for part in parts[:: len(machines)] if part.status == "ok"] or priced
    lower_s, upper_s = (_time_quantile(priced, share) for share in ENDS)
    seconds = _time_quantile(usual, MIDDLE)
    peaks = [part.predicted_peak_memory_bytes or math.nan for part in priced]
    spreads = [memory_spread(part.doubts) for part in priced]
    memory, memory_upper = (
        math.exp(mixture_quantile(np.log(peaks).tolist(), spreads, share)) for share in (MIDDLE, ENDS[1])
    )
    chances = [part.out_of_memory_chance or 0.0 for part in priced]
    by_part = [part.part_shares for part in usual]
    return replace(
        priced[0],
        stack=" or ".join(dict.fromkeys(part.stack for part in priced)),
        predicted_step_time_s=seconds,
        lower_s=lower_s,
        upper_s=upper_s,
        predicted_peak_memory_bytes=memory,
        memory_upper_bytes=memory_upper,
        out_of_memory_chance=float(np.mean(chances)),
        part_shares=tuple(np.mean(by_part, axis=0).tolist()) if all(by_part) else (),
        not_priced=(*priced[0].not_priced, *_mixture_words(run, priced, upper_s / seconds - 1)),
    )


MIDDLE, ENDS = 0.5, (0.1, 0.9)
"""An 80 % interval and its middle."""


def _time_quantile(parts: Sequence[RunResult], share: float) -> float:
    """Of the mixture of their steps."""
    seconds = [part.predicted_step_time_s or math.nan for part in parts]
    spreads = [Spread((time_deviation(part.doubts),)) for part in parts]
    return math.exp(mixture_quantile(np.log(seconds).tolist(), spreads, share))


def _mixture_words(run: TrainingRun, parts: Sequence[RunResult], above: float) -> Iterator[str]:
    """What an engine or a network that nobody knows was taken for."""
    if run.stand_ins:
        name = shown(run.framework) if run.framework else "that is not stated"
        stacks = ", ".join(dict.fromkeys(part.stack for part in parts))
        yield f"engine {name} is not known: priced as a mixture of {stacks}, band +{above:.0%}"
    if run.networks:
        rates = sorted({of.spec.nodes[0].nic_bandwidth_bytes_per_s / GBIT for _, of in run.networks})
        words = " and ".join(f"{rate:g}" for rate in rates)
        yield f"the network is not stated: priced as a mixture of {words} Gbit/s a GPU, band +{above:.0%}"


def training_not_reached(row: Row, at: int) -> RunResult:
    """A row that was left when the prediction was stopped."""
    return _unpredicted(row, at, "unsupported", STOPPED)


def _unpredicted(row: Row, index: int, status: RowStatus, reason: str) -> RunResult:
    """A row without a prediction."""
    return RunResult(
        name=row.get("id") or f"row {index + 1}", group=_columns(row), status=status, reason=reason
    )


def alike(runs: Mapping[int, TrainingRun]) -> Mapping[object, dict[int, TrainingRun]]:
    """Runs by everything but their layout, whose layers of each chunk are stated alike."""
    groups: dict[object, dict[int, TrainingRun]] = defaultdict(dict)
    for i, run in runs.items():
        groups[run.model, id(run.cluster), run.job, run.stack, run.chunk_layers][i] = run
    return groups


def _predict_or_say(
    runs: Mapping[int, TrainingRun], rows: Sequence[Row], asked: _Asked
) -> dict[int, RunResult]:
    """Predict runs of one job; when one of them cannot be, predict each alone and say why not."""
    try:
        with np.errstate(all="ignore"):  # a result that is not finite is reported as such
            return _predict_alike(runs, rows, asked)
    except Exception as failure:  # noqa: BLE001 - one row of a user's table must not cost them the others
        if len(runs) > 1:
            alone = [_predict_or_say({i: run}, rows, asked) for i, run in runs.items()]
            return {i: result for results in alone for i, result in results.items()}
        (i,) = runs
        return {i: _refused(rows[i], i, failure)}


def _refused(row: Row, index: int, failure: Exception) -> RunResult:
    """A row the model refuses, or that is beyond what its arithmetic can hold."""
    if isinstance(failure, InputError):
        return _unpredicted(row, index, "unsupported", f"{failure.what}: {failure.cause}")
    return _unpredicted(row, index, "error", f"{type(failure).__name__}: {failure}")


def _predict_alike(
    runs: Mapping[int, TrainingRun], rows: Sequence[Row], asked: _Asked
) -> dict[int, RunResult]:
    """Predict runs of one job on one cluster."""
    shared = next(iter(runs.values()))
    table = LayoutTable.from_rows([run.layout for run in runs.values()])
    shares = np.array([run.recomputed_share for run in runs.values()])
    case, constants, chunks = shared.case(asked.cal), asked.constants, shared.chunk_layers
    scores = evaluate(case, table, constants=constants, recomputed_share=shares, chunk_layers=chunks)
    tabled = stand_in(asked.cal, shared.cluster.gpu) == shared.cluster.gpu.name
    results = {
        i: _result(run, case, _columns(rows[i]), scores, at, tabled=tabled)
        for at, (i, run) in enumerate(runs.items())
    }
    results |= _at_their_leanest(runs, results, case, constants)
    if not asked.by_part:
        return results
    parts = part_shares(case, table, constants=constants, recomputed_share=shares, chunk_layers=chunks)
    return {
        i: replace(result, part_shares=tuple(parts[:, at].tolist()))
        for at, (i, result) in enumerate(results.items())
    }


def _at_their_leanest(
    runs: Mapping[int, TrainingRun],
    results: Mapping[int, RunResult],
    case: Case,
    constants: Constants | None,
) -> dict[int, RunResult]:
    """Runs that are expected to fail as they were read, judged with what they do not state at its leanest."""
    doubted = {i: run for i, run in runs.items() if results[i].flagged and run.leanest != run.layout}
    if not doubted:
        return {}
    table = LayoutTable.from_rows([run.leanest for run in doubted.values()])
    shares = np.array(
        [
            run.recomputed_share if run.leanest.recompute == run.layout.recompute else 1.0
            for run in doubted.values()
        ]
    )
    peaks = evaluate(case, table, constants=constants, recomputed_share=shares).peak_memory_bytes
    capacity_bytes = case.cluster.gpu.memory_bytes
    chances = {
        i: out_of_memory_chance(float(peak), capacity_bytes, memory_spread(results[i].doubts))
        for i, peak in zip(doubted, peaks, strict=True)
    }
    return {
        i: replace(results[i], out_of_memory_chance=min(chance, results[i].out_of_memory_chance or 1.0))
        for i, chance in chances.items()
    }


def _result(
    run: TrainingRun, case: Case, columns: Mapping[str, str], scores: TrainingScores, at: int, *, tabled: bool
) -> RunResult:
    """One row beside its prediction."""
    rests_on = footing(case, run.layout)
    rests_on = of_unknown_engine(rests_on) if run.stand_ins else rests_on
    doubts = doubts_of(
        rests_on, evidence_for(rests_on), untabled_gpu=not tabled, host_share=float(scores.host_share[at])
    )
    seconds, peak = float(scores.step_time_s[at]), float(scores.peak_memory_bytes[at])
    allocated = float(scores.peak_allocated_bytes[at])
    memory = _shown_bytes(run, peak, allocated) if run.process_memory else allocated
    spread = memory_spread(doubts)
    lower_s, upper_s = interval(seconds, time_deviation(doubts))
    if not (math.isfinite(seconds) and seconds > 0):
        return RunResult(name=run.name, group=columns, status="error", reason=f"predicted {seconds} s")
    return RunResult(
        name=run.name,
        group=columns,
        status="ok",
        stack=run.stack.name,
        not_priced=run.not_priced,
        footing=rests_on,
        doubts=doubts,
        level=run.stack.measured,
        measured_step_time_s=run.step_time_s,
        predicted_step_time_s=seconds,
        lower_s=lower_s,
        upper_s=upper_s,
        measured_peak_memory_bytes=run.peak_memory_bytes,
        predicted_peak_memory_bytes=memory,
        memory_upper_bytes=peak_interval(peak, spread)[1],
        out_of_memory_chance=out_of_memory_chance(peak, run.cluster.gpu.memory_bytes, spread),
        out_of_memory=run.out_of_memory,
    )


def _shown_bytes(run: TrainingRun, peak: float, allocated: float) -> float:
    """What ``nvidia-smi`` shows of a process: its runtime, and segments that its allocator keeps for reuse.

    Profiles that were made from such readings have them in their fragmentation. No more than the GPU has is
    ever shown, since what is kept is given back before an allocation fails.
    """
    if run.stack.name in PROCESS_MEMORY_STACKS:
        return peak
    runtime = peak - run.stack.memory.fragmentation * allocated
    return min(run.cluster.gpu.memory_bytes, runtime + default_constants().cached_segments * allocated)


GROUP_COLUMNS = (*JOB_COLUMNS, *LAYOUT_COLUMNS, "recompute_modules", "cuda_graph_scope", "dispatcher",
    "moe_a2a_overlap", "offload_layers")  # fmt: skip
"""Columns that results can be grouped by."""


def _columns(row: Row) -> dict[str, str]:
    """Columns results can be grouped by."""
    return {name: row.get(name, "") or "unnamed" for name in GROUP_COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of one group of rows; shares, not percent. NaN where there is nothing to compare.

    Attributes:
        group: Name of the group.
        rows: Rows in it.
        unsupported: Rows that could not be predicted.
        timed: Rows with a measured step time.
        median_error: Median absolute error of the step time.
        mean_error: Mean of the same.
        p90_error: 90th percentile of the same.
        bias: Median signed error.
        memory_rows: Rows with a measured peak.
        memory_median_error: Median absolute error of peak memory.
        memory_p90_error: 90th percentile of the same.
        oom_rows: Rows that did not fit.
        oom_flagged: How many of those the model warned about.
        false_alarms: Rows that fitted and were flagged.
        coverage: Share of step times inside the 80 % band.
        rank_correlation: Mean Spearman correlation within jobs of at least three layouts.
        top1_regret: Mean slow-down of the predicted best layout over the measured best in those jobs.
        ranked_jobs: How many such jobs there are.
    """

    group: str
    rows: int
    unsupported: int
    timed: int
    median_error: float
    mean_error: float
    p90_error: float
    bias: float
    memory_rows: int
    memory_median_error: float
    memory_p90_error: float
    oom_rows: int
    oom_flagged: int
    false_alarms: int
    coverage: float
    rank_correlation: float
    top1_regret: float
    ranked_jobs: int


def summarise(results: Sequence[RunResult], *, by: str | Sequence[str] | None = None) -> list[Summary]:
    """Errors by the values of one or several columns, in order of appearance, and of all rows last."""
    names = (by,) if isinstance(by, str) else tuple(by or ())
    groups: dict[str, list[RunResult]] = defaultdict(list)
    for result in results if names else ():
        groups[" · ".join(result.group.get(name, "unnamed") for name in names)].append(result)
    return [*(_summary(name, members) for name, members in groups.items()), _summary("all", results)]


def _summary(name: str, results: Sequence[RunResult]) -> Summary:
    """Errors of one group."""
    errors = np.array([r.error for r in results if r.error is not None])
    memory = np.array([r.memory_error for r in results if r.memory_error is not None])
    inside = [
        r.lower_s <= r.measured_step_time_s <= r.upper_s
        for r in results
        if r.lower_s is not None and r.upper_s is not None and r.measured_step_time_s is not None
    ]
    jobs = ranked_jobs([(r.group, r.measured_step_time_s, r.predicted_step_time_s) for r in results])
    return Summary(
        group=name,
        rows=len(results),
        unsupported=sum(r.status != "ok" for r in results),
        timed=len(errors),
        median_error=_quantile(np.abs(errors), 0.5),
        mean_error=float(np.abs(errors).mean()) if len(errors) else math.nan,
        p90_error=_quantile(np.abs(errors), 0.9),
        bias=_quantile(errors, 0.5),
        memory_rows=len(memory),
        memory_median_error=_quantile(np.abs(memory), 0.5),
        memory_p90_error=_quantile(np.abs(memory), 0.9),
        oom_rows=sum(r.out_of_memory for r in results),
        oom_flagged=sum(r.out_of_memory and r.flagged for r in results),
        false_alarms=sum(r.flagged and not r.out_of_memory for r in results),
        coverage=float(np.mean(inside)) if inside else math.nan,
        rank_correlation=float(np.mean([job.spearman for job in jobs])) if jobs else math.nan,
        top1_regret=float(np.mean([job.regret for job in jobs])) if jobs else math.nan,
        ranked_jobs=len(jobs),
    )


def _quantile(values: NDArray[np.float64], share: float) -> float:
    """Quantile, NaN of nothing."""
    return float(np.quantile(values, share)) if len(values) else math.nan
