"""How a running server stands: what its log prints, beside what is predicted of it under that load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.quantities import format_percent
from app.reports.answer import Answer, Facts, Lines, Section, json_text
from planner.audit.read import MOST_BYTES, read_texts
from planner.audit.serving.watched import WatchedServer, watched_server
from planner.diagnose.finding import StepFinding
from planner.diagnose.server_log import server_findings, server_words
from planner.formats.server_lines import server_log_of
from topology.base.files import read_ends


def watched_as_server(runs: Sequence[Path]) -> WatchedServer | None:
    """How a server stands by its log and the files beside it; None where no file is a server's log.

    Raises:
        InputError: a file cannot be read.
    """
    if not all(run.is_file() for run in runs):
        return None
    texts = {str(run): read_ends(run, int(MOST_BYTES))[0] for run in runs}
    if not any(server_log_of(text) for text in texts.values()):
        return None
    reading = read_texts(texts)
    return watched_server(reading, texts) if reading.family.serves else None


def server_watch_answer(watched: WatchedServer) -> Answer:
    """Lay out how a server stands."""
    findings = tuple(server_findings(watched.log))
    pairs = [("server", server_words(watched.log))]
    if (load := watched.load) is not None:
        lengths = f"prompts of about {load.input_tokens:,} tokens, answers of {load.output_tokens:,}"
        pairs.append(
            ("load", f"{load.running:,} requests run at once, {lengths}, by its rates and its cache")
        )
        pairs.append(("comes out", f"{load.output_tokens_per_s:,.0f} tokens/s{_beside(watched)}"))
    sections: list[Section] = [Facts(title="Server", pairs=tuple(pairs))]
    lines = tuple(f"{each.words}: {each.evidence}\nfix: {each.fix}" for each in findings)
    sections.append(Lines(title="What binds", lines=lines or ("nothing that its log shows",)))
    document = _document(watched, findings)
    return Answer(
        headline=_headline(watched, findings),
        sections=tuple(sections),
        document=lambda: json_text(document),
        records=tuple(document["findings"]),
    )


def _headline(watched: WatchedServer, findings: Sequence[StepFinding]) -> str:
    """What is said first: that it stopped, that it is slow, or what binds it."""
    stopped = next((each for each in findings if each.cause == "no start"), None)
    if stopped is not None:
        return f"does not start: {stopped.evidence}"
    binds = f" · {findings[0].words}" if findings else ""
    if watched.load is None:
        return f"{server_words(watched.log)}{binds}"
    return f"{watched.load.output_tokens_per_s:,.0f} tokens/s come out{_beside(watched)}{binds}"


def _beside(watched: WatchedServer) -> str:
    """What was predicted, in words behind what comes out."""
    predicted, band, slower = watched.predicted_per_s, watched.band_per_s, watched.slower_by
    if predicted is None or band is None or slower is None:
        return f", not predicted (missing: {watched.missing})"
    where = "slower than its band" if watched.is_slow else "inside its band or above"
    return (
        f", {predicted:,.0f} predicted ({band[0]:,.0f}–{band[1]:,.0f}): "
        f"{format_percent(-slower, signed=True)}, {where}"
    )


def _document(watched: WatchedServer, findings: Sequence[StepFinding]) -> dict[str, Any]:
    """Plain data for a program."""
    load, band = watched.load, watched.band_per_s or (None, None)
    return {
        "engine": watched.log.of,
        "running_requests": watched.log.running,
        "waiting_requests": watched.log.waiting,
        "cache_used_share": watched.log.cache_used,
        "load": None if load is None else asdict(load),
        "predicted_per_s": watched.predicted_per_s,
        "lower_per_s": band[0],
        "upper_per_s": band[1],
        "slow": watched.is_slow,
        "missing": watched.missing,
        "findings": [asdict(each) for each in findings],
    }
