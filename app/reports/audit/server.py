"""What `plan audit` says of a server: as it was started, what was measured, what the same GPUs could."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

import numpy as np

from app.quantities import format_share
from app.reports.answer import NO_BREAK, Answer, Lines, Section, Table, json_text
from app.reports.answer import Facts as Pairs
from app.reports.audit.facts import fact_record, facts_table, shown_facts
from costmodel.calibration.bench_files import Figures
from costmodel.serving.simulation.simulator import Simulation
from planner.audit.serving.audit import LoadAudit, ServingAudit
from planner.audit.serving.changes import LEAST_GAIN, ServerChange, best_per_s
from planner.audit.serving.logged import held_by, state_of, stopped_by
from planner.audit.serving.running import RunningServer
from planner.audit.serving.start import Start
from planner.audit.serving.transport import OverTcp
from planner.serving.plan import Percentiles, ServingEstimate, ServingPlan
from topology.base.arrays import Floats
from topology.base.units import GIB, format_seconds

SCHEMA_VERSION = 1
_GROUPS = ("layout", "said", "cluster")


def server_answer(audit: ServingAudit) -> Answer:
    """Everything an audit of a server says."""
    sections: list[Section] = []
    rows = tuple((load.load.source, *finding) for load in audit.loads for finding in load.findings)
    if rows:
        columns = ("under", "what", "help")
        sections.append(Table(title="Wrong or slow", columns=columns, rows=rows, align="lll", wraps=(1, 2)))
    sections.extend(section for load in audit.loads for section in _load_sections(load))
    if (
        audit.reading.facts.by_field
    ):  # what was read comes first where it is judged, last where it is predicted
        read = facts_table(audit.reading, shown_facts(audit.reading, _GROUPS))
        sections.insert(len(sections) if _predicts(audit) else 0, read)
    sections.insert(0, _started(audit))
    if not audit.loads:
        lacks = "not without what is missing" if audit.missing else "not of a server that does not start"
        sections.append(Pairs(title="Load", pairs=(("predicted", lacks),)))
    if assumed := (*audit.doubts, *dict.fromkeys(words for load in audit.loads for words in load.assumed)):
        sections.append(Lines(title="Taken for granted", lines=assumed))
    document = _document(audit)
    return Answer(
        headline=_headline(audit),
        sections=tuple(sections),
        document=lambda: json_text(document),
        records=_records(audit, document["loads"]),
    )


def _records(audit: ServingAudit, loads: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """A record a load, or a request of the one that is predicted or replayed."""
    running = audit.loads[0].running if len(audit.loads) == 1 else None
    if running is not None and (audit.loads[0].load.flags.trace or _predicts(audit)):
        return _request_rows(running)
    return tuple(loads)


def _predicts(audit: ServingAudit) -> bool:
    """Whether a server was asked what it does, and not what is wrong with it."""
    return bool(audit.loads) and not any(load.load.compares for load in audit.loads)


def _headline(audit: ServingAudit) -> str:
    """What was read, in a line."""
    names = ", ".join(path.rpartition("/")[2] for path in audit.reading.kinds)
    served = audit.reading.served
    refused = audit.refused or (served is not None and served.stopped)
    does = "does" if audit.prefill is None else "do"
    verdict = f", which {does} not start" if refused else ""
    if audit.refused and not any(start.starts is False for start in audit.starts):
        verdict = ", which do not work together"
    if (slow := audit.slowest) is not None and slow.slowness is not None:
        parts = {"requests": "", "token": " per token", "first token": " to the first token"}
        verdict = f", {slow.slowness.times:.2g} times slower{parts[slow.slowness.what]} than it should be"
    elif served is not None and served.is_full:
        verdict = ", whose cache is full"
    elif any(load.running is not None and load.running.is_bound_by_tcp for load in audit.loads):
        verdict = ", overloaded where their caches travel over TCP"
    what = "a server" if audit.prefill is None else "two pools"
    guess = next((start.guess for start in audit.starts if start.guess), "")
    if not guess and audit.loads and audit.server is not None and not audit.server.knows_gpu:
        guess = audit.server.gpu  # what its log prints of memory is known, and its times are not
    taken = f", on a guessed {guess} (--gpu)" if guess and not refused else ""
    uncounted = dict.fromkeys(flag for start in audit.starts for flag in start.uncounted)
    if uncounted and not refused:
        taken += f"; no verdict of memory beside {', '.join(uncounted)}"
    return f"{names}: {what} of {audit.reading.family.name}{verdict}{taken}"


def _started(audit: ServingAudit) -> Pairs:
    """The server, as far as it is known."""
    pairs: list[tuple[str, str]] = [
        (path.rpartition("/")[2], kind) for path, kind in audit.reading.kinds.items()
    ]
    server = audit.server
    prefill = audit.prefill
    if server is not None:
        copies = f"{server.replicas} × " if server.replicas > 1 else ""
        layout = f"{copies}{server.layout.label} {server.weights}"
        if prefill is not None:
            layout = f"prefill {prefill.replicas} × {prefill.layout.label}, decode {server.replicas} × "
            layout += f"{server.layout.label}, {server.weights}"
        pairs.append(("layout", layout))
        guess = "" if server.knows_gpu else ", which no file names (--gpu)"
        on = server.gpus_in_words
        if prefill is not None:
            both = f"{prefill.gpus_in_words} + {server.gpus_in_words}"
            on = f"{audit.num_gpus} × {server.gpu}" if prefill.gpu == server.gpu else both
        pairs.append(("on", f"{on}{guess}"))
        pairs.append(("model", server.model.name))
    wrongs: list[tuple[str, str]] = []
    for pool, start in zip(("prefill", "decode")[2 - len(audit.starts) :], audit.starts, strict=True):
        apart = prefill is not None
        if (wrong := start.finding) is not None:
            wrongs[:0] = [(f"{pool} start" if apart else "start", f"{wrong[0]}: {wrong[1]}")]
        pairs.append((f"{pool} memory" if apart else "memory", start.words))
        if start.estimate:
            pairs.append(("estimate", start.estimate))
    wrongs += [
        ("pools", f"{'' if law.certain else 'they may not work together: '}{law.why}: {law.fix}")
        for law in audit.broken
    ]
    if server is None and (held := held_by(audit.reading.served)):
        pairs.append(("memory", f"by its log {held}"))
    if server is None and (stopped := stopped_by(audit.reading.served)) is not None:
        pairs[:0] = [("start", f"the server does not start: {stopped[0]}: {stopped[1]}")]
    if state := state_of(audit.reading.served):
        pairs[:0] = [("log", state)]
    pairs[:0] = [pair for load in audit.loads for pair in _carried(load)]
    pairs[:0] = [*wrongs, *(("slow", f"{what}: {fix}") for what, fix in audit.slowing)]
    if (slow := audit.slowest) is not None:
        pairs[:0] = [("slow", _slow(audit, slow))]
    if audit.missing:
        pairs.append(("missing", ", ".join(audit.missing)))
    return Pairs(title="", pairs=tuple(pairs))


def _carried(load: LoadAudit) -> Iterator[tuple[str, str]]:
    """What a server is predicted to carry, and what an unnamed link may cost it."""
    running = load.running
    if running is None and load.findings and not load.fits:
        what, fix = load.findings[0]
        yield "refused", f"{what}: {fix}"
    if load.binds is not None:
        yield "binds", f"{load.binds[0]}: {load.binds[1]}"
    if running is not None and load.in_step is not None:
        yield "in step", f"{load.in_step[0]}: {load.in_step[1]}"
    if running is None or not load.load.compares:
        return
    now = running.plan.estimate
    first, each = _times(now.ttft.p50_s, now.tpot.p50_s)
    carried = f"{running.requests_per_s:.3g} requests/s"
    kept = _kept_limits(running)
    times = f"first token {first} ({_first_band(running)}), {each} a token ({_band(now.tpot)})"
    if load.load.flags.rate:
        yield "predicted", f"carries {carried}{kept}; under {_load_words(load)} {times}"
    else:
        yield "predicted", f"{carried}, {times}, under {_load_words(load)}"
    if running.over_tcp is not None:
        links = f"over TCP, to which NIXL and UCX fall back, {_over_links(*running.over_tcp)}"
        named = "name the RDMA device (--disaggregation-ib-device, UCX_NET_DEVICES)"
        yield "caches", f"no file names what they travel over; {links}: {named}"


_LIMITED = {"ttft_s": "to the first token", "tpot_s": "a token", "end_to_end_s": "a request"}


def _kept_limits(running: RunningServer) -> str:
    """The limits within which a rate is carried; one without any is what the server computes."""
    limits = limits_of(running)
    if limits is None:
        return " (no limits given)"
    words = [f"{format_seconds(limits[key])} {what}" for key, what in _LIMITED.items() if limits[key]]
    return f" within {' and '.join(words)} (p{limits['percentile']:g})"


def limits_of(running: RunningServer) -> dict[str, Any] | None:
    """The limits of latencies that a load has, and at which percentile; None of one without any."""
    job = running.plan.request.job
    limits = {key: getattr(job, key) for key in _LIMITED}
    return {**limits, "percentile": job.percentile} if any(limits.values()) else None


def _over_links(slow: OverTcp, fast: OverTcp) -> str:
    """First tokens and requests a second over TCP, at the least and the most that it moves."""
    first = _span(
        *(
            format_seconds(each.first_token_s) if each.first_token_s < inf else "without end"
            for each in (fast, slow)
        )
    )
    rates = _span(f"{slow.requests_per_s:.3g}", f"{fast.requests_per_s:.3g}")
    busy = _span(f"{fast.busy:.0%}", f"{slow.busy:.0%}")
    return f"first token {first}, {rates} requests/s, its link busy {busy}"


def _span(low: str, high: str) -> str:
    """From one to another, or the one that both are.

    >>> _span("1", "2"), _span("1", "1")
    ('1–2', '1')
    """
    return low if low == high else f"{low}–{high}"


def _first_band(running: RunningServer) -> str:
    """The band of the first token; where no file names a link, up to that of the slowest one."""
    latency = running.plan.estimate.ttft
    if running.over_tcp is None:
        return _band(latency)
    slow = running.over_tcp[0].first_token_s
    upper_s = max(slow * latency.upper_s / latency.p50_s, latency.upper_s)
    upper = format_seconds(upper_s) if upper_s < inf else "no end"
    return f"{format_seconds(latency.lower_s)}–{upper}"


def _slow(audit: ServingAudit, load: LoadAudit) -> str:
    """What was measured beside what is predicted, and where to look."""
    figures, server = load.load.figures, audit.server
    many = f"a burst of {figures.burst}" if figures is not None and figures.burst else _load_words(load)
    kind = "" if server is None else f" on {' + '.join(server.kinds)}"
    guessed = ", which no file names (--gpu)" if server is not None and not server.knows_gpu else ""
    slow = load.slowness
    if slow is None:
        return ""
    shown = [
        f"{value:.3g} requests/s" if slow.what == "requests" else f"{format_seconds(value)} {_PER[slow.what]}"
        for value in (slow.measured, slow.predicted)
    ]
    look = _LOOK_FOR_PROMPTS if slow.what == "first token" else _LOOK_FOR
    return f"{shown[0]} measured of {many}, {shown[1]} predicted{kind}{guessed}: look for {look}"


_PER = {"first token": "to the first token", "token": "per token"}
_LOOK_FOR = (
    "another program on the GPUs, throttled clocks, a fallback of attention or quantised kernels, "
    "preemptions in the log"
)
_LOOK_FOR_PROMPTS = (
    "kernels compiled at the first requests (warm up), prompts that queue behind others, a fallback of "
    "attention or quantised kernels, a cache that travels over TCP in place of RDMA"
)


def _load_sections(audit: LoadAudit) -> list[Section]:
    """A server under one load."""
    flags = audit.load.flags
    columns = ("", "carries" if flags.rate else "requests/s", "first token", "per token", "")
    rows = []
    if audit.load.figures is not None:
        figures = audit.load.figures
        rows.append(
            ("measured", f"{audit.measured_per_s:.3g}", *_times(figures.ttft_s, figures.tpot_s), "means")
        )
        if audit.running is not None:
            means = _times(audit.running.ttft_s, audit.running.tpot_s)
            rows.append(("predicted", f"{audit.running.requests_per_s:.3g}", *means, "means"))
    if audit.running is not None and audit.load.compares:
        now = audit.running.plan.estimate
        words = f"medians; {audit.running.broken}" if audit.running.broken else "medians"
        medians = _times(now.ttft.p50_s, now.tpot.p50_s)
        rows.append(("predicted", f"{audit.running.requests_per_s:.3g}", *medians, words))
        rows.append(("80 % band", "", _first_band(audit.running), _band(now.tpot), "of the medians"))
    if audit.best is not None and (audit.behind_by is None or audit.behind_by > LEAST_GAIN):
        estimate = audit.best.estimate
        decode = f"{audit.best.decode.workers} × {audit.best.decode.layout.label}"
        label = f"medians; {decode if audit.best.prefill is None else audit.best.label}"
        rate = f"{best_per_s(audit.best):.3g}"
        rows.append(("best", rate, *_times(estimate.ttft.p50_s, estimate.tpot.p50_s), label))
    title = f"Under {_load_words(audit)}" + (f", {audit.load.source}" if flags.trace is None else "")
    alone = audit.running is not None and not audit.load.compares
    if not rows and not alone:
        return [Pairs(title=title, pairs=(("predicted", "not of a server that does not start"),))]
    sections: list[Section] = []
    if rows:
        note = "; ".join(filter(None, (_distance(audit), _prompts_share(audit))))
        sections.append(Table(title=title, columns=columns, rows=tuple(rows), align="lrrrl", note=note))
    if audit.running is not None and alone:
        sections.append(_requests(audit.running, "Over all requests" if rows else title, of_rate=flags.rate))
    if audit.changes:
        sections.append(_changes(audit))
    return sections


def _prompts_share(audit: LoadAudit) -> str:
    """How busy the prefill pool is, as predicted."""
    running = audit.running
    if running is None or running.prefill_per_s is None:
        return ""
    busy = running.simulation.prefill_utilisation
    return f"prefill workers compute {busy:.0%} of the time, at most {running.prefill_per_s:.3g} prompts/s"


PERCENTILES = (50, 90, 99)
"""Of a latency that are told."""


def _requests(running: RunningServer, title: str, *, of_rate: str | None) -> Table:
    """Latencies over all requests, and what the server served; of a rate, also the highest it carries."""
    rows = [
        (name, *(format_seconds(seconds) for seconds in _spread(values).values()))
        for name, values in latencies_of(running.simulation).items()
    ]
    simulation, estimate = running.simulation, running.plan.estimate
    note = (
        f"{_rates(estimate)}, {estimate.output_tokens_per_s:,.0f} output tokens/s; "
        f"cache {estimate.kv_used_share:.0%} used at the peak, {simulation.preemptions} preemptions; "
        f"all served after {format_seconds(simulation.makespan_s)}"
        + (f"; it carries {running.requests_per_s:.3g} requests/s{_kept_limits(running)}" if of_rate else "")
        + (f"; {running.broken}" if running.broken else "")
    )
    columns = ("", "mean", *(f"p{percentile}" for percentile in PERCENTILES))
    return Table(title=title, columns=columns, rows=tuple(rows), align="lrrrr", note=note)


def _rates(estimate: ServingEstimate) -> str:
    """Requests a second: what is sent, and where less gets through how much."""
    sent, through = (f"{rate:.3g}" for rate in (estimate.request_rate_per_s, estimate.completed_per_s))
    return f"{sent} requests/s" if sent == through else f"{sent} requests/s sent, {through}/s get through"


def latencies_of(simulation: Simulation) -> dict[str, Floats]:
    """Seconds of every request: to its first token, per other token, end to end, before it was admitted."""
    return {
        "first token": simulation.ttft_s,
        "per token": simulation.tpot_s,
        "end to end": simulation.end_to_end_s,
        "waiting": np.maximum(simulation.admitted_s - simulation.arrival_s, 0.0),
    }


_KEYS = {"first token": "ttft", "per token": "tpot", "end to end": "end_to_end", "waiting": "queue"}
"""Latencies in JSON and in records."""


def _spread(values: Floats) -> dict[str, float]:
    """Mean and percentiles of seconds; zeros where no request has any."""
    known = values[~np.isnan(values)]
    if not len(known):
        return dict.fromkeys(("mean_s", *(f"p{level}_s" for level in PERCENTILES)), 0.0)
    levels = {f"p{level}_s": float(np.percentile(known, level)) for level in PERCENTILES}
    return {"mean_s": float(known.mean()), **levels}


def _request_rows(running: RunningServer) -> tuple[dict[str, Any], ...]:
    """A record a request."""
    simulation = running.simulation
    columns = {"arrival_s": simulation.arrival_s, "output_tokens": simulation.output_tokens}
    columns |= {f"{_KEYS[name]}_s": seconds for name, seconds in latencies_of(simulation).items()}
    lists = {name: values.tolist() for name, values in columns.items()}
    return tuple(
        {name: None if values[i] != values[i] else values[i] for name, values in lists.items()}
        for i in range(len(simulation.arrival_s))
    )


def _load_words(audit: LoadAudit) -> str:
    """A load in a few words."""
    flags = audit.load.flags
    burst = audit.load.figures.burst if audit.load.figures is not None else 0
    if flags.trace is not None:
        return f"the trace {flags.trace.name}"
    many = f"{flags.concurrency} in flight" if flags.concurrency else f"{flags.rate}"
    many = f"a burst of {burst}" if burst else many
    lengths = f"{flags.input_tokens or '2000'} + {flags.output_tokens or '300'} tokens"
    return f"{many} of {lengths}"


def _band(latency: Percentiles) -> str:
    return f"{format_seconds(latency.lower_s)}–{format_seconds(latency.upper_s)}"


def _times(ttft_s: float, tpot_s: float) -> tuple[str, str]:
    return format_seconds(ttft_s), format_seconds(tpot_s)


def _distance(audit: LoadAudit) -> str:
    """How far a server is from the best one, in a sentence."""
    if audit.behind_by is None:
        return ""
    if audit.behind_by <= LEAST_GAIN:
        daring = audit.best.daring if audit.best is not None else None
        gain = _gain(audit, daring.request_rate_per_s) if daring is not None else 0.0
        if daring is not None and gain > LEAST_GAIN:
            lacks = (
                f"not measured: {', '.join(daring.not_measured)}" if daring.not_measured else "no runs of it"
            )
            return (
                f"no measured split of these GPUs carries more; {daring.label} is predicted to carry "
                f"{format_share(gain, signed=True)} ({lacks})"
            )
        return "nothing on these GPUs was found to carry more"
    more = f"the best server of these GPUs carries {format_share(audit.behind_by, signed=True)} requests"
    evidence = audit.best.evidence if audit.best is not None else None
    if evidence is None or not evidence.not_measured:
        return more
    beside = evidence.best_measured
    known = f"; {beside.label}: {beside.capacity_requests_per_s:.3g}/s" if beside is not None else ""
    return f"{more}; not measured of it: {', '.join(evidence.not_measured)}{known}"


def _gain(audit: LoadAudit, requests_per_s: float) -> float:
    """Share by which a rate is beyond what the server carries."""
    return requests_per_s / audit.running.requests_per_s - 1 if audit.running is not None else 0.0


def _changes(audit: LoadAudit) -> Table:
    """What would carry more, in the engine's words."""
    rows = tuple(
        (
            f"{change.requests_per_s:.3g}/s",
            *_times(change.ttft_s, change.tpot_s),
            "all of it" if change.whole else f"alone{', changes answers' * change.narrower}",
            " ".join(word.replace(" ", NO_BREAK) for word in change.set),
        )
        for change in audit.changes
    )
    columns = ("carries", "first token", "per token", "", "set")
    return Table(title="Changes", columns=columns, rows=rows, align="rrrll", wraps=(4,))


