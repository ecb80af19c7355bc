"""A diagnosis as text: the verdict, where the step went beside the prediction, causes and what cures them."""

from __future__ import annotations

from app.quantities import format_count, format_percent
from app.reports.answer import Answer, Facts, Lines, Section, Table, json_text
from costmodel.estimate import PART_NAMES, throughput_change
from planner.diagnose.beside import SideEvidence
from planner.diagnose.diagnosis import Diagnosis, mean_parts
from planner.diagnose.finding import StepFinding
from planner.diagnose.model_size import ModelSize
from planner.diagnose.serving import ServedSteps
from planner.traces.memory_snapshots import RecordedMemory
from topology.base.units import format_bytes, format_seconds

MOST_PARTS, MOST_FINDINGS, MOST_RESIDUALS = 10, 4, 6
"""Rows of each table: an answer is read on one screen."""
MOST_MEMORIES = 2
HIDDEN = 0.5
"""Share of a cause's seconds that the step is shorter without it; less, and other work hides most of them."""
LEAST_SHARE = 0.001
"""Of a step: a smaller part has no row."""


def diagnose_answer(diagnosis: Diagnosis | SideEvidence, exit_code: int) -> Answer:
    """Everything `plan diagnose` says."""
    if isinstance(diagnosis, SideEvidence):
        return _side_answer(diagnosis, exit_code)
    sections: list[Section] = [Facts(title="", pairs=tuple(_facts(diagnosis)))]
    if diagnosis.findings:
        sections.append(_findings(diagnosis))
    if diagnosis.served is not None:
        sections.append(_served(diagnosis.served))
    sections.append(_parts(diagnosis))
    if diagnosis.residuals:
        sections.append(_residuals(diagnosis))
    sections += _memory_tables(diagnosis.beside)
    if diagnosis.notes:
        sections.append(Lines(title="Left out", lines=diagnosis.notes[:3]))
    return Answer(
        headline=headline(diagnosis),
        sections=tuple(sections),
        document=lambda: json_text(diagnosis.document()),
        records=tuple(
            {"rank": each.rank, "step": each.number, "part": part, "seconds": seconds}
            for each in diagnosis.steps
            for part, seconds in each.budget.parts.items()
        ),
        exit_code=exit_code,
    )


def _side_answer(side: SideEvidence, exit_code: int) -> Answer:
    """What records explain where no trace is among them."""
    document = side.document()
    first = side.findings[0] if side.findings else None
    verdict = f"{first.words}: {first.evidence}" if first is not None else "no cause is recorded"
    pairs = [("server", words) for words in side.servers]
    pairs += [("memory", _memory(each)) for each in side.memory[MOST_MEMORIES:]]  # others have a table
    if side.slowdown is not None:
        lost = side.slowdown.seconds - side.slowdown.ideal_s
        pairs.append(
            ("step", f"{format_seconds(side.slowdown.seconds)}, {format_seconds(lost)} to stragglers")
        )
    sections: list[Section] = [Facts(title="", pairs=tuple(pairs))] if pairs else []
    sections += _memory_tables(side)
    lines = tuple(
        f"{each.words}{'' if each is first else f': {each.evidence}'}\nfix: {each.fix}"
        for each in side.findings[:MOST_FINDINGS]
    )
    if lines:
        sections.append(Lines(title="Causes", lines=lines, ordered=True))
    return Answer(
        headline=verdict,
        sections=tuple(sections),
        document=lambda: json_text(document),
        records=tuple(document["findings"]),
        exit_code=exit_code,
    )


def _memory_tables(side: SideEvidence) -> list[Section]:
    """Parts of the first memories, beside the plan's where there is one."""
    tables: list[Section] = []
    for memory, rows in list(zip(side.memory, side.memory_budgets, strict=False))[:MOST_MEMORIES]:
        planned = any(row.predicted_bytes is not None for row in rows)
        tables.append(
            Table(
                title=f"Memory at its peak, {format_bytes(memory.peak_bytes)}"
                + ("" if memory.rank is None else f", rank {memory.rank}"),
                columns=("part", "recorded", *(("planned",) if planned else ())),
                rows=tuple(
                    (
                        f"{row.part} ({row.of})" if row.of else row.part,
                        format_bytes(row.recorded_bytes),
                        *((_bytes(row.predicted_bytes),) if planned else ()),
                    )
                    for row in rows
                ),
                note="fragmentation is what the allocator holds of the device beyond the peak",
            )
        )
    return tables


def _bytes(size: float | None) -> str:
    return "" if size is None else format_bytes(size)


def _memory(memory: RecordedMemory) -> str:
    """A recorded memory in a line: its peak, by its largest categories."""
    largest = sorted(memory.at_peak.items(), key=lambda item: -item[1])[:3]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    rank = "" if memory.rank is None else f"rank {memory.rank}: "
    return f"{rank}peak {format_bytes(memory.peak_bytes)}" + (f" ({parts})" if parts else "")


def headline(diagnosis: Diagnosis) -> str:
    """The verdict in one line."""
    job = diagnosis.job
    marked = any(trace.windows for trace in job.traces)
    step = f"{'a step takes' if marked else 'the recording covers'} {format_seconds(job.step_s)}"
    if not diagnosis.findings:
        return f"{step}: no cause costs enough to change"
    first = diagnosis.findings[0]
    if first.cause == "layout contradiction":
        return f"{step}, of another job than the script's: {first.evidence}"
    share = format_percent(first.share)
    if first.step_without_s is not None and job.step_s - first.step_without_s < HIDDEN * first.seconds:
        return f"{step}: {first.words} takes {share} of it, most of that beside other work"
    return f"{step}: {share} of it goes to {first.words}"


