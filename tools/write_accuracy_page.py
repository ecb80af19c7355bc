"""Write docs/accuracy.md, its figures and the README's table; with `--release` also what the gate holds.

`python tools/renew_evidence.py ../shared/data/training_runs_v2.csv` does this last, after what it reads. The
figures of the last release (`costmodel/data/accuracy_snapshot.json`) are written when a version is released.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from anchor_errors import anchoring_table, strangers_table  # noqa: E402
from fit_bands import TERMS, Residual, coverage, kept_columns, nested, time_residuals  # noqa: E402
from unseen_publishers import (  # noqa: E402
    Unseen,
    ranking_by_source,
    unseen_publishers,
    unseen_runs,
    unseen_table,
)

from app.actions.accuracy_plot import step_time_svg  # noqa: E402 - the checkout is not installed
from app.figures.svg_scatter import PlotAxis, scatter  # noqa: E402
from app.reports.training_accuracy import doubt_words, percent  # noqa: E402
from costmodel.accuracy.constants_table import every_constant, origins_of  # noqa: E402
from costmodel.accuracy.left_out import ALL, LEFT_OUT_FILE  # noqa: E402
from costmodel.accuracy.snapshot import SNAPSHOT, snapshot_of  # noqa: E402
from costmodel.accuracy.training import RunResult, Summary, predict_rows, summarise  # noqa: E402
from costmodel.accuracy.training_runs import read_rows, shipped_runs  # noqa: E402
from costmodel.evidence.keys import engine_family  # noqa: E402
from costmodel.kernels.tables import load_calibration  # noqa: E402
from costmodel.runs.cells import Row  # noqa: E402
from costmodel.training.bands import QUANTILE_80, deviations, tie_ratio  # noqa: E402

DOCS, README = ROOT / "docs", ROOT / "README.md"
FIGURES = DOCS / "images" / "accuracy"
TEXT = DOCS / "data" / "accuracy_text.txt"
OPEN, CLOSE = "<!-- accuracy -->", "<!-- /accuracy -->"
WORST = 15
VTRAIN = "vtrain_single_node"
WORDS: Mapping[str, str] = {
    "vendors": "vendor × engine left out",
    "generations": "GPU generation left out",
    "models": "model family left out",
    "layouts": "layouts left out",
}
Held = Mapping[tuple[str, str], tuple[float, bool]]
Groups = Mapping[str, Callable[[RunResult], bool]]
POOLS: Groups = {
    "dense without vTrain": lambda r: not r.doubts.experts and r.group["source"] != VTRAIN,
    "MoE": lambda r: r.doubts.experts,
    "all": lambda _: True,
}
RESIDUALS: Mapping[str, PlotAxis] = {
    "sequence_length": PlotAxis(title="sequence length, tokens"),
    "microbatch_size": PlotAxis(title="microbatch size, sequences"),
    "tp": PlotAxis(title="tensor-parallel degree"),
    "pp": PlotAxis(title="pipeline stages"),
    "num_gpus": PlotAxis(title="GPUs"),
    "hidden_size": PlotAxis(title="hidden size"),
    "head_size": PlotAxis(title="head size (hidden size over heads)"),
}


def left_out(results: Sequence[RunResult], way: str, held: Held) -> list[RunResult]:
    """The same rows predicted, and their bands drawn, by what was fitted without their group."""
    kept = kept_columns()
    return [_left_out(r, float(kept[r.name][f"held_out_{way}_s"]), held[way, r.name][0])
            for r in results if (way, r.name) in held]  # fmt: skip


def _left_out(result: RunResult, seconds: float, width: float) -> RunResult:
    ends = (seconds * math.exp(-width), seconds * math.exp(width))
    return replace(result, predicted_step_time_s=seconds, lower_s=ends[0], upper_s=ends[1])


def line(name: str, *kinds: Summary) -> str:
    """One row of the table: n, then median / mean / p90 and bias of every kind of prediction."""
    cells = [name, f"{kinds[0].timed:,}"]
    for kind in kinds:
        errors = " / ".join(percent(e) for e in (kind.median_error, kind.mean_error, kind.p90_error))
        cells += [errors, percent(kind.bias, signed=True)]
    return "| " + " | ".join(cells) + " |"


def step_time_table(kinds: Sequence[Sequence[RunResult]]) -> str:
    """Errors by source and of the pools: left out in every way, and as shipped."""
    head = [
        "| source | n |" + "".join(f" {words} | bias |" for words in (*WORDS.values(), "as shipped")),
        "|---|---:|" + "---:|---:|" * len(kinds),
    ]
    by_source = [summarise(kind, by="source")[:-1] for kind in kinds]
    lines = [line(group[0].group, *group) for group in zip(*by_source, strict=True)]
    for name, belongs in POOLS.items():
        pools = [summarise([r for r in kind if belongs(r)])[-1] for kind in kinds]
        lines.append(line(f"**{name}**", *pools))
    return "\n".join([*head, *lines])


def other_table(kinds: Sequence[Sequence[RunResult]]) -> str:
    """Memory, band and ranking by source, where there is something to compare."""
    titles = (
        "source", "memory n", "median / p90", *(f"in band, {words}" for words in WORDS.values()),
        "flagged though it fitted", "rank", "regret",
    )  # fmt: skip
    head = ["| " + " | ".join(titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    lines = []
    for *others, s in zip(*(summarise(kind, by="source") for kind in kinds), strict=True):
        memory = f"{percent(s.memory_median_error)} / {percent(s.memory_p90_error)}" if s.memory_rows else "–"
        rank = "–" if np.isnan(s.rank_correlation) else f"{s.rank_correlation:.2f}"
        bands = (percent(kind.coverage, digits=0) for kind in others)
        count, alarms, regret = str(s.memory_rows or "–"), str(s.false_alarms), percent(s.top1_regret)
        cells = (s.group, count, memory, *bands, alarms, rank, regret)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*head, *lines])


def ranking_table(kinds: Sequence[Sequence[RunResult]]) -> str:
    """How layouts are ranked within jobs, by what the constants were fitted without."""
    lines = ["| constants | jobs | Spearman, mean | regret, mean % |", "|---|---:|---:|---:|"]
    for words, kind in zip((*WORDS.values(), "as shipped"), kinds, strict=True):
        s = summarise(kind)[-1]
        lines.append(f"| {words} | {s.ranked_jobs} | {s.rank_correlation:.3f} | {percent(s.top1_regret)} |")
    return "\n".join(lines)


def worst_table(results: Sequence[RunResult]) -> str:
    """Rows that are furthest off, with what makes the model less sure of them."""
    timed = sorted((r for r in results if r.error is not None), key=lambda r: -abs(np.log1p(r.error or 0.0)))
    head = ["| id | model | on | error | less sure because of |", "|---|---|---|---:|---|"]
    lines = [
        f"| {r.name} | {r.group['model']} | {r.group['num_gpus']} × {r.group['gpu']} | "
        f"{percent(r.error or 0.0, signed=True)} | {doubt_words(r) or 'nothing the model knows of'} |"
        for r in timed[:WORST]
    ]
    return "\n".join([*head, *lines])


def residual_figure(results: Sequence[RunResult], column: str, axis: PlotAxis) -> str:
    """Signed error against one property of the run; groups are the pools."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for result in results:
        value = property_of(result, column)
        if result.error is not None and value is not None:
            dense = "vTrain" if result.group["source"] == VTRAIN else "dense"
            groups["MoE" if result.doubts.experts else dense].append((value, 100 * result.error))
    error = PlotAxis(title="error of step time, %", logarithmic=False)
    return scatter(
        dict(sorted(groups.items(), reverse=True)), axis, error,
        title=f"Error of step time against {axis.title}", lines=[(0.0, 0.0)], y_range=(-40, 40),
    )  # fmt: skip