def _document(audit: ServingAudit) -> dict[str, Any]:
    """An audit of a server as data."""
    server = audit.server
    return {
        "schema_version": SCHEMA_VERSION,
        "files": [{"file": path, "kind": kind} for path, kind in audit.reading.kinds.items()],
        "engine": audit.reading.family.name,
        "server": None
        if server is None
        else {
            "model": server.model.name,
            "gpu": ",".join(server.kinds),
            "num_gpus": server.num_gpus,
            "replicas": server.replicas,
            "layout": server.layout.label,
            "weights": server.weights,
            "kv_dtype": server.kv_dtype,
            "max_batch": server.max_batch,
            "token_budget": server.token_budget,
            "balance_steps": server.balance_steps,
            "gather_steps": server.gather_steps,
        },
        "prefill": None
        if audit.prefill is None
        else {
            "gpu": ",".join(audit.prefill.kinds),
            "replicas": audit.prefill.replicas,
            "layout": audit.prefill.layout.label,
            "num_gpus": audit.prefill.num_gpus,
            "max_batch": audit.prefill.max_batch,
            "token_budget": audit.prefill.token_budget,
            "start": None if audit.prefill_start is None else _start_record(audit.prefill_start),
        },
        "layout": {
            fact.name.removeprefix("layout."): fact.value
            for fact in shown_facts(audit.reading, _GROUPS)
            if fact.name.startswith("layout.")
        },
        "facts": [fact_record(fact) for fact in shown_facts(audit.reading, _GROUPS)],
        "slowing": [{"message": what, "fix": fix} for what, fix in audit.slowing],
        "loads": [_load_record(load) for load in audit.loads],
        "start": None if audit.start is None else _start_record(audit.start),
        **start_keys(audit.start),
        **_pair_keys(audit),
        "behind_by": audit.behind_by,
        "fits": audit.fits,
        "missing": list(audit.missing),
        "assumed": list(audit.doubts),
    }