def _facts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    job, totals = diagnosis.job, diagnosis.step_totals
    ranks = f"{len(job.traces)} of {job.layout.world_size} ranks" if job.layout.world_size > 1 else "one rank"
    steps = (
        f"{job.steps} step{'s' if job.steps > 1 else ''}"
        if any(trace.windows for trace in job.traces)
        else "no steps marked"
    )
    gpu = any(trace.gpu for trace in job.traces)
    device = next((trace.device for trace in job.traces if trace.device), "")
    degrees = " ".join(f"{axis} {degree}" for axis, degree in job.layout.degrees.items())
    compute, sent, exposed = map(
        format_seconds, (totals.compute_s, totals.communication_s, totals.exposed_communication_s)
    )
    of = "a step" if any(trace.windows for trace in job.traces) else "the recording"
    share = format_percent(totals.busy_s / max(totals.total_s, 1e-12))
    busy = f"{share} busy; {of} computes {compute}, communicates {sent}, exposed {exposed}"
    pairs = [("read", f"{ranks}, {steps}{f', {device}' if device else ''}{'' if gpu else ', host only'}")]
    if degrees:
        pairs.append(("layout", degrees))
    pairs.append(("GPU" if gpu else "host", busy))
    if diagnosis.model is not None:
        pairs.append(("model", _model(diagnosis.model)))
    if diagnosis.prediction is not None:
        estimate = diagnosis.prediction.estimate
        band = f"{format_seconds(estimate.lower_s)} to {format_seconds(estimate.upper_s)}"
        pairs.append(("predicted", f"{format_seconds(estimate.step_time_s)} a step, band {band}"))
    return pairs


def _model(model: ModelSize) -> str:
    """A model by its shapes."""
    words = [f"{format_count(model.parameters)} weights on a rank"]
    if model.hidden_size and model.vocabulary:
        words += [f"hidden size {model.hidden_size:,}", f"vocabulary {model.vocabulary:,}"]
    return f"{', '.join(words)}, by the shapes of its products"


def _findings(diagnosis: Diagnosis) -> Lines:
    """Causes, with what shows them and what cures them."""
    lines = tuple(
        f"{each.words}: {each.evidence}{_gain(diagnosis.job.step_s, each)}\nfix: {each.fix}"
        for each in diagnosis.findings[:MOST_FINDINGS]
    )
    return Lines(title="Causes", lines=lines, ordered=True)


def _gain(step_s: float, finding: StepFinding) -> str:
    """How much faster the step is without a cause: timed once more, else a bound."""
    timed = finding.step_without_s is not None
    left = finding.step_without_s if finding.step_without_s is not None else step_s - finding.seconds
    if left <= 0 or not finding.seconds:
        return ""
    faster = format_percent(throughput_change(step_s, left))
    return (
        f", {faster} faster without (the step timed once more)"
        if timed
        else f", at most {faster} faster without"
    )


def _parts(diagnosis: Diagnosis) -> Table:
    """Where a step went: mean over steps and ranks."""
    parts = mean_parts([each.budget for each in diagnosis.steps])
    total = sum(parts.values()) or 1.0
    shown = [(name, value) for name, value in parts.items() if value >= LEAST_SHARE * total][:MOST_PARTS]
    rest = total - sum(value for _, value in shown)
    rows = [*shown, *((("the rest", rest),) if rest > LEAST_SHARE * total else ())]
    return Table(
        title="Where a step goes",
        columns=("part", "time", "share"),
        rows=tuple((name, format_seconds(value), format_percent(value / total)) for name, value in rows),
        note="parts exclude each other and sum to the step; means over steps and ranks",
    )


def _served(served: ServedSteps) -> Table:
    """Steps of a server by what they do."""
    note = ""
    if served.token_gap_p99_s is not None:
        slow = format_seconds(served.token_gap_p99_s)
        note = f"1 of 100 tokens takes {slow} or more after the one before, most of it {served.slowest_by}"
    return Table(
        title="Steps of the server",
        columns=("step", "count", "requests", "tokens", "time", "p99", "GPU busy", "in graphs", "predicted"),
        rows=tuple(
            (
                each.kind,
                f"{each.steps:,}",
                f"{each.requests:.0f}",
                _tokens(each.prompt_tokens if each.kind.startswith("prefill") else each.cached_tokens),
                format_seconds(each.wall_s),
                format_seconds(each.p99_s),
                format_seconds(each.busy_s),
                format_percent(each.graph_share),
                format_seconds(each.predicted_s) if each.predicted_s is not None else "",
            )
            for each in served.kinds
        ),
        note=note or "tokens are those of prompts, or in the caches of requests that decode",
        align="lrrrrrrrr",
    )


def _tokens(count: float | None) -> str:
    return "" if count is None else f"{count:,.0f}"


def _residuals(diagnosis: Diagnosis) -> Table:
    """Terms beside the model's."""
    return Table(
        title="Beside the prediction",
        columns=("term", "recorded", "predicted", "band", "verdict"),
        rows=tuple(
            (
                PART_NAMES.get(each.part, each.part),
                format_seconds(each.recorded_s),
                format_seconds(each.predicted_s),
                f"{format_seconds(each.lower_s)} to {format_seconds(each.upper_s)}",
                each.verdict,
            )
            for each in diagnosis.residuals[:MOST_RESIDUALS]
        ),
        align="lrrrl",
    )
