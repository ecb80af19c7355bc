"""What to know of an audited job before all else: a few sentences, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.quantities import format_over_best
from app.reports.answer import NO_BREAK
from app.reports.plan_headline import cluster_of
from costmodel.estimate import PART_NAMES, Estimate
from costmodel.layout import layout_words
from costmodel.memory.fit import fit_of
from costmodel.models.spec import ModelSpec
from planner.audit.audit import Audit
from planner.audit.changes import Change
from planner.audit.environment import SLOWING
from planner.audit.findings import STARTED
from planner.audit.legal import Finding
from planner.audit.verdict import EVEN
from planner.audit.words import FAMILIES
from planner.plan import PlanRequest
from topology.base.counts import counted
from topology.base.units import format_bytes, format_seconds

MOST_SENTENCES = 3
"""What a person reads before scrolling: with the headline, five lines."""
LONGEST_CHANGE = 120
"""Letters of a change that stands in a sentence; longer ones are in their table alone."""


def headline_of(audit: Audit) -> str:
    """What was read, and which job it is, in a line."""
    first, *others = (path.rpartition("/")[2] for path in audit.reading.kinds)
    names = f"{first} and {len(others)} more" if others else first
    engine = audit.reading.family
    unnamed = engine.name == FAMILIES[-1].name and set(audit.reading.kinds.values()) == {"log"}
    whose = "a log that names no engine" if unnamed else f"a job of {engine.name}"
    request, layout = audit.job.request, audit.job.layout
    if request is None or layout is None:
        return f"{names}: {whose}"
    parts = (request.job.adapter, request.job.offload)
    beside = [
        f"{name} {part.words}" for name, part in zip(("adapter", "offload"), parts, strict=True) if part
    ]
    trained = f"{model_words(request.model)} on {cluster_words(request)}"
    shards = layout.effective_shard_degree
    sharded = f" · shards over {shards}" if layout.zero_stage and 1 < shards < layout.replicas else ""
    job = request.job
    batch = f"{counted(job.global_batch_size, 'sequence')} of {counted(job.sequence_length, 'token')}"
    return ", ".join((f"{names}: {whose}", trained, f"{layout_words(layout)}{sharded}", batch, *beside))


def model_words(model: ModelSpec) -> str:
    """A model by its name, one that has none by its sizes."""
    if model.name != "unnamed":
        return model.name
    return f"{model.num_layers} layers of {model.hidden_size}, as the file sizes it"


def cluster_words(request: PlanRequest) -> str:
    """How many GPUs of which kind."""
    return f"{request.cluster.num_gpus} × {request.cluster.nodes[0].gpu}"


def summary_of(audit: Audit) -> tuple[str, ...]:
    """The first sentences about a job: why it is not priced or started, whether it fits, what slows it."""
    findings = audit.findings
    others = [finding for finding in findings if finding.rule not in SLOWING]
    counts = [finding for finding in findings if finding.rule == STARTED]
    fits, distance = tuple(_memory(audit)), tuple(_distance(audit))
    ran = audit.memory is not None and audit.memory.basis == "measured"
    behind = audit.slower_by is not None and audit.slower_by > 0 and not audit.tied
    lost = distance if ran and behind else ()
    sentences = [
        *filter(None, (audit.hang,)),
        *_unpriced(audit),
        *filter(None, (audit.job.part,)),
        *_sentences(counts, "contradiction"),  # which GPUs are meant is asked before what is taken for them
        *_presumed(audit),
        *_sentences(findings, "illegal", "open", "unpriced"),
        *_sentences(findings, "measured"),
        *audit.doubted,
        *(fits if audit.fits is not True else ()),
        *_environment(findings),
        *_sentences(findings, "contradiction"),
        *_measured(audit),
        *lost,  # of a job that ran it is no news that it fits
        *(fits if audit.fits is True else ()),
        *distance,
        *_sentences(others, "slow"),
    ]
    return tuple(dict.fromkeys(sentences))[:MOST_SENTENCES] or ("read: nothing of it can be judged",)


def _unpriced(audit: Audit) -> Iterator[str]:
    """What nobody said, or why such a job has no price."""
    flags = [name for name in audit.job.missing if name.startswith("--")]
    if flags:
        why = next((doubt for doubt in audit.doubts if "give --model" in doubt and "--model" in flags), "")
        yield f"not priced yet: give {' and '.join(flags)}{f'; {why}' if why else ''}"
    for text in audit.job.missing:
        if not text.startswith("--"):
            yield f"not priced: {'it is not' if text.startswith(('a ', 'an ')) else 'it hangs on'} {text}"


def _presumed(audit: Audit) -> Iterator[str]:
    """What was taken for granted: a published configuration and counts, with what gives those of the job."""
    if audit.reading.published:
        yield f"{audit.reading.published}; name its file too where yours differs"
    presumed = audit.reading.presumed
    if presumed and audit.job.request is not None:
        flags = " ".join({"cluster.num_gpus": "--gpus N"}.get(name, "-s N") for name in presumed)
        yield f"{'; '.join(presumed.values())}; {flags} prices yours"


def _sentences(findings: Iterable[Finding], *kinds: str) -> Iterator[str]:
    """Findings of some kinds, each with what helps."""
    words = {"measured": "impossible as printed", "open": "may stop"}
    for finding in findings:
        if finding.kind in kinds:
            way = f"; {finding.fix}" if finding.fix else ""
            yield f"{words.get(finding.kind, finding.kind)}: {finding.message}{way}"


def _environment(findings: Iterable[Finding]) -> Iterator[str]:
    """Variables that slow the job down, all in one sentence."""
    slow = [finding for finding in findings if finding.rule in SLOWING]
    if slow:
        yield f"slow: {'; '.join(finding.message for finding in slow)}: {', '.join(f.fix for f in slow)}"


def _memory(audit: Audit) -> Iterator[str]:
    """Whether the job fits; where it sooner does not, the smallest change with which it does."""
    verdict, request = audit.memory, audit.job.request
    if verdict is None or request is None:
        return
    way = tuple(_way_to_fit(audit)) if verdict.word != "fits" else ()
    if verdict.basis == "measured" or audit.predicted is None:
        yield "; ".join((verdict.words, *way))
        return
    word, peak = verdict.word, format_bytes(audit.predicted.peak_memory_bytes)
    sooner = "runs out of memory" if verdict.chance > EVEN else "runs"
    fit = f"{word}, and sooner {sooner} than not" if word == "tight" else word
    capacity = format_bytes(cluster_of(request).gpu.memory_bytes)
    if audit.job.part:
        yield f"memory is not judged, {peak} predicted of {capacity}: {verdict.why[0]}"
        return
    says = f"{fit}: {peak} predicted of {capacity}, {verdict.ground}"
    why = verdict.why[:1] if word == "not settled" else ()
    yield "; ".join((says, *why, *way))


def _way_to_fit(audit: Audit) -> Iterator[str]:
    """The change of fewest words with which a job surely fits, the fastest of those.

    Else the best layout, where the files can be told it; where nothing surely fits, the change that comes
    closest to it, if the job then sooner runs than not.
    """
    assert audit.memory is not None  # noqa: S101 - asked of a job that is judged
    short = [change for change in audit.changes if 0 < len(change_words(change)) <= LONGEST_CHANGE]
    fitting = [change for change in short if fit_of(change.out_of_memory_chance) == "fits"]
    ways = [change for change in audit.changes if change.set]
    sayable = [change for change in ways if change.whole or fit_of(change.out_of_memory_chance) == "fits"]
    best = audit.best
    if fitting:
        change = min(fitting, key=lambda each: (len(each.set) + len(each.remove), -each.seconds_gained))
        yield f"{change_words(change)} takes {format_bytes(change.peak_memory_bytes)}"
    elif best is not None and sayable and fit_of(best.estimate.out_of_memory_chance) == "fits":
        yield f"{layout_words(best.layout)} takes {format_bytes(best.estimate.peak_memory_bytes)}"
    elif short and audit.memory.chance > EVEN:
        change = min(short, key=lambda each: each.out_of_memory_chance)
        if change.out_of_memory_chance < EVEN:
            yield f"{change_words(change)} takes {format_bytes(change.peak_memory_bytes)}"


def _measured(audit: Audit) -> Iterator[str]:
    """The measured step beside its prediction."""
    if audit.residual is not None and not audit.residual.refutes and audit.is_measured_possible:
        yield audit.residual.words[0]


def _distance(audit: Audit) -> Iterator[str]:
    """How far the job is from the best, and the way there."""
    predicted, best = audit.predicted, audit.best
    if best is None and predicted is not None and audit.basis == "predicted":
        band = f"{format_seconds(predicted.lower_s)} to {format_seconds(predicted.upper_s)}"
        what = "an update" if audit.job.part else "a step"
        yield f"{what} takes {format_seconds(predicted.step_time_s)} predicted, 80 % band {band}"
    if audit.slower_by is None or predicted is None or best is None:
        return
    if audit.is_best:
        yield f"a step takes {format_seconds(predicted.step_time_s)} predicted: {audit.distance_note}"
        return
    way = _way(audit, predicted) if audit.slower_by > 0 else ""  # else it gains nothing
    note = f" ({audit.distance_note})" if audit.distance_note else ""
    part = _largest_part(predicted) if audit.basis == "predicted" else ""
    yield (
        f"a step takes {format_seconds(audit.step_time_s or predicted.step_time_s)} {audit.basis}{part}, "
        f"{format_over_best(audit.slower_by)}, "
        f"{format_seconds(best.estimate.step_time_s)} predicted{note}{way}"
    )


def _way(audit: Audit, predicted: Estimate) -> str:
    """The way to the best in words; where it is long, the change of few words that gains most of it."""
    whole = next((change for change in audit.changes if change.whole), None)
    words = "" if whole is None else change_words(whole)
    if 0 < len(words) <= LONGEST_CHANGE:
        return f": {words}"
    short = [
        change
        for change in audit.changes
        if not (change.whole or change.tied)
        and 0 < len(change_words(change)) <= LONGEST_CHANGE
        and fit_of(change.out_of_memory_chance) == "fits"
    ]
    if audit.best is None or not short:
        return ""
    first = max(short, key=lambda change: change.seconds_gained)
    between = predicted.step_time_s - audit.best.estimate.step_time_s
    share = "most of it is" if first.seconds_gained > between / 2 else "first"
    return f"; {share} {change_words(first)} (-{format_seconds(first.seconds_gained)})"


def _largest_part(predicted: Estimate) -> str:
    """What of a step that is no computation takes most of it, where that is more than half; else empty."""
    part = max(PART_NAMES, key=lambda name: getattr(predicted.time, name))
    share = getattr(predicted.time, part) / predicted.step_time_s
    if part == "compute_s" or share < EVEN:
        return ""
    return f" ({share:.0%} is {PART_NAMES[part]})".replace("%", " %")


def change_words(change: Change) -> str:
    """Words to write, each with its value on one line, then those to take away."""
    result = [word.replace(" ", NO_BREAK) for word in change.set]
    gone = [f"without{NO_BREAK}{change.remove[0]}", *change.remove[1:]] if change.remove else []
    return " ".join((*result, *gone))
