"""Tables of docs/accuracy.md about publishers that no constant was fitted to, and of rankings by publication.

Their step times are in `training_runs_v3.csv` beside the rows of the fit, their layouts of one job in
`rankings.csv`, their peaks in `PEAK_TABLES`, whose spread is that of the memory's band. Mechanisms were
worked out with some of these rows in sight. A publisher has one or more publications: tables, threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from urllib.parse import urlsplit

from fit_bands import PEAK_TABLES

from app.reports.training_accuracy import percent
from costmodel.accuracy.left_out import UnseenPublishers
from costmodel.accuracy.ranking import RankedJob, ranked_jobs
from costmodel.accuracy.training import RunResult, Summary, predict_rows, summarise
from costmodel.accuracy.training_runs import read_rows
from costmodel.kernels.tables import load_calibration

TIMED, RANKED = "training_runs_v3.csv", "rankings.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Runs of publishers that are not in a table, predicted as shipped: timed ones, and those with a peak."""

    timed: Sequence[RunResult]
    peaks: Sequence[RunResult]
    publishers: int


def unseen_runs(path: Path | str) -> Unseen:
    """Runs beside this table of publishers that it does not have, each once."""
    fitted = {row["source"] for row in read_rows(path)}
    rows = {
        row["id"]: row
        for name in (TIMED, *(f"{table}.csv" for table in PEAK_TABLES))
        for row in read_rows(Path(path).with_name(name))
        if row["source"] not in fitted
    }
    results = predict_rows(list(rows.values()), load_calibration(), by_part=True)
    names = {row["id"] for row in read_rows(Path(path).with_name(TIMED))}
    timed = [r for r in results if r.name in names and r.error is not None]
    return Unseen(
        timed=timed,
        publishers=len({publisher_of(rows[r.name]["url"]) for r in timed}),
        peaks=[r for r in results if r.memory_error is not None and not r.out_of_memory],
    )


def publisher_of(url: str) -> str:
    """Who published a page: the owner of a repository, else the host.

    >>> publisher_of("https://github.com/FlagOpen/FlagPerf/blob/main/README.md"), publisher_of("https://a.org/b")
    ('flagopen', 'a.org')
    """
    address = urlsplit(url)
    owner = address.path.strip("/").partition("/")[0].lower()
    return owner if address.netloc.endswith(("github.com", "githubusercontent.com")) else address.netloc


def unseen_publishers(unseen: Unseen) -> UnseenPublishers:
    """What the timed runs sum up to."""
    everything = summarise(unseen.timed)[-1]
    return UnseenPublishers(
        publishers=unseen.publishers,
        publications=len({r.group["source"] for r in unseen.timed}),
        runs=everything.timed,
        median_error=everything.median_error,
        mean_error=everything.mean_error,
        p90_error=everything.p90_error,
        in_band=everything.coverage,
    )


def unseen_table(unseen: Unseen) -> str:
    """Step time and peak memory by publication, and of all."""
    times = {each.group: each for each in summarise(unseen.timed, by="source")}
    peaks = {each.group: each for each in summarise(unseen.peaks, by="source")}
    lines = [
        "| publication | runs | step time off by | bias | in band | peaks | memory off by, median / p90 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    names = [*sorted({*times, *peaks} - {"all"}), "all"]
    for name in names:
        words = f"**{name}**" if name == "all" else name
        lines.append(f"| {words} | {_times(times.get(name))} | {_peaks(peaks.get(name))} |")
    return "\n".join(lines)


def _times(summary: Summary | None) -> str:
    if summary is None:
        return "– | – | – | –"
    errors = " / ".join(percent(e) for e in (summary.median_error, summary.mean_error, summary.p90_error))
    bias, inside = percent(summary.bias, signed=True), percent(summary.coverage, digits=0)
    return f"{summary.timed} | {errors} | {bias} | {inside}"


def _peaks(summary: Summary | None) -> str:
    if summary is None or not summary.memory_rows:
        return "– | –"
    errors = f"{percent(summary.memory_median_error)} / {percent(summary.memory_p90_error)}"
    return f"{summary.memory_rows} | {errors}"


def ranking_by_source(path: Path | str, left_out: Sequence[RunResult]) -> str:
    """Jobs of every publication: those of the table without their vendor, those of `RANKED` as shipped."""
    jobs = ranked_jobs((r.group, r.measured_step_time_s, r.predicted_step_time_s) for r in left_out)
    by_source: dict[str, list[RankedJob]] = defaultdict(list)
    for job in [*jobs, *_ranked(path)]:
        by_source[job.job[0]].append(job)
    lines = [
        "| publication | jobs | Spearman, mean | regret, mean % | regret, worst % |",
        "|---|---:|---:|---:|---:|",
        *(_ranking(name, [of], worst=of) for name, of in sorted(by_source.items())),
    ]
    all_of_them = [job for of in by_source.values() for job in of]
    name = f"**median of {len(by_source)} publications**"
    return "\n".join([*lines, _ranking(name, list(by_source.values()), worst=all_of_them)])


def _ranking(name: str, of: Sequence[Sequence[RankedJob]], *, worst: Sequence[RankedJob]) -> str:
    """A row: the medians over publications of the means over their jobs, and the worst job."""
    spearman = median(mean(job.spearman for job in jobs) for jobs in of)
    regret = median(mean(job.regret for job in jobs) for jobs in of)
    most = max(job.regret for job in worst)
    return f"| {name} | {len(worst)} | {spearman:.2f} | {percent(regret)} | {percent(most)} |"


def _ranked(path: Path | str) -> list[RankedJob]:
    """Jobs of `RANKED`, which names them and has a row for each layout; of publishers beyond the table."""
    fitted = {row["source"] for row in read_rows(path)}
    rows = [row for row in read_rows(Path(path).with_name(RANKED)) if row["source"] not in fitted]
    return ranked_jobs(
        (
            {"source": row["source"], "model": row["job"], "tp": row["id"]},
            r.measured_step_time_s,
            r.predicted_step_time_s,
        )
        for row, r in zip(rows, predict_rows(rows, load_calibration()), strict=True)
    )
