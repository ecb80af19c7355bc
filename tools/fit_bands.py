"""Widths of the 80 % bands from the residuals of runs left out, and how often such bands hold.

    python tools/fit_bands.py ../shared/data/training_runs_v2.csv    # after leave_out.py

writes bands.toml and evidence.json. Every run that was left out has a residual r = log(measured / predicted)
and keys that no run has which was left in. The half width of its band is w, w² = λ² + Σ (term · times)².

λ is the level of a stranger, a publication (a table, a round, a container) of which no run was left in, by
whomever it is: how far publications on an engine lie from what was predicted without them, the
root mean square over publishers of their mean dense residual. Few publishers say little, so the mean over
engines counts beside them as `PRIOR` publishers more; it alone is the level of an engine without any.
The terms minimise the quantile loss of |r| against w at `QUANTILE`: each is the spread that one more thing
unknown adds. Sources weigh in by the root of their rows, as in the fit of the constants, and the four ways of
leaving out alike. A band is judged on a group that neither constants, levels nor terms have seen (`nested`).

Where launches set the step of an engine whose host no run left in has timed, λ² grows by how far hosts of
engines lie from each other, the spread of what was fitted of theirs: they are too few to be left out of it.

No constant of memory is fitted. A precision that no peak of an engine has adds what peaks of one job in two
precisions differ by from what is predicted of them (`precision_difference`). The spread of peaks is that of
the engine's own measured ones; of an engine without any in the table, of those in the tables beside it that
hold peaks alone (`PEAK_TABLES`). Rows that a recipe filled do not judge: their scripts were read by hand when
their peaks were known. Of many publishers an unseen one is as one of those, each as likely; of few as the
worst.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations, product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_free import STACK_FIELDS
from fit_parts import LEVEL, fit_parts

from costmodel.accuracy.training import RunResult, predict_rows
from costmodel.accuracy.training_runs import read_rows
from costmodel.evidence.keys import engine_family
from costmodel.evidence.table import (
    EVIDENCE_FILE,
    Table,
    count_runs,
    evidence_for,
)
from costmodel.kernels.level import PARTS
from costmodel.kernels.tables import load_calibration
from costmodel.memory.spread import Spread
from costmodel.runs.cells import Row
from costmodel.runs.engine_recipes import with_recipes
from costmodel.stack import plausible_stacks, stack_of_framework, stacks
from costmodel.training.bands import BANDS_FILE, QUANTILE_80, UPPER, Doubts, deviations, doubts_of
from topology.base.arrays import Vector

KEPT = Path(__file__).resolve().parents[1] / "docs" / "data" / "cross_validation.csv"
WAYS = ("vendors", "generations", "models", "layouts")
TERMS = ("shape", "unmeasured", "experts", "untabled_gpu")
QUANTILE = 0.80
"""That the terms are fitted at: what the band says of itself."""
PRIOR = 2.0
"""Publishers that the mean over engines counts for: with fewer of its own it says more than they."""
OF_MEAN_SIZE = math.sqrt(math.pi / 2)
"""Deviation of a normal distribution over the mean size of its draws: of a handful of engines, one that is
far off moves the mean of sizes less than their mean square."""
LEAST = 1e-5  # of the square of the first term: a band has a width


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One run that was left out.

    Attributes:
        name: Its id.
        way: How it was left out.
        group: With which others.
        engine: Its family.
        source: Who published it.
        value: log(measured / predicted).
        stranger: Of a publication (one source: a table, a round, a container) of which no run is left in.
        host_bound: How far the step follows the host's time, 0 where a run left in has timed its engine's.
        times: How often every term applies.
        weight: Of its source, over the root of the source's rows.
    """

    name: str
    way: str
    group: str
    engine: str
    source: str
    value: float
    stranger: bool
    host_bound: float
    times: tuple[float, ...]
    weight: float

    @property
    def size(self) -> float:
        """How far it is off, either way."""
        return abs(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Squared half widths: the level of a stranger by engine and of other engines, and the terms."""

    levels: Mapping[str, float]
    other: float
    squares: Vector

    def level(self, r: Residual) -> float:
        """The part of a stranger's level."""
        if not r.stranger:
            return 0.0
        host = QUANTILE_80 * host_difference() * r.host_bound
        return self.levels.get(r.engine, self.other) + host**2


def timed_hosts() -> dict[str, float]:
    """Seconds of a layer of every engine whose host time is fitted to runs of its own."""
    fields = [name for name in STACK_FIELDS if name.endswith(".host_s_per_layer")]
    return {name.split(".")[0]: stacks()[name.split(".")[0]].timing.host_s_per_layer for name in fields}


def host_difference() -> float:
    """How far engines lie from their mean, of the logarithm: what a host that nobody timed may be off."""
    return float(np.std(np.log(list(timed_hosts().values()))))


def kept_columns() -> dict[str, dict[str, str]]:
    """The stored cross-validation by row id."""
    with KEPT.open(encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def left_out_evidence(held: RunResult, table: Table) -> Doubts:
    """Doubts of a run when only the runs of this table are known."""
    if held.footing is None:
        raise ValueError(f"{held.name} has no prediction")
    return doubts_of(held.footing, evidence_for(held.footing, table), untabled_gpu=held.doubts.untabled_gpu)


def table_of(
    results: Sequence[RunResult], peaks: Sequence[RunResult] = ()
) -> dict[str, dict[str, dict[str, int]]]:
    """Runs behind the constants, counted. One that ran out of memory measured nothing, and is none."""
    return count_runs(
        (
            (r.footing, r.measured_peak_memory_bytes is not None)
            for r in results
            if r.footing is not None and not r.out_of_memory
        ),
        (r.footing for r in peaks if r.footing is not None),
    )


PEAK_TABLES = ("finetune_runs", "ladders", "memory_runs")
"""Tables beside that of runs whose rows measured the peak of a GPU."""


MEASURED = ("id", "step_time_s", "tflops_per_gpu", "peak_memory_gib", "oom", "note", "url")
"""Columns of what a run printed, not of what was run."""


def peak_tables(path: Path | str) -> list[tuple[Row, RunResult]]:
    """Rows of the tables beside this one, with their predictions; each once."""
    tables = [read_rows(Path(path).with_name(f"{name}.csv")) for name in PEAK_TABLES]
    beside = {
        row["id"]: (row, result)
        for rows in tables
        for row, result in zip(rows, predict_rows(rows, load_calibration()), strict=True)
    }
    return list(beside.values())


def peaks_beside(beside: Sequence[tuple[Row, RunResult]], results: Sequence[RunResult]) -> list[RunResult]:
    """Measured peaks of engines that have none among the results."""
    have = {r.doubts.engine for r in results if r.memory_error is not None}
    return [
        r
        for _, r in beside
        if r.memory_error is not None
        and not r.out_of_memory
        and r.footing is not None
        and r.footing.engine in stack_families()
        and r.doubts.engine not in have
    ]


def as_printed(beside: Sequence[tuple[Row, RunResult]]) -> list[tuple[Row, RunResult]]:
    """Those of which no recipe says more than their publishers' tables do."""
    return [(row, result) for row, result in beside if with_recipes(row) == dict(row)]


def precision_difference(priced: Sequence[tuple[Row, RunResult]]) -> float:
    """How far the peak of a job in another precision lies from what one in the first makes of the prediction.

    Pairs of runs that are equal but for the precision; the root mean square of a source, the worst of few.
    """
    jobs: dict[tuple[tuple[str, str], ...], dict[str, tuple[str, float]]] = defaultdict(dict)
    for row, r in priced:
        if r.memory_error is not None and not r.out_of_memory:
            job = tuple(
                sorted((name, cell) for name, cell in row.items() if name not in (*MEASURED, "precision"))
            )
            jobs[job][row["precision"]] = row["source"], float(np.log1p(r.memory_error))
    differences: dict[str, list[float]] = defaultdict(list)
    for of_precision in jobs.values():
        for (source, first), (_, second) in combinations(of_precision.values(), 2):
            differences[source].append(second - first)
    return max(float(np.sqrt(np.mean(np.square(each)))) for each in differences.values())


def stack_families() -> set[str]:
    """Families of the engines that profiles describe."""
    return {engine_family(name) for name in stacks()}


def times_of(doubts: Doubts) -> tuple[float, ...]:
    """How often every term applies, in the order of `TERMS`."""
    return (1.0, float(doubts.unmeasured), float(doubts.experts), float(doubts.untabled_gpu))


def time_residuals(results: Sequence[RunResult]) -> list[Residual]:
    """Every timed run, left out in every way."""
    kept = kept_columns()
    timed = [r for r in results if r.name in kept and r.error is not None]
    rows = Counter(r.group["source"] for r in timed)
    found = []
    for way in WAYS:
        groups = defaultdict(list)
        for r in timed:
            groups[kept[r.name][way]].append(r)
        for group, held in groups.items():
            names = {r.name for r in held}
            left = [r for r in results if r.name not in names]
            table = table_of(left)
            engines = {r.doubts.engine for r in left if r.error is not None} & set(timed_hosts())
            known = {r.group["source"] for r in left if r.name in kept}
            for r in held:
                doubts = left_out_evidence(r, table)
                seconds, measured = float(kept[r.name][f"held_out_{way}_s"]), r.measured_step_time_s or 1.0
                found.append(
                    Residual(
                        name=r.name, way=way, group=group, engine=doubts.engine, source=r.group["source"],
                        value=float(np.log(measured / seconds)),
                        stranger=r.group["source"] not in known,
                        host_bound=r.doubts.host_bound * (doubts.engine not in engines),
                        times=times_of(doubts), weight=rows[r.group["source"]] ** -0.5,
                    )
                )  # fmt: skip
    return found


def memory_spreads(results: Sequence[RunResult], *, experts: bool) -> dict[str, Spread]:
    """Deviations of the sources of every engine: of a normal distribution whose 80 % hold 80 % of its peaks.

    Sources are few and each is one user's: an unseen one may be as far off as the worst that was seen. Of
    `MANY_SOURCES` or more it is as any of them. What peaks with experts are off says nothing of dense ones.
    """
    peaks: dict[tuple[str, str], list[float]] = defaultdict(list)
    for r in results:
        if r.memory_error is not None and (experts or not r.doubts.experts):
            peaks[r.doubts.engine, r.group["source"]].append(abs(float(np.log1p(r.memory_error))))
    of_sources: dict[str, list[float]] = defaultdict(list)
    for (engine, _), sizes in sorted(peaks.items()):
        of_sources[engine].append(float(np.quantile(sizes, 0.8)) / QUANTILE_80)
    return {
        engine: Spread((max(each),) if len(each) < MANY_SOURCES else tuple(sorted(each)))
        for engine, each in of_sources.items()
    }


MANY_SOURCES = 10
"""From so many on the worst is an outlier of many, not one of few."""


def weighted_quantile(sized: Sequence[tuple[float, float]], share: float) -> float:
    """The least size that this share of the weight does not exceed."""
    ordered = sorted(sized)
    summed = np.cumsum([weight for _, weight in ordered])
    return ordered[int(np.searchsorted(summed, share * summed[-1]))][0]


def memory_coverage(results: Sequence[RunResult]) -> float:
    """Share of measured peaks inside bands of which their vendor and engine decided nothing."""
    kept = kept_columns()
    measured = [r for r in results if r.memory_error is not None and r.name in kept]
    rows = Counter(r.group["source"] for r in measured)
    inside = 0.0
    for group in sorted({kept[r.name]["vendors"] for r in measured}):
        left = [r for r in results if r.name in kept and kept[r.name]["vendors"] != group]
        table = table_of(left)
        by_experts = {experts: memory_spreads(left, experts=experts) for experts in (False, True)}
        for r in measured:
            if kept[r.name]["vendors"] == group:
                doubts, engines = left_out_evidence(r, table), by_experts[r.doubts.experts]
                own = None if doubts.unmeasured_memory else engines.get(doubts.engine)
                spread = own or max(engines.values(), key=lambda each: each.quantile(UPPER))
                if doubts.unmeasured_precision:
                    spread = spread.widened(deviations()["memory"]["precision"])
                width = spread.quantile(UPPER)
                held = abs(np.log1p(r.memory_error or 0.0)) <= width
                inside += float(held) * rows[r.group["source"]] ** -0.5
    return inside / sum(count**0.5 for count in rows.values())


def levels_of(residuals: Sequence[Residual]) -> tuple[dict[str, float], float]:
    """Squared half widths of the level of an unknown publisher, by engine, and of an engine without any.

    Experts have a term of their own, so dense runs say it.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for r in residuals:
        if r.way == "vendors" and not r.times[TERMS.index("experts")]:
            values[r.engine][r.source].append(r.value)
    own = {
        engine: [float(np.mean(each)) ** 2 for each in of.values()] for engine, of in sorted(values.items())
    }
    sizes = [np.sqrt(np.mean(squares)) for squares in own.values()]
    other = float(OF_MEAN_SIZE * np.mean(sizes)) ** 2
    shrunk = {name: (sum(each) + PRIOR * other) / (len(each) + PRIOR) for name, each in own.items()}
    return {name: QUANTILE_80**2 * square for name, square in shrunk.items()}, QUANTILE_80**2 * other


def level_of_unknown(rows: Sequence[Row]) -> float:
    """Squared half width of the level of an engine that nobody knows, priced as a mixture of known ones.

    Every engine with its family left out of the mixture: the mean square of what publishers' dense runs are
    off in the mean, less what the mixture's own spread explains. Families weigh alike, and publishers of one.
    """
    profiles = plausible_stacks()
    off: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    priced = [
        predict_rows([{**row, "framework": profile.name, "url": ""} for row in rows], load_calibration())
        for profile in profiles
    ]
    for row, results in zip(rows, zip(*priced, strict=True), strict=True):
        family = engine_family(stack_of_framework(row["framework"], row["url"]).name)
        like = [
            result
            for profile, result in zip(profiles, results, strict=True)
            if engine_family(profile.name) != family
            and result.error is not None
            and not result.doubts.experts
        ]
        if len(like) > 1:
            logs = np.log([result.predicted_step_time_s or math.nan for result in like])
            measured = math.log(like[0].measured_step_time_s or math.nan)
            off[family][row["source"]].append((measured - float(np.median(logs)), float(logs.var())))
    means = [
        np.mean([np.mean(each, axis=0) ** (2, 1) for each in of.values()], axis=0) for of in off.values()
    ]
    square, explained = np.mean(means, axis=0)
    return QUANTILE_80**2 * max(float(square - explained), 0.0)


def fit_terms(residuals: Sequence[Residual], start: Terms | None = None) -> Terms:
    """Levels, and squares of the terms of least quantile loss; each is moved in turn while that lowers it.

    What a stranger's runs add is the level, so they say nothing of keys that nobody has measured.
    """
    levels, other = levels_of(residuals)
    found = Terms(levels=levels, other=other, squares=np.full(len(TERMS), 0.01))
    times = np.array([r.times for r in residuals])
    times[[r.stranger for r in residuals], TERMS.index("unmeasured")] = 0.0
    level = np.array([found.level(r) for r in residuals])
    size = np.array([r.size for r in residuals])
    weight = np.array([r.weight for r in residuals])
    way = np.array([r.way for r in residuals])
    for name in set(way.tolist()):
        weight[way == name] /= weight[way == name].sum()

    def loss(squares: Vector) -> float:
        over = size - np.sqrt(times @ squares + level)
        return float((weight * np.where(over > 0, QUANTILE * over, (QUANTILE - 1) * over)).sum())

    squares = found.squares if start is None else start.squares.copy()
    step = np.full(len(squares), 2.0)
    best = loss(squares)
    while step.max() > 1.01:
        for j in range(len(squares)):
            now = squares[j] or 1e-3
            for value in (now * step[j], now / step[j], 0.0):
                tried = squares.copy()
                tried[j] = max(value, LEAST) if j == 0 else value
                if (lower := loss(tried)) < best * (1 - 1e-9):
                    squares, best = tried, lower
                    break
            else:
                step[j] = 1 + 0.7 * (step[j] - 1)
    return replace(found, squares=squares)


def tails_of(residuals: Sequence[Residual], terms: Terms) -> float:
    """Degrees of freedom of the Student's t in which layouts of a publisher lie around its others.

    Those of most likelihood, whatever the scale of the distribution.
    """
    own: dict[tuple[str, str], list[Residual]] = defaultdict(list)
    for r in residuals:
        if r.way == "vendors":
            own[r.source, r.engine].append(r)
    distances, weights = [], []
    for of in (each for each in own.values() if len(each) > 2):
        values, share = np.array([r.value for r in of]), len(of) / (len(of) - 1)
        widths = np.sqrt(np.array([r.times for r in of]) @ terms.squares) / QUANTILE_80
        distances += ((values - values.mean()) * math.sqrt(share) / widths).tolist()
        weights += [r.weight for r in of]
    weight, squares = np.array(weights), np.square(distances)

    def likelihood(degrees: float, scale: float) -> float:
        rises = (degrees + 1) / 2 * np.log1p(squares / (degrees * scale**2))
        constant = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
        constant -= math.log(degrees * math.pi) / 2 + math.log(scale)
        return float(weight @ (constant - rises))

    return max(product(DEGREES, SCALES), key=lambda each: likelihood(*each))[0]


DEGREES, SCALES = np.arange(1.5, 10.1, 0.5).tolist(), np.geomspace(0.2, 2.0, 47).tolist()
"""Degrees of freedom that are tried, and scales, of the deviation of layouts."""


def widths(residuals: Sequence[Residual], terms: Terms) -> Vector:
    """Half widths of the bands of these runs, of the logarithm."""
    times, level = np.array([r.times for r in residuals]), np.array([terms.level(r) for r in residuals])
    return np.asarray(np.sqrt(times @ terms.squares + level))


def nested(
    residuals: Sequence[Residual], ways: Sequence[str] = WAYS
) -> dict[tuple[str, str], tuple[float, bool]]:
    """Half width, and whether it holds, of every residual by way and run; its group fits no term of it."""
    found: dict[tuple[str, str], tuple[float, bool]] = {}
    everything = fit_terms(residuals)
    for way, group in sorted({(r.way, r.group) for r in residuals if r.way in ways}):
        held = [r for r in residuals if (r.way, r.group) == (way, group)]
        names = {r.name for r in held}
        terms = fit_terms([r for r in residuals if r.name not in names], everything)
        for r, width in zip(held, widths(held, terms).tolist(), strict=True):
            found[way, r.name] = (width, r.size <= width)
    return found


def coverage(residuals: Sequence[Residual], held: Mapping[tuple[str, str], tuple[float, bool]]) -> float:
    """Share of these runs inside their bands, sources weighing in by the root of their rows."""
    inside = sum(r.weight for r in residuals if held[r.way, r.name][1])
    return inside / sum(r.weight for r in residuals)


def tie_difference(results: Sequence[RunResult]) -> float:
    """80 % of pairs of layouts of one job differ from the ratio predicted of them by less than this."""
    kept = kept_columns()
    jobs: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for r in results:
        if r.name in kept and r.measured_step_time_s:
            held = float(kept[r.name]["held_out_layouts_s"])
            names = (
                "source",
                "framework",
                "model",
                "num_layers",
                "hidden_size",
                "precision",
                "gpu",
                "num_gpus",
            )
            names += ("global_batch_size", "sequence_length")
            jobs[tuple(r.group[name] for name in names)].append(float(np.log(r.measured_step_time_s / held)))
    pairs: list[tuple[float, float]] = []
    for ratios in jobs.values():
        found = [abs(a - b) for a, b in combinations(ratios, 2)]
        pairs += [(size, len(ratios) ** 0.5 / len(found)) for size in found]
    return float(np.expm1(weighted_quantile(pairs, 0.8)))


def bands_toml(
    time: Terms,
    tails: float,
    parts: Mapping[str, float],
    unknown: float,
    memory: Mapping[bool, Mapping[str, Spread]],
    precision: float,
    tie: float,
    rows: int,
    table_name: str,
) -> str:
    """The file of deviations; what is no residual's (recurrent layers) stays as it is."""
    t = dict(zip(TERMS, (np.sqrt(time.squares) / QUANTILE_80).tolist(), strict=True))
    levels = "\n".join(
        f"{engine} = {square**0.5 / QUANTILE_80:.3f}" for engine, square in time.levels.items()
    )
    dense, routed = (
        "\n".join(
            f"{engine} = [{', '.join(f'{one:.3f}' for one in each.deviations)}]"
            for engine, each in memory[experts].items()
        )
        for experts in (False, True)
    )
    each_part = "\n".join(f"{name} = {parts[name]:.3f}" for name in PARTS)
    scans, today = deviations()["recurrent"], datetime.now(UTC).date().isoformat()
    source = f'source = "tools/fit_bands.py: {rows:,} runs of {table_name}, each left out in four ways"'
    dated = f'{source}\nas_of = "{today}"\n'
    return f"""\
# Standard deviations of log(measured / predicted), of runs left out; written by tools/fit_bands.py.
# The 80 % interval is exp(±1.28·σ), σ² the sum of the squares of the terms that apply.

[time]
level = {time.other**0.5 / QUANTILE_80:.3f}         # of a publisher, on an engine that nobody published
shape = {t["shape"]:.3f}         # layouts of one user
unmeasured = {t["unmeasured"]:.3f}    # times the root of how many keys no run of engine and generation has
experts = {t["experts"]:.3f}       # routing imbalance and dispatch generations
untabled_gpu = {t["untabled_gpu"]:.3f}  # no kernel tables of this very GPU
tails = {tails:.1f}           # degrees of freedom of Student's t, of layouts of one user around their level
{dated}
[time.engines]  # level of a publisher never measured, on these: containers, drivers, clocks, versions
{levels}
unknown = {unknown**0.5 / QUANTILE_80:.3f}  # no engine: about the mixture of known ones that stands for it

[time.parts]  # of the factor that a publisher never measured has on each part of a step, until runs say it
level = {parts[LEVEL]:.3f}  # of the level of its engine, what all parts share
{each_part}

[time.hosts]  # host time of a layer: engines whose runs say it, and how far one lies from another
engines = {json.dumps(sorted(timed_hosts()))}
difference = {host_difference():.3f}

[memory]
precision = {precision:.3f}     # peaks of one job in another precision differ by this from what is predicted
{dated}
[memory.engines]  # of its sources, or the worst of few; without any the widest's
{dense}

[memory.experts]  # the same with experts, whose sources count beside the dense; without any the widest's
{routed}

[tie]
difference = {tie:.3f}    # 80 % of pairs of layouts of one job differ from the predicted ratio by less
{dated}
[recurrent]  # layers that scan a state, by their roofline: an assumption, no run was measured
time = {scans["time"]}     # kernels reach a third to all of a roofline
memory = {scans["memory"]}  # what fused scans keep, from their source
"""


def fit_bands(path: str) -> None:
    """Fit the terms, count the runs, store both."""
    rows = read_rows(path)
    results = predict_rows(rows, load_calibration())
    beside = peak_tables(path)
    peaks = peaks_beside(beside, results)
    residuals = time_residuals(results)
    judges = [*results, *peaks_beside(as_printed(beside), results)]
    memory = {experts: memory_spreads(judges, experts=experts) for experts in (False, True)}
    timed = [row for row, result in zip(rows, results, strict=True) if result.error is not None]
    terms = fit_terms(residuals)
    text = bands_toml(
        terms,
        tails_of(residuals, terms),
        fit_parts(path, results, kept_columns()),
        level_of_unknown(timed),
        memory,
        precision_difference([*zip(rows, results, strict=True), *beside]),
        tie_difference(results),
        len(results),
        Path(path).name,
    )
    table = json.dumps(table_of(results, peaks), indent=1, ensure_ascii=False)
    BANDS_FILE.write_text(text, encoding="utf-8")
    EVIDENCE_FILE.write_text(table + "\n", encoding="utf-8")
    held = nested(residuals)
    for way in WAYS:
        mine = [r for r in residuals if r.way == way]
        by_row = np.mean([held[way, r.name][1] for r in mine])
        print(f"{way:12s} covered {coverage(mine, held):.3f} by source, {by_row:.3f} by row")
    print(f"peak memory  covered {memory_coverage(results):.3f}")
    print(text)


if __name__ == "__main__":
    fit_bands(sys.argv[1])