def _pair_keys(audit: ServingAudit) -> dict[str, Any]:
    """Why two pools do not serve, where the decode pool alone would start; nothing of one pool."""
    if audit.prefill_start is None or audit.start is None or audit.start.starts is False:
        return {}
    if audit.prefill_start.starts is False:
        return {"starts": False, "why": audit.prefill_start.why}
    law = next((law for law in audit.broken if law.certain), None)
    if law is not None:
        return {"starts": False, "why": law.why}
    return {} if audit.prefill_start.starts else {"starts": None, "why": audit.prefill_start.why}


def start_keys(start: Start | None) -> dict[str, Any]:
    """Whether a server starts and what it holds, in the words of the engine's log; null where not known."""
    if start is None:
        names = "starts why weights_gib_per_gpu kv_cache_tokens longest_context max_concurrency"
        return dict.fromkeys(names.split())
    return {
        "starts": start.starts,
        "why": start.why,
        "weights_gib_per_gpu": start.weights_bytes / GIB,
        "kv_cache_tokens": max(start.cache_tokens, 0),
        "longest_context": start.longest_tokens,
        "max_concurrency": max(start.concurrency, 0.0),
    }


def _start_record(start: Start) -> dict[str, Any]:
    """What the server holds when it starts."""
    finding = start.finding
    return {
        "starts": start.starts,
        "weights_bytes": start.weights_bytes,
        "cache_bytes": start.cache_bytes,
        "cache_tokens": start.cache_tokens,
        "longest_tokens": start.longest,
        "max_concurrency": start.concurrency,
        "finding": None if finding is None else {"message": finding[0], "fix": finding[1]},
    }