def property_of(result: RunResult, column: str) -> float | None:
    """A property of a run as a number, None where the row does not say."""
    if column == "head_size":
        hidden, heads = (property_of(result, name) for name in ("hidden_size", "num_attention_heads"))
        return None if hidden is None or heads is None else hidden / heads
    text = result.group.get(column, "")
    return float(text) if text.replace(".", "", 1).isdigit() and float(text) > 0 else None


def figures(results: Sequence[RunResult]) -> str:
    """Draw every figure; returns the Markdown that shows them."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / "step_time.svg").write_text(step_time_svg(results, "source"), encoding="utf-8")
    shown = []
    for column, axis in RESIDUALS.items():
        drawn = residual_figure(results, column, axis)
        (FIGURES / f"residual_{column}.svg").write_text(drawn, encoding="utf-8")
        shown.append(f"![Error against {axis.title}](images/accuracy/residual_{column}.svg)")
    return "\n".join(shown)


def coverage_table(residuals: Sequence[Residual], held: Held) -> str:
    """How often bands that have not seen a run hold it, by way of leaving out."""
    lines = [
        "| left out | groups | in band, by source | by run | half width, median | p90 |",
        "|---" + "|---:" * 5 + "|",
    ]
    for way, words in WORDS.items():
        mine = [r for r in residuals if r.way == way]
        widths = np.expm1([held[way, r.name][0] for r in mine])
        inside = np.mean([held[way, r.name][1] for r in mine])
        shares = (coverage(mine, held), float(inside), *np.quantile(widths, [0.5, 0.9]).tolist())
        cells = (words, str(len({r.group for r in mine})), *(percent(share, digits=0) for share in shares))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def chance_table(results: Sequence[RunResult]) -> str:
    """Runs by the chance of OOM that the model gave them."""
    lines = ["| chance of OOM, % | ran | ran out of memory |", "|---|---:|---:|"]
    edges = (0.0, 0.05, 0.25, 0.5, 0.75, 1.0)
    for low, high in pairwise(edges):
        inside = [
            r for r in results if r.out_of_memory_chance is not None and low < r.out_of_memory_chance <= high
        ]
        inside += [r for r in results if r.out_of_memory_chance == low == 0.0]
        out = sum(r.out_of_memory for r in inside)
        lines.append(
            f"| {percent(low, digits=0)} to {percent(high, digits=0)} | {len(inside) - out:,} | {out} |"
        )
    return "\n".join(lines)


def terms_text() -> str:
    """A table of the terms of the band in percent."""
    time = deviations()["time"]
    named = {name: time[name] for name in TERMS} | {
        f"level on {engine}": level for engine, level in time["engines"].items()
    }
    named["level on others"] = time["level"]
    named["host"] = time["hosts"]["difference"]
    rows = [
        f"| {name} | {percent(math.expm1(QUANTILE_80 * float(value)))} |" for name, value in named.items()
    ]
    return "\n".join(["| term, each alone | half width, % |", "|---|---:|", *rows])


def page(
    runs: str,
    kinds: Sequence[Sequence[RunResult]],
    residuals: Sequence[Residual],
    held: Held,
    unseen: Unseen,
) -> str:
    """docs/accuracy.md: the hand-written text with its tables and figures filled in."""
    shipped, vendors = kinds[-1], kinds[list(WORDS).index("vendors")]
    origins = origins_of(every_constant(load_calibration()))
    parts = {
        "unseen": unseen_table(unseen),
        "publishers": str(unseen_publishers(unseen).publishers),
        "publications": str(unseen_publishers(unseen).publications),
        "ranking_by_source": ranking_by_source(runs, vendors),
        "step_time": step_time_table(kinds),
        "other": other_table(kinds),
        "ranking": ranking_table(kinds),
        "coverage": coverage_table(residuals, held),
        "terms": terms_text(),
        "tie": percent(tie_ratio() - 1),
        "precision": str(deviations()["memory"]["precision"]),
        "chances": chance_table(shipped),
        "worst": worst_table(shipped),
        "residuals": figures(shipped),
        "anchoring": anchoring_table(runs, {result.name: result for result in shipped}, kept_columns()),
        "anchored_strangers": strangers_table(unseen.timed),
        "fitted": str(origins.fitted),
        "fixed": str(origins.fixed),
        "chosen": str(origins.chosen),
    }
    text = TEXT.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = text.replace(f"{{{{{name}}}}}", content)
    return text


def unseen_words(unseen: Unseen) -> str:
    """How far off runs of unseen publishers are, in a sentence."""
    known = unseen_publishers(unseen)
    errors = " / ".join(percent(e) for e in (known.median_error, known.mean_error, known.p90_error))
    memory = summarise(unseen.peaks)[-1]
    return (
        f"**{known.runs} runs of {known.publishers} publishers that no constant was fitted to: {errors} % "
        f"(median / mean / p90), {percent(known.in_band, digits=0)} % of them inside their 80 % band.** "
        "Expect this of your own first question. "
        f"Peak memory of {memory.memory_rows} runs of such publishers, most of them untimed: "
        f"{percent(memory.memory_median_error)} % in the median, {percent(memory.memory_p90_error)} % at p90."
    )


def readme_table(kinds: Sequence[Sequence[RunResult]], unseen: Unseen) -> str:
    """The pools alone, for the README; what is most like a user's own case leads."""
    head = [
        unseen_words(unseen),
        "",
        "| step time off by, % (median / mean / p90) | n | "
        + " | ".join((*WORDS.values(), "as shipped"))
        + " |",
        "|---|---:|" + "---:|" * len(kinds),
    ]
    lines = []
    for name, belongs in POOLS.items():
        pools = [summarise([r for r in kind if belongs(r)])[-1] for kind in kinds]
        cells = [" / ".join(percent(e) for e in (p.median_error, p.mean_error, p.p90_error)) for p in pools]
        lines.append(f"| {name} | {pools[0].timed:,} | " + " | ".join(cells) + " |")
    everything = [summarise(kind)[-1] for kind in kinds]
    memory = everything[-1]
    ranks = (f"{s.rank_correlation:.2f} / {percent(s.top1_regret)}" for s in everything)
    lines.append(f"| ranking of {memory.ranked_jobs} jobs: Spearman / regret | | " + " | ".join(ranks) + " |")
    said = (
        f"Peak memory of {memory.memory_rows} runs of the rows above: "
        f"{percent(memory.memory_median_error)} % in the median, "
        f"{percent(memory.memory_p90_error)} % at p90. "
        "By source: [docs/accuracy.md](docs/accuracy.md)."
    )
    return "\n".join([*head, *lines, "", said])


