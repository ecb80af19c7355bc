"""From the texts of files to the audit of a server, wherever they come from."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodel.kernels.tables import load_calibration
from planner.audit.facts import JobFacts
from planner.audit.read import Reading, read_texts
from planner.audit.serving.audit import ServingAudit, audited_pools, audited_server, on_gpus_that_hold
from planner.audit.serving.configured import configs_of
from planner.audit.serving.copies import with_copies
from planner.audit.serving.devices import with_shared_device
from planner.audit.serving.hosts import with_hosts
from planner.audit.serving.load import ServedLoad, asked_in_name, is_result, loads_of
from planner.audit.serving.pools import Pools, pools_of
from planner.audit.serving.printed_load import printed_load
from planner.audit.serving.server import Server, planned_server, server_of
from planner.audit.serving.shared_memory import has_little_shared_memory
from planner.audit.started_texts import as_started
from planner.audit.words import family_named
from planner.questions.flags import ServeFlags
from planner.questions.serving.lengths import ALIKE
from planner.questions.words import text_of
from planner.serving.plan import ServingPlan, is_serving_plan, serving_from_json
from topology.base.errors import InputError


def audited_server_texts(
    texts: Mapping[str, str], asked: ServeFlags, given: Mapping[str, str], *, gpu: str | None = None
) -> ServingAudit | None:
    """Judge texts that were sent: nothing that they name is opened; None where they start no server.

    Args:
        texts: Launch files and what benchmark clients wrote, by name.
        asked: The load, where the texts say none.
        given: Variables of the environment that scripts read.
        gpu: The kind of GPU, where no text names one.
    """
    results = {name: text for name, text in texts.items() if is_result(name, text)}
    launches = {name: text for name, text in texts.items() if name not in results}
    if not launches:
        return None
    reading = read_texts(launches, given)
    if not reading.family.serves:
        return None
    return judged(reading, launches, results, asked, given, gpu=None if len(reading.gpus) == 1 else gpu)


def judged(
    reading: Reading,
    texts: Mapping[str, str],
    results: Mapping[str, str],
    asked: ServeFlags,
    given: Mapping[str, str],
    *,
    model: str | None = None,
    gpu: str | None = None,
    cluster: str | None = None,
    compares: bool = True,
) -> ServingAudit:
    """The audit of what was read; see `audited_server_texts`. Without `compares` it is a prediction alone."""
    texts = as_started(texts)
    scripts = {name: text for name, text in texts.items() if reading.kinds.get(name) in ("shell", "page")}
    loads = [
        replace(load, compares=load.compares and compares)
        for load in loads_of(results, scripts, asked, given, reading.kinds)
    ]
    printed = printed_load(reading.served) if reading.served is not None and not loads else None
    if printed is not None:
        flags = printed.flags(asked, printed.running + printed.waiting)
        loads = [ServedLoad(flags=flags, source="its log", compares=compares)]
    elif not loads:
        asked = functools.reduce(lambda flags, name: asked_in_name(name, flags), reading.kinds, asked)
    pools = pools_of(texts, given, model=model, gpu=gpu, cluster=cluster)
    if isinstance(pools, Pools):
        prefill, decode = (_deployed(pool, texts, given) for pool in (pools.prefill, pools.decode))
        pools = replace(pools, prefill=prefill, decode=decode)
        return audited_pools(load_calibration(), reading, pools, loads, asked if compares else None)
    server = pools or server_of(reading, model=model, gpu=gpu, cluster=cluster, configs=configs_of(texts))
    if isinstance(server, Server):
        server = _deployed(with_copies(on_gpus_that_hold(server), texts, given), texts, given)
    return audited_server(load_calibration(), reading, server, loads, asked if compares else None)


def predicted_texts(texts: Mapping[str, str], asked: ServeFlags) -> ServingAudit:
    """What a given server does under a load, as an audit of the same files says it.

    Args:
        texts: Files that start it, by name, or the plan of one.
        asked: Its load, and the model, GPUs or cluster that no file names.

    Raises:
        InputError: The files start no server, or other GPUs were named beside a plan, which has its own.
    """
    (name, text), *others = texts.items()
    if not others and is_serving_plan(text):
        words = {"--model": asked.model, "--gpu": asked.gpu, "--cluster": asked.cluster}
        if named := [flag for flag, value in words.items() if value]:
            raise InputError(
                what="a plan is predicted as it was planned",
                cause=f"{' and '.join(named)} beside {name}, which says its own",
                fix="leave them out, or plan serve again with them",
            )
        return predicted_plan(serving_from_json(text, name), asked, name)
    reading = read_texts(texts)
    if not reading.family.serves:
        raise InputError(
            what="these files start no server",
            cause=f"{', '.join(texts)}: read as {reading.family.name}",
            fix="name the script that starts the server, or a plan that plan serve --json wrote",
        )
    where = {"model": asked.model, "gpu": asked.gpu, "cluster": asked.cluster}
    return judged(reading, texts, {}, asked, {}, compares=False, **where)


def _deployed(server: Server, texts: Mapping[str, str], given: Mapping[str, str]) -> Server:
    """The server, or the worker of a pool, with what its files say of hosts, shared GPUs and memory."""
    server = with_hosts(with_shared_device(server, texts, given), texts)
    return replace(server, little_shm=has_little_shared_memory(texts, given))


_FAMILIES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
"""Engines by the names of their profiles."""


def predicted_plan(plan: ServingPlan, asked: ServeFlags, name: str) -> ServingAudit:
    """What a planned fleet does under a load.

    Args:
        plan: Its pools are started as they were planned.
        asked: The load; what it does not say is that of the plan.
        name: Of the plan's file.
    """
    reading = Reading(JobFacts(), family_named(_FAMILIES[plan.request.engine]), {name: "json"})
    asked = with_own_load(plan, asked)
    loads = [replace(load, compares=False) for load in loads_of({}, {}, asked, {})]
    servers = {role: planned_server(plan, pool) for role, pool in plan.pools}
    if "" in servers:
        return audited_server(load_calibration(), reading, servers[""], loads)
    pools = Pools(prefill=servers["prefill"], decode=servers["decode"])
    return audited_pools(load_calibration(), reading, pools, loads)


def with_own_load(plan: ServingPlan, asked: ServeFlags) -> ServeFlags:
    """The load that was asked, or that for which the fleet was planned, at the rate that it was found for."""
    if asked.rate or asked.concurrency or asked.trace is not None:
        return asked
    job = plan.request.job
    rate = None if job.concurrency is not None else f"{plan.estimate.request_rate_per_s!r}/s"
    flags: dict[str, Any] = {
        "rate": rate,
        "concurrency": text_of(job.concurrency),
        "input_tokens": text_of(job.input_tokens),
        "output_tokens": text_of(job.output_tokens),
        "input_p99": text_of(job.input_tokens_p99 or ALIKE),
        "output_p99": text_of(job.output_tokens_p99 or ALIKE),
        "ttft": text_of(job.ttft_s, unit="s"),
        "tpot": text_of(job.tpot_s, unit="s"),
        "end_to_end": text_of(job.end_to_end_s, unit="s"),
        "percentile": text_of(job.percentile),
        "cached": text_of(job.cached_share or None),
        "burstiness": text_of(job.burstiness),
    }
    return replace(asked, **{name: getattr(asked, name) or value for name, value in flags.items()})