def _load_record(audit: LoadAudit) -> dict[str, Any]:
    """A server under one load."""
    flags = audit.load.flags
    return {
        "said": audit.load.source,
        "concurrency": flags.concurrency,
        "rate": flags.rate,
        "input_tokens": flags.input_tokens,
        "output_tokens": flags.output_tokens,
        "measured": _measured(audit.load.figures, audit.measured_per_s),
        "slower_than_predicted": audit.slower_than_predicted,
        "predicted": None
        if audit.running is None
        else {
            "requests_per_s": audit.running.requests_per_s,
            "limits": limits_of(audit.running),
            "mean_ttft_s": audit.running.ttft_s,
            "mean_tpot_s": audit.running.tpot_s,
            "broken": audit.running.broken,
            "over_tcp": _over_tcp(audit.running),
            **{
                _KEYS[name]: _spread(values)
                for name, values in latencies_of(audit.running.simulation).items()
            },
            "completed_per_s": audit.running.plan.estimate.completed_per_s,
            "output_tokens_per_s": audit.running.plan.estimate.output_tokens_per_s,
            "kv_used_share": audit.running.plan.estimate.kv_used_share,
            "preemptions": audit.running.simulation.preemptions,
            "makespan_s": audit.running.simulation.makespan_s,
        },
        "best": None if audit.best is None else _best(audit.best),
        "behind_by": audit.behind_by,
        "binds": None if audit.binds is None else {"message": audit.binds[0], "fix": audit.binds[1]},
        "findings": [{"message": what, "fix": fix} for what, fix in audit.findings],
        "assumed": list(audit.assumed),
        "changes": [_change(change) for change in audit.changes],
        "fits": audit.fits,
    }


