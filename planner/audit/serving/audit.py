"""A server judged: what it does under its load, what the same GPUs could, and which settings that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Literal

import numpy as np

from costmodel.kernels.tables import Calibration
from costmodel.serving.deployment import Deployment
from costmodel.serving.simulation.load import Load, within
from planner.analysis.serving.fleets import find_fleet
from planner.audit.environment import THROUGH_HOSTS, slow_settings
from planner.audit.read import Reading
from planner.audit.serving.binding import always_waiting, binding
from planner.audit.serving.changes import (
    ServerChange,
    best_per_s,
    best_with,
    pool_changes,
    server_changes,
)
from planner.audit.serving.full_load import asked_of, full_load, full_load_notes, prompts_asked_of
from planner.audit.serving.hosts import spanned
from planner.audit.serving.kept_prefixes import prefix_words
from planner.audit.serving.load import ServedLoad
from planner.audit.serving.logged import prints_cache, state_of
from planner.audit.serving.lora import waiting_adapters
from planner.audit.serving.peers import peers_taken_for_granted
from planner.audit.serving.pools import Pools
from planner.audit.serving.refused import BrokenLaw
from planner.audit.serving.running import (
    RunningServer,
    covering,
    first_token_spread,
    running,
    running_pools,
    under_load,
)
from planner.audit.serving.server import Server, Unknown, as_planned
from planner.audit.serving.start import Start, as_sized, server_deployment, start_of
from planner.questions.flags import ServeFlags
from planner.questions.serving.lengths import ALIKE, length_notes
from planner.questions.serving.understand import Asked
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.replica import Rejected
from topology.base.errors import NoFeasiblePlanError
from topology.base.units import format_seconds
from topology.fabric.hierarchy import Hierarchy
from topology.hardware.datasheets import fleet_gpus

SLOW = 2.0
"""Times that a measured server is slower than predicted, from which that is what an audit says first."""
MOST_WAIT = 0.5
"""Share of the requests in flight that wait for a first token, from which two pools are bound by prompts."""
ONE_REQUEST = ServeFlags(concurrency="1", input_tokens="1", output_tokens="1", input_p99="1", output_p99="1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """What of a measured server is slower than predicted, and how many times; both as they were compared."""

    what: Literal["requests", "first token", "token"]
    times: float
    measured: float
    predicted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAudit:
    """A server under one load, and the best of the same GPUs; a finding is what is wrong and what helps."""

    load: ServedLoad
    running: RunningServer | None = None
    best: ServingPlan | None = None
    changes: tuple[ServerChange, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()
    fits: bool = True
    assumed: tuple[str, ...] = ()
    """What was taken for lengths that nobody gave."""

    binds: tuple[str, str] | None = None
    """What keeps requests waiting for their first token, and what helps."""

    in_step: tuple[str, str] | None = None
    """What requests of one length do to first tokens in a closed loop, and what says how they spread."""

    @property
    def measured_per_s(self) -> float | None:
        """Requests a second that were measured: as the client printed, else those in flight over a stay."""
        figures = self.load.figures
        if figures is None:
            return None
        if figures.requests_per_s:
            return figures.requests_per_s
        return figures.concurrency / (figures.ttft_s + (figures.output_tokens - 1) * figures.tpot_s)

    @property
    def slowness(self) -> Slowness | None:
        """What is furthest slower than predicted, beyond what predictions miss by; None where nothing is.

        The first tokens of a burst are no mean of a steady load, and are not compared.
        """
        measured, running, figures = self.measured_per_s, self.running, self.load.figures
        if not measured or running is None or figures is None:
            return None
        now = running.plan.estimate
        each, first = (
            latency.upper_s / latency.p50_s if latency.p50_s else 1.0 for latency in (now.tpot, now.ttft)
        )
        compared = [
            (Slowness(what="requests", times=running.requests_per_s / measured, measured=measured,
                      predicted=running.requests_per_s), each),
            (Slowness(what="token", times=figures.tpot_s / running.tpot_s if running.tpot_s > 0 else 0.0,
                      measured=figures.tpot_s, predicted=running.tpot_s), each),
        ]  # fmt: skip
        if not figures.burst and running.ttft_s > 0:
            late = Slowness(
                what="first token",
                times=figures.ttft_s / running.ttft_s,
                measured=figures.ttft_s,
                predicted=running.ttft_s,
            )
            compared.append((late, first))
        slow = [item for item, missed in compared if item.times >= max(SLOW, missed)]
        return max(slow, key=lambda item: item.times, default=None)

    @property
    def slower_than_predicted(self) -> float | None:
        """Times by which the measured server is slower than predicted."""
        return None if self.slowness is None else self.slowness.times

    @property
    def behind_by(self) -> float | None:
        """Share by which the best server of these GPUs carries more requests, both as predicted."""
        if self.best is None or self.running is None or not self.running.requests_per_s:
            return None
        return best_per_s(self.best) / self.running.requests_per_s - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAudit:
    """Everything that an audit says of a server."""

    reading: Reading
    server: Server | None = None
    loads: tuple[LoadAudit, ...] = ()
    missing: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    start: Start | None = None
    prefill: Server | None = None
    """The prefill pool, where `server` and `start` are of the decode pool alone."""
    prefill_start: Start | None = None
    broken: tuple[BrokenLaw, ...] = ()
    """Laws that two pools break together, what is sure first."""
    slowing: tuple[tuple[str, str], ...] = ()
    """What makes the server slow under any load, and what helps."""

    @property
    def num_gpus(self) -> int | None:
        """GPUs of the server, or of both pools; None where it is not known."""
        if self.server is None:
            return None
        return self.server.num_gpus + (self.prefill.num_gpus if self.prefill is not None else 0)

    @property
    def starts(self) -> tuple[Start, ...]:
        """What each pool holds when it starts, the prefill pool first."""
        return tuple(start for start in (self.prefill_start, self.start) if start is not None)

    @property
    def fits(self) -> bool | None:
        """Whether the server holds its requests; None where that is not known."""
        if self.reading.served is not None and self.reading.served.stopped:
            return False
        if self.refused:
            return False
        if not all(start.certain for start in self.starts):
            return None
        return all(load.fits for load in self.loads) if self.loads else None

    @property
    def answers_anything(self) -> bool:
        """Whether anything is said of the server: as its files start it, or by its log."""
        log = self.reading.served
        return self.server is not None or prints_cache(log) or bool(state_of(log))

    @property
    def refused(self) -> bool:
        """Whether a pool does not start, or one surely cannot hand its caches to the other."""
        return any(start.starts is False for start in self.starts) or any(law.certain for law in self.broken)

    @property
    def slowest(self) -> LoadAudit | None:
        """The load under which the server is furthest slower than predicted; None where it is not."""
        slow = [load for load in self.loads if load.slower_than_predicted]
        return max(slow, key=lambda load: load.slower_than_predicted or 0.0, default=None)

    @property
    def behind_by(self) -> float | None:
        """The largest distance over all loads."""
        return max((load.behind_by for load in self.loads if load.behind_by is not None), default=None)


def audited_server(
    cal: Calibration,
    reading: Reading,
    server: Server | Unknown,
    loads: Sequence[ServedLoad],
    asked: ServeFlags | None = None,
) -> ServingAudit:
    """Judge a server under every load; without any under the most that it carries, as a plan without one is.

    Args:
        cal: Kernel and collective tables.
        reading: What the files say.
        server: As they start it.
        loads: Under which it is judged.
        asked: Lengths and limits of requests where no load is said; None asks a load of whoever calls.
    """
    doubts = tuple(dict.fromkeys(reading.doubts))
    if isinstance(server, Unknown):
        return ServingAudit(reading=reading, missing=server.missing, doubts=doubts)
    doubts, start = (*doubts, *server.assumed), _start(server)
    audit = ServingAudit(
        reading=reading, server=server, doubts=doubts, start=start, slowing=tuple(_slowing(reading, server))
    )
    if server.unpriced:
        return replace(audit, missing=(server.unpriced,))
    if not loads and asked is not None and start.starts is not False:
        loads = full_load(cal, server, asked, start.cache_tokens)
        notes = tuple(note for load in loads for note in full_load_notes(load, asked))
        audit = replace(audit, doubts=(*audit.doubts, *notes))
    if not loads:
        return replace(audit, missing=() if start.starts is False else (_NO_LOAD,))
    if start.starts is False:
        judged = tuple(LoadAudit(load=load, fits=False) for load in loads)
    else:
        judged = tuple(_under(cal, server, load) for load in loads)
    return replace(audit, loads=judged)


def audited_pools(
    cal: Calibration,
    reading: Reading,
    pools: Pools,
    loads: Sequence[ServedLoad],
    asked: ServeFlags | None = None,
) -> ServingAudit:
    """Judge a prefill and a decode pool under every load, without any under the most that they carry.

    What was taken for granted is said of each: read together, the words of one would deny those of the other.
    """
    doubts = (*pools.prefill.assumed, *pools.decode.assumed)
    audit = ServingAudit(
        reading=reading,
        server=pools.decode,
        prefill=pools.prefill,
        doubts=tuple(dict.fromkeys(doubts)),
        start=_start(pools.decode),
        prefill_start=_start(pools.prefill),
        broken=pools.broken,
        slowing=tuple(dict.fromkeys((*_slowing(reading, pools.prefill), *_slowing(reading, pools.decode)))),
    )
    if unpriced := pools.prefill.unpriced or pools.decode.unpriced:
        return replace(audit, missing=(unpriced,))
    if not loads and asked is not None and not audit.refused:
        loads = full_load(cal, pools, asked, min(start.cache_tokens for start in audit.starts))
        notes = tuple(note for load in loads for note in full_load_notes(load, asked))
        audit = replace(audit, doubts=(*audit.doubts, *notes))
    if not loads:
        return replace(audit, missing=() if audit.refused else (_NO_LOAD,))
    if audit.refused:
        return replace(audit, loads=tuple(LoadAudit(load=load, fits=False) for load in loads))
    return replace(audit, loads=tuple(_pools_under(cal, pools, load) for load in loads))


def _slowing(reading: Reading, server: Server) -> Iterator[tuple[str, str]]:
    """What makes a server slow whatever it is sent: tensor parallelism over hosts, variables of its files."""
    hierarchy = started_deployment(server).hierarchy
    if not server.beyond_machine:  # what does not start spans nothing
        yield from spanned(server, hierarchy)
    ranks = server.layout.num_gpus
    each = min(server.host_gpus or hierarchy.gpus_per_node, hierarchy.gpus_per_node)
    shared, several, peers = min(ranks, each) > 1, ranks > each, hierarchy.gpu.peer_to_peer
    variables, anywhere = reading.variables, reading.slow_variables
    for slow in slow_settings(variables, anywhere, shared=shared, several=several, peers=peers):
        priced = "" if slow.variable.name in THROUGH_HOSTS else ", which is not priced"
        yield f"{slow.message}{priced}", slow.variable.fix
    for text in server.slow:
        yield text, "leave it out"
    yield from waiting_adapters(server.adapters, server.engine)


_NO_LOAD = "--rate, --concurrency or --trace, or what a benchmark client wrote"


def _pools_under(cal: Calibration, pools: Pools, load: ServedLoad) -> LoadAudit:
    """Two pools under one load, and the best two pools of the same GPUs."""
    asked, prompts_of = asked_of(pools, load.flags), prompts_asked_of(pools, load.flags)
    request, hierarchy = as_planned(pools.decode, asked.requests[0][0]), asked.requests[0][1]
    taken, refused = _taken(asked.trace, min((pools.prefill, pools.decode), key=_longest))
    asked = replace(asked, trace=taken)

    def run(request: ServingRequest) -> RunningServer | Rejected:
        prompts = None if prompts_of is None else (replace(prompts_of[0], job=request.job), prompts_of[1])
        return running_pools(cal, pools, request, hierarchy, asked.trace, prompts_of=prompts)

    judged = LoadAudit(
        load=load,
        findings=(
            *_findings(pools.prefill, request, refused),
            *_findings(pools.decode, request, refused),
            *refused,
        ),
        assumed=tuple(length_notes(load.flags, request.job)),
    )
    if _refused_prompt(pools.prefill, request.job.input_tokens) or (taken is not None and not len(taken)):
        return replace(judged, fits=False)
    now = run(request)
    judged = _with_best(judged, asked, alike=pools.is_of_one_kind)
    if not pools.is_of_one_kind:
        kinds = f"prefill on {pools.prefill.gpu}, decode on {pools.decode.gpu}"
        judged = replace(judged, assumed=(*judged.assumed, f"no better pools are looked for: {kinds}"))
    if isinstance(now, Rejected):
        return _without_room(judged, f"a pool {now.reason}")
    hits = prefix_words(asked.trace, keeps=pools.prefill.keeps_prefixes, share=now.cached_share)
    judged = replace(judged, findings=(*judged.findings, *_waits(pools.decode, now)))
    peers = _peers(cal, pools.decode, request, hierarchy, now)
    if load.figures is not None:
        waits = tuple(_measured_waits(pools, now, LoadAudit(load=load, running=now)))
        judged = replace(judged, findings=(*judged.findings, *waits))
    in_step, now = _in_step(request, load, now, run) if asked.trace is None else (None, now)
    best = None if judged.best is None else under_load(cal, judged.best, request, hierarchy)
    return replace(
        judged,
        running=now,
        best=best,
        changes=pool_changes(now=now, best=best),
        assumed=(*judged.assumed, *hits, *peers),
        binds=binding(pools.decode, now),
        in_step=in_step,
    )


def _with_best(judged: LoadAudit, asked: Asked, *, alike: bool) -> LoadAudit:
    """With the best of the same GPUs where that is compared: of unlike GPUs no fleet is searched."""
    best, none = _best(asked) if judged.load.compares and alike else (None, ())
    return replace(judged, best=best, findings=(*judged.findings, *none))


def _without_room(judged: LoadAudit, which: str) -> LoadAudit:
    """A load of which no request finds room."""
    longest = f"{which}: its weights leave the cache less room than one request needs"
    help_words = "start it on more GPUs, or with smaller weights, cache or requests"
    return replace(judged, findings=(*judged.findings, (longest, help_words)), fits=False)


def _peers(
    cal: Calibration, server: Server, request: ServingRequest, hierarchy: Hierarchy, now: RunningServer
) -> Iterator[str]:
    """What decode steps take where GPUs do not read each other's memory, which no file tells."""
    deployment = server_deployment(server, request, hierarchy)
    context = request.job.input_tokens + request.job.output_tokens / 2
    return peers_taken_for_granted(cal, deployment, now.simulation.mean_batch, context)