def write_readme(table: str) -> None:
    """Put the table between the README's markers."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(OPEN, 1)
    after = rest.split(CLOSE, 1)[1]
    README.write_text(f"{before}{OPEN}\n{table}\n{CLOSE}{after}", encoding="utf-8")


def left_out_toml(unseen: Unseen) -> str:
    """Errors by engine of runs predicted without their vendor, of docs/data/cross_validation.csv."""
    ratios: dict[str, list[float]] = {ALL: []}
    for row in kept_columns().values():
        error = abs(float(row["held_out_vendors_s"]) / float(row["measured_s"]) - 1)
        for name in (ALL, engine_family(row["stack"])):
            ratios.setdefault(name, []).append(error)
    lines = ["# Runs predicted without their vendor, by engine; written by tools/write_accuracy_page.py.", ""]
    lines += ['source = "tools/leave_out.py: vendor × engine left out, docs/data/cross_validation.csv"', ""]
    known = unseen_publishers(unseen)
    lines += ["[unseen]  # publishers that no constant was fitted to"]
    counts = ("publishers", "publications", "runs")
    lines += [f"{key} = {getattr(known, key)}" for key in counts]
    keys = ("median_error", "mean_error", "p90_error", "in_band")
    lines += [*(f"{key} = {getattr(known, key):.6f}" for key in keys), ""]
    for name, errors in sorted(ratios.items()):
        numbers = (np.median(errors), np.mean(errors), np.quantile(errors, 0.9))
        lines += [f"[engines.{name}]", f"runs = {len(errors)}"]
        lines += [*(f"{key} = {value:.6f}" for key, value in zip(keys[:3], numbers, strict=True)), ""]
    return "\n".join(lines)


def predicted(rows: Sequence[Row]) -> list[RunResult]:
    """Rows as the shipped constants predict them."""
    return predict_rows(rows, load_calibration())


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", help="the large table of measured runs")
    parser.add_argument("--release", action="store_true", help="also write what the regression gate holds")
    options = parser.parse_args()
    full = predicted(read_rows(options.runs))
    residuals = time_residuals(full)
    held = nested(residuals)
    kinds = [*(left_out(full, way, held) for way in WORDS), full]
    unseen = unseen_runs(options.runs)
    (DOCS / "accuracy.md").write_text(page(options.runs, kinds, residuals, held, unseen), encoding="utf-8")
    write_readme(readme_table(kinds, unseen))
    LEFT_OUT_FILE.write_text(left_out_toml(unseen), encoding="utf-8")
    if options.release:
        figures_of = {"published": snapshot_of(predicted(shipped_runs())), "full": snapshot_of(full)}
        SNAPSHOT.write_text(json.dumps(figures_of, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"wrote {DOCS / 'accuracy.md'}, {README} and {len(RESIDUALS) + 1} figures")


if __name__ == "__main__":
    main()