def _over_tcp(running: RunningServer) -> dict[str, Any] | None:
    """What two pools do at the least and the most of TCP; null where caches travel otherwise."""
    if running.over_tcp is None:
        return None
    slow, fast = running.over_tcp
    return {
        name: {
            "first_token_s": each.first_token_s if each.first_token_s < inf else None,
            "requests_per_s": each.requests_per_s,
            "busy": each.busy,
        }
        for name, each in (("least", slow), ("most", fast))
    }


def _measured(figures: Figures | None, per_s: float | None) -> dict[str, Any] | None:
    """What a client measured."""
    if figures is None:
        return None
    return {
        "requests_per_s": per_s, "mean_ttft_s": figures.ttft_s, "mean_tpot_s": figures.tpot_s,
        "tool": figures.tool,
    }  # fmt: skip


def _best(plan: ServingPlan) -> dict[str, Any]:
    """The best server of the same GPUs."""
    return {
        "requests_per_s": best_per_s(plan),
        "layout": plan.decode.layout.label,
        "servers": plan.decode.workers,
        "p50_ttft_s": plan.estimate.ttft.p50_s,
        "p50_tpot_s": plan.estimate.tpot.p50_s,
        "status": plan.optimality.status,
        "gap": plan.optimality.gap,
    }


def _change(change: ServerChange) -> dict[str, Any]:
    """One change."""
    return {
        "set": list(change.set), "whole": change.whole, "requests_per_s": change.requests_per_s,
        "p50_ttft_s": change.ttft_s, "p50_tpot_s": change.tpot_s,
    }  # fmt: skip