def _measured_waits(pools: Pools, now: RunningServer, audit: LoadAudit) -> Iterator[tuple[str, str]]:
    """Where most of the measured requests in flight wait for their first token: x·TTFT of c (Little).

    As the prefill workers were measured, x a second, decode workers that hold c would take c/(outputs·TPOT).
    """
    figures, per_s = audit.load.figures, audit.measured_per_s
    if figures is None or not per_s or figures.burst:
        return
    waiting = min(per_s * figures.ttft_s, float(figures.concurrency))
    if waiting < MOST_WAIT * figures.concurrency:
        return
    outputs_s = max(figures.output_tokens - 1, 1) * figures.tpot_s
    wanted = figures.concurrency / outputs_s
    workers = max(-int(-wanted * pools.prefill.replicas // per_s), pools.prefill.replicas + 1)
    decode = f"{pools.decode.replicas} decode worker{'s' * (pools.decode.replicas > 1)}"
    computes = now.prefill_per_s
    short = "" if computes is None else f", where the prefill pool should compute {computes:.3g}/s"
    bound = (
        f"prompts bind: {waiting:.0f} of {figures.concurrency} in flight wait for their first token at the "
        f"measured {per_s:.3g} requests/s{short}"
    )
    fix = (
        f"as measured, {workers} prefill to {decode} would keep up; mend first a prefill pool that is slower "
        "than it should be: kernels compiled at the first requests of a length, or caches that travel over "
        "TCP in place of RDMA (the transfer's log names it)"
    )
    yield bound, fix


def started_deployment(server: Server) -> Deployment:
    """The deployment of a server, whatever it is sent."""
    request, hierarchy = asked_of(server, ONE_REQUEST).requests[0]
    return server_deployment(server, as_planned(server, request), hierarchy)


def on_gpus_that_hold(server: Server) -> Server:
    """The server; where no file names its GPUs and the usual ones lack memory, on the first that hold it.

    A file that is published runs somewhere: GPUs whose memory its weights overflow are not those.
    """
    if server.knows_gpu or (first := _start(server)).cache_bytes > 0 or first.refusal is not None:
        return server
    for kind in fleet_gpus():
        moved = replace(server, gpu=kind)
        if (tried := _start(moved)).holds and tried.refusal is None:
            left = [words for words in server.assumed if "--gpu)" not in words]
            why = f"on {kind}: no file names a kind of GPU, and {server.gpu} does not hold it (--gpu)"
            return replace(moved, assumed=(*left, why))
    return server


def _start(server: Server) -> Start:
    """What the server holds when it starts, whatever it is sent."""
    request, hierarchy = asked_of(server, ONE_REQUEST).requests[0]
    return start_of(server, as_planned(server, request), hierarchy)


def _in_step(
    request: ServingRequest,
    load: ServedLoad,
    now: RunningServer,
    run: Callable[[ServingRequest], RunningServer | Rejected],
) -> tuple[tuple[str, str] | None, RunningServer]:
    """What requests of one length wait for, and the server with a band that covers lengths that spread."""
    if ALIKE in (load.flags.input_p99, load.flags.output_p99):
        return None, now
    first = first_token_spread(request, now, run)
    if first is None:
        return None, now
    times = (format_seconds(value) for value in (first.p50_s, first.lower_s, first.upper_s))
    what = (
        "requests of one length end in step, and their prompts wait for each other: with lengths that spread "
        "by a tenth the first token is {} ({}–{}), which the band covers".format(*times)
    )
    fix = f"say --input-p99 and --output-p99 as the client draws lengths, or {ALIKE}"
    return (what, fix), covering(now, first)


def _under(cal: Calibration, server: Server, load: ServedLoad) -> LoadAudit:
    """A server under one load."""
    asked = asked_of(server, load.flags)
    request, hierarchy = as_planned(server, asked.requests[0][0]), asked.requests[0][1]
    if (sized := as_sized(server, request, hierarchy)) is not server:
        server, asked = sized, asked_of(sized, load.flags)
        request, hierarchy = as_planned(server, asked.requests[0][0]), asked.requests[0][1]
    trace, refused = _taken(asked.trace, server)
    judged = LoadAudit(
        load=load,
        findings=(*_findings(server, request, refused), *refused),
        assumed=tuple(length_notes(load.flags, request.job)),
    )
    if _refused_prompt(server, request.job.input_tokens) or (trace is not None and not len(trace)):
        return replace(judged, fits=False)
    now = running(cal, server, request, hierarchy, trace)
    judged = _with_best(judged, asked, alike=not server.layout.gpus)
    if isinstance(now, Rejected):
        return _without_room(judged, f"the server {now.reason}")
    hits = prefix_words(trace, keeps=server.keeps_prefixes, share=now.cached_share)
    peers, binds = tuple(_peers(cal, server, request, hierarchy, now)), binding(server, now)
    in_step = None
    if asked.trace is None:
        in_step, now = _in_step(request, load, now, partial(running, cal, server, hierarchy=hierarchy))
    judged = replace(
        judged,
        running=now,
        findings=(*judged.findings, *_waits(server, now)),
        assumed=(*judged.assumed, *hits, *peers),
        binds=binds,
        in_step=in_step,
    )
    if not load.compares:
        return judged
    best = None if judged.best is None else under_load(cal, judged.best, request, hierarchy)
    changes = server_changes(cal, server, request, hierarchy, now=now, best=best)
    return replace(judged, best=best_with(best, changes), changes=changes)


def _waits(server: Server, now: RunningServer) -> Iterator[tuple[str, str]]:
    """What is said where requests always wait."""
    if (waiting := always_waiting(server, now)) is not None:
        yield waiting


def _best(asked: Asked) -> tuple[ServingPlan | None, tuple[tuple[str, str], ...]]:
    """The server of the same GPUs that carries most; why there is none, and what would help."""
    most = tuple((_unrated(request), hierarchy) for request, hierarchy in asked.requests)
    try:
        return find_fleet(replace(asked, requests=most)), ()
    except NoFeasiblePlanError as none:
        return None, ((f"{none.what}: {none.cause}", none.fix),)


def _unrated(request: ServingRequest) -> ServingRequest:
    """The same question for what the GPUs carry at most."""
    return replace(request, job=replace(request.job, request_rate_per_s=None))


def _refused_prompt(server: Server, prompt: int) -> bool:
    """Whether a prompt is refused, as it is longer than a step and is not cut."""
    return server.longest_prompt is not None and server.longest_prompt < prompt


def _longest(server: Server) -> float:
    """Tokens of the longest request that is not refused."""
    return inf if server.longest is None else server.longest


def _taken(trace: Load | None, server: Server) -> tuple[Load | None, tuple[tuple[str, str], ...]]:
    """The requests of a trace that a server takes, and what is said of those that it refuses."""
    if trace is None or server.longest is None:
        return trace, ()
    kept = within(trace, server.longest)
    if len(kept) == len(trace):
        return trace, ()
    many, longest = len(trace) - len(kept), int(np.max(trace.input_tokens + trace.output_tokens))
    what = (
        f"{many:,} of {len(trace):,} requests are refused, being longer than {server.longest:,} tokens: "
        "what is said is of the others"
    )
    return kept, ((what, f"allow {longest:,} tokens, or leave the limit to the engine"),)


def _findings(
    server: Server, request: ServingRequest, refused: tuple[tuple[str, str], ...] = ()
) -> Iterator[tuple[str, str]]:
    """What of the settings is wrong for the load, with what helps; `refused` tells of a trace."""
    job = request.job
    prompt = job.input_tokens_p99 or job.input_tokens
    if _refused_prompt(server, prompt):
        whose = f"prompts of {prompt:,} tokens, the longest of a hundred,"
        if _refused_prompt(server, job.input_tokens):
            whose = f"prompts of {job.input_tokens:,} tokens"
        yield (
            f"{whose} are refused: max_num_tokens is {server.token_budget:,}, and no prompt is cut",
            f"set max_num_tokens {prompt:,} or more, or enable_chunked_prefill: true",
        )
    longest = (job.input_tokens_p99 or job.input_tokens) + (job.output_tokens_p99 or job.output_tokens)
    if server.longest is not None and server.longest < longest and not refused:
        yield (
            f"requests of {longest} tokens are refused: the server takes {server.longest}",
            f"allow at least {longest} tokens, or leave the limit to the engine",
        )
