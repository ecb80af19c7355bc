"""Write docs/accuracy.md, its figures, the README's table, and the snapshot that the regression gate holds.

Run `python tools/write_accuracy_page.py ../shared/data/training_runs_v2.csv`. After a refit, first renew the
held-out columns: `python tools/fit_constants.py` with that table, `--cross-validate layouts,sources` and
`--save docs/data/cross_validation.csv`.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from app.actions.accuracy_plot import step_time_svg  # noqa: E402 - the checkout is not installed
from app.figures.svg_scatter import PlotAxis, scatter  # noqa: E402
from app.reports.training_accuracy import doubt_words, percent  # noqa: E402
from costmodel.accuracy.constants_table import every_constant  # noqa: E402
from costmodel.accuracy.snapshot import SNAPSHOT, snapshot_of  # noqa: E402
from costmodel.accuracy.training import RunResult, Summary, predict_rows, summarise  # noqa: E402
from costmodel.accuracy.training_runs import read_rows, shipped_runs  # noqa: E402
from costmodel.kernels.tables import load_calibration  # noqa: E402
from costmodel.runs.cells import Row  # noqa: E402
from costmodel.training.bands import interval, time_deviation  # noqa: E402

DOCS, README = ROOT / "docs", ROOT / "README.md"
FIGURES = DOCS / "images" / "accuracy"
TEXT = DOCS / "data" / "accuracy_text.txt"
OPEN, CLOSE = "<!-- accuracy -->", "<!-- /accuracy -->"
WORST = 15
VTRAIN = "vtrain_single_node"
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


def with_seconds(results: Sequence[RunResult], column: str) -> list[RunResult]:
    """The same rows with the held-out predictions of one column of the cross-validation, and their bands.

    Where a whole source is held out, an engine that no other source ran counts as one without runs.
    """
    with (DOCS / "data" / "cross_validation.csv").open(encoding="utf-8") as file:
        seconds = {row["id"]: float(row[column]) for row in csv.DictReader(file)}
    sources: dict[str, set[str]] = defaultdict(set)
    for r in results:
        sources[r.stack].add(r.group["source"])
    alone = {stack for stack, names in sources.items() if len(names) == 1 and "sources" in column}
    return [held_out(r, seconds[r.name], alone=r.stack in alone) for r in results if r.name in seconds]


def held_out(result: RunResult, seconds: float, *, alone: bool) -> RunResult:
    """The row with another prediction, and the band around that."""
    doubts = replace(result.doubts, unmeasured_stack=alone or result.doubts.unmeasured_stack)
    lower_s, upper_s = interval(seconds, time_deviation(doubts))
    return replace(result, predicted_step_time_s=seconds, lower_s=lower_s, upper_s=upper_s, doubts=doubts)


def line(name: str, *kinds: Summary) -> str:
    """One row of the table: n, then median / mean / p90 and bias of every kind of prediction."""
    cells = [name, f"{kinds[0].timed:,}"]
    for kind in kinds:
        errors = " / ".join(percent(e) for e in (kind.median_error, kind.mean_error, kind.p90_error))
        cells += [errors, percent(kind.bias, signed=True)]
    return "| " + " | ".join(cells) + " |"


def step_time_table(kinds: Sequence[Sequence[RunResult]]) -> str:
    """Errors by source and of the pools: as shipped, layouts held out, whole sources held out."""
    head = [
        "| source | n | as shipped | bias | layouts held out | bias | whole source held out | bias |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
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
        "source", "memory n", "median / p90", "in 80 % band", "layouts held out", "source held out",
        "flagged though it fitted", "rank", "regret",
    )  # fmt: skip
    head = ["| " + " | ".join(titles) + " |", "|---" + "|---:" * (len(titles) - 1) + "|"]
    lines = []
    for s, *others in zip(*(summarise(kind, by="source") for kind in kinds), strict=True):
        memory = f"{percent(s.memory_median_error)} / {percent(s.memory_p90_error)}" if s.memory_rows else "–"
        rank = "–" if np.isnan(s.rank_correlation) else f"{s.rank_correlation:.2f}"
        bands = (percent(kind.coverage, digits=0) for kind in (s, *others))
        count, alarms, regret = str(s.memory_rows or "–"), str(s.false_alarms), percent(s.top1_regret)
        cells = (s.group, count, memory, *bands, alarms, rank, regret)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*head, *lines])


def anchoring_table() -> str:
    """Errors of unseen sources under anchors of a few of their runs."""
    from benchmarks.bench_accuracy import errors_anchored_by

    lines = ["| runs of the source | median / mean / p90 |", "|---:|---:|"]
    for count in (0, 1, 2, 3, 5):
        errors = errors_anchored_by(count)
        found = (float(np.median(errors)), float(errors.mean()), float(np.quantile(errors, 0.9)))
        lines.append(f"| {count} | " + " / ".join(percent(error) for error in found) + " |")
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


def page(kinds: Sequence[Sequence[RunResult]]) -> str:
    """docs/accuracy.md: the hand-written text with its tables and figures filled in."""
    shipped = kinds[0]
    constants = every_constant(load_calibration()).items()
    origins = [constant.fitted_on for name, constant in constants if not name.startswith("network.")]
    fixed = [origin for origin in origins if origin.startswith("fixed")]
    parts = {
        "step_time": step_time_table(kinds),
        "other": other_table(kinds),
        "worst": worst_table(shipped),
        "residuals": figures(shipped),
        "anchoring": anchoring_table(),
        "fitted": str(len(origins) - len(fixed)),
        "fixed": str(len(fixed)),
        "chosen": str(sum(origin.startswith("fixed: chosen") for origin in fixed)),
    }
    text = TEXT.read_text(encoding="utf-8")
    for name, content in parts.items():
        text = text.replace(f"{{{{{name}}}}}", content)
    return text


def readme_table(kinds: Sequence[Sequence[RunResult]]) -> str:
    """The pools alone, for the README."""
    head = [
        "| step time off by, % (median / mean / p90) | n | as shipped | layouts held out | source held out |",
        "|---|---:|---:|---:|---:|",
    ]
    lines = []
    for name, belongs in POOLS.items():
        pools = [summarise([r for r in kind if belongs(r)])[-1] for kind in kinds]
        cells = [" / ".join(percent(e) for e in (p.median_error, p.mean_error, p.p90_error)) for p in pools]
        lines.append(f"| {name} | {pools[0].timed:,} | " + " | ".join(cells) + " |")
    memory = summarise(kinds[0])[-1]
    said = (
        f"Peak memory of {memory.memory_rows} runs: {percent(memory.memory_median_error)} % in the median, "
        f"{percent(memory.memory_p90_error)} % at p90. By source: [docs/accuracy.md](docs/accuracy.md)."
    )
    return "\n".join([*head, *lines, "", said])


def write_readme(table: str) -> None:
    """Put the table between the README's markers."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(OPEN, 1)
    after = rest.split(CLOSE, 1)[1]
    README.write_text(f"{before}{OPEN}\n{table}\n{CLOSE}{after}", encoding="utf-8")


def predicted(rows: Sequence[Row]) -> list[RunResult]:
    """Rows as the shipped constants predict them."""
    return predict_rows(rows, load_calibration())


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", help="the large table of measured runs")
    full = predicted(read_rows(parser.parse_args().runs))
    kinds = [full, *(with_seconds(full, f"held_out_{name}_s") for name in ("layouts", "sources"))]
    (DOCS / "accuracy.md").write_text(page(kinds), encoding="utf-8")
    write_readme(readme_table(kinds))
    held = {"published": snapshot_of(predicted(shipped_runs())), "full": snapshot_of(full)}
    SNAPSHOT.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"wrote {DOCS / 'accuracy.md'}, {README}, {SNAPSHOT} and {len(RESIDUALS) + 1} figures")


if __name__ == "__main__":
    main()
