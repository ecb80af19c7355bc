"""From the flags of `plan accuracy` to its answer: which runs, training or serving, with which anchor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app.actions.accuracy_plot import write_plot
from app.errors import INTERRUPTED
from app.reports.answer import Answer, note
from app.reports.training_accuracy import DEFAULT_WORST, Anchoring, Wishes, accuracy_answer
from app.terminal.progress import waiting
from costmodel.accuracy.anchor import Anchor, anchor_of, anchored, left_one_out
from costmodel.accuracy.constants_table import every_constant
from costmodel.accuracy.csv_table import RunTable, read_table
from costmodel.accuracy.kept_anchors import find_anchor, names_a_file, remember, with_levels
from costmodel.accuracy.lora_benchmark import read_benchmark
from costmodel.accuracy.serving_runs import is_serving_schema
from costmodel.accuracy.training import GROUP_COLUMNS, RunResult, predict_rows, training_not_reached
from costmodel.accuracy.training_runs import PUBLISHED_RUNS, training_rows
from costmodel.kernels.level import StackLevel
from costmodel.kernels.tables import Calibration, load_calibration
from topology.base.errors import InputError
from topology.base.names import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyQuestion:
    """The flags of one call; see `app.commands.accuracy`."""

    runs: Path | None = None
    by: str | None = None
    worst: int | None = None
    plot: Path | None = None
    constants: bool = False
    anchor: str | None = None
    name: str | None = None
    trust_paths: bool = False


def predicted_answer(question: AccuracyQuestion) -> Answer:
    """Predict the runs and tell the errors."""
    if question.name is not None and (question.anchor is None or not names_a_file(question.anchor)):
        raise InputError(
            what="there is no anchor to keep",
            cause=f"--name {question.name} without runs to fit one to",
            fix=f"use --anchor RUNS.csv --name {question.name}",
        )
    path = _path(question)
    table = read_table(path)
    if is_serving_schema(set(table.columns)):
        return _serving_answer(table, question)
    cal = load_calibration()
    rows = training_rows(read_benchmark(table, cal), path)
    wishes = Wishes(
        by=_columns(question.by),
        worst=DEFAULT_WORST if question.worst is None else question.worst,
        constants=every_constant(cal) if question.constants else {},
        fitted=path == PUBLISHED_RUNS,
    )
    kept_anchor = _kept_anchor(question, path, cal)
    done: dict[int, RunResult] = {}
    predict = partial(
        predict_rows, rows, cal, trust_paths=question.trust_paths, by_part=question.anchor is not None
    )
    with waiting(lambda: f"predicting {len(rows):,} runs, {len(done):,} done"):
        stopped = _stopped(partial(predict, done=done))
        results = [done.get(i) or training_not_reached(row, i) for i, row in enumerate(rows)]
        pricing = (lambda **_: results) if stopped else predict
        results, anchoring = _anchored(results, question, kept_anchor, pricing)
    if question.plot is not None:
        write_plot(question.plot, results, wishes.by[0])
        note(f"drew {question.plot}")
    return _kept_so_far(accuracy_answer(results, wishes, anchoring), len(done), stopped=stopped)


def _stopped(predict: Callable[[], object]) -> bool:
    """Whether the user interrupted what fills a table of results; what is done is kept."""
    try:
        predict()
    except KeyboardInterrupt:
        return True
    return False


def _kept_so_far(answer: Answer, done: int, *, stopped: bool) -> Answer:
    """The answer, which says of itself when it is of a part of the rows."""
    if not stopped:
        return answer
    headline = f"interrupted after {done:,} rows; {answer.headline}"
    return replace(answer, headline=headline, exit_code=INTERRUPTED)


def _path(question: AccuracyQuestion) -> Path:
    """The runs to predict: the ones given, else those of the anchor, else the published ones."""
    if question.runs is not None:
        return question.runs
    if question.anchor is not None and names_a_file(question.anchor):
        return Path(question.anchor)
    return PUBLISHED_RUNS


def _columns(text: str | None) -> tuple[str, ...]:
    """Columns to group by."""
    words = [word.strip() for word in (text or "source").split(",") if word.strip()]
    return tuple(resolve(word, GROUP_COLUMNS, "column") for word in words) or ("source",)


def _serving_answer(table: RunTable, question: AccuracyQuestion) -> Answer:
    """The answer for measured serving runs; what only training has is refused."""
    from app.reports.serving_accuracy import serving_accuracy_answer
    from costmodel.accuracy.serving import ServingResult, serving_not_reached
    from costmodel.accuracy.serving_processes import predict_by_processes

    unused = {
        "--anchor": question.anchor, "--plot": question.plot, "--worst": question.worst,
        "--constants": question.constants or None,
    }  # fmt: skip
    given = [flag for flag, value in unused.items() if value is not None]
    if given:
        raise InputError(
            what=f"{given[0]} is not for serving runs",
            cause="the table has the columns of serving_runs.csv",
            fix=f"leave {given[0]} out",
        )
    done: dict[int, ServingResult] = {}
    with waiting(lambda: f"simulating {len(table.rows):,} serving runs, {len(done):,} done"):
        stopped = _stopped(lambda: predict_by_processes(table.rows, done))
    results = [done.get(i) or serving_not_reached(row, i) for i, row in enumerate(table.rows)]
    answer = serving_accuracy_answer(results, by=question.by or "model")
    return _kept_so_far(answer, len(done), stopped=stopped)


def _kept_anchor(question: AccuracyQuestion, path: Path, cal: Calibration) -> Anchor | None:
    """The anchor, where it is not fitted on the table itself: before its rows take their time."""
    if question.anchor is None or (names_a_file(question.anchor) and Path(question.anchor) == path):
        return None
    return find_anchor(question.anchor, cal, trust_paths=question.trust_paths)


def _anchored(
    results: Sequence[RunResult],
    question: AccuracyQuestion,
    kept_anchor: Anchor | None,
    predict: Callable[..., Sequence[RunResult]],
) -> tuple[list[RunResult], Anchoring | None]:
    """The rows under the anchor asked for; rows the anchor was fitted on are corrected by the others only."""
    if question.anchor is None:
        return list(results), None
    anchors_itself = kept_anchor is None

    def priced(levels: Sequence[StackLevel]) -> Sequence[RunResult]:
        return predict(levels=levels) if levels else results

    if kept_anchor is None:
        anchor, at_level = anchor_of(priced, name=question.anchor)
        anchor = with_levels(anchor, question.anchor)
    else:
        anchor, at_level = kept_anchor, priced(kept_anchor.levels)
    if question.name is not None:
        anchor = _kept(anchor, question.name)
    after = left_one_out(at_level) if anchors_itself else [anchored(result, anchor) for result in at_level]
    return after, Anchoring(anchor=anchor, before=results, anchors_itself=anchors_itself)


def _kept(anchor: Anchor, name: str) -> Anchor:
    """The anchor under its name, after keeping it."""
    note(f"kept the anchor in {remember(anchor, name)}; use it with plan --anchor {name}")
    return replace(anchor, name=name)
