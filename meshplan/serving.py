"""The verb of the library on serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from costmodel.job import ServingJob
from costmodel.models.spec import ModelSpec
from planner.analysis.serving.fleets import find_fleet
from planner.audit.serving.running import RunningServer
from planner.audit.serving.texts import predicted_plan, predicted_texts
from planner.questions.flags import ServeFlags
from planner.questions.serving.services import FIELD_OF_WORD, UNIT_OF_WORD
from planner.questions.serving.understand import understand_serving
from planner.questions.words import (
    CountWord,
    Model,
    layout_settings,
    require_known,
    setting_words,
    text_of,
)
from planner.serving.plan import ServingPlan
from topology.base.errors import InputError, NoFeasiblePlanError
from topology.base.files import read_text


class LoadWords(TypedDict, total=False):
    """What may be said about a load and its fleet; every word is that of a flag of `plan serve`.

    Times (`ttft`, `tpot`, `e2e`) are seconds or texts such as ``"30ms"``; `rate` is requests per second or a
    text; `job` takes the place of the words that describe one. `gpu` and `weights` may be lists. `layout`
    pins degrees of a replica: ``{"tp": 4}``.
    """

    gpus: CountWord
    gpu: str | Sequence[str]
    cluster: str | Path
    job: ServingJob
    input: CountWord
    output: CountWord
    input_p99: CountWord
    output_p99: CountWord
    rate: float | str
    concurrency: CountWord
    trace: str | Path
    ttft: float | str
    tpot: float | str
    e2e: float | str
    percentile: float | str
    weights: str | Sequence[str]
    kv: str
    engine: str
    mode: str
    objective: str
    cached: float | str
    draft_tokens: CountWord
    acceptance: float | str
    drafter: str
    router: str
    kv_offload: float | str
    adapter: str
    adapters: CountWord
    burstiness: float | str
    memory_fraction: float | str
    anchor: str
    usd_per_gpu_hour: float | str
    provider: str | Sequence[str]
    spare: int | str
    layout: Mapping[str, object]
    set: Mapping[str, object]


_OF_A_FLEET = (
    *("gpus", "gpu", "cluster", "weights", "engine", "mode", "objective", "usd_per_gpu_hour"),
    *("layout", "set", "provider", "spare"),
)


def serve(model: Model, **words: Unpack[LoadWords]) -> ServingPlan:
    """The fleet that serves a load within latency limits, as `plan serve` finds it.

    Args:
        model: a name, the path of a config.json, or a value.
        words: see `LoadWords`.

    Raises:
        NoFeasiblePlanError: none does; its `answer` is the `ServingInfeasible` that came nearest.
    """
    given = dict(words)
    require_known(given, LoadWords)
    job = given.pop("job", None)
    if isinstance(job, ServingJob) and (both := [word for word in given if word not in _OF_A_FLEET]):
        raise InputError(
            what="two jobs were given", cause=f"job and {', '.join(both)}", fix="give the job, or its words"
        )
    named = None if isinstance(model, ModelSpec) else str(model)
    asked = understand_serving(
        _flags(named, given),
        model=model if isinstance(model, ModelSpec) else None,
        job=job if isinstance(job, ServingJob) else None,
    )
    return find_fleet(asked)


def predict(
    server: str | Path | Sequence[str | Path] | ServingPlan, **words: Unpack[LoadWords]
) -> RunningServer:
    """What a given server does under a load, as `plan serve --predict` says it.

    Args:
        server: a script that starts it, several files, or a plan: a value, or the path of its JSON.
        words: its load (`rate`, `concurrency` or `trace`, lengths, limits), and the `gpu` or `cluster` that
            no file names.

    Raises:
        InputError: the files start no server, or no load is given.
        NoFeasiblePlanError: the server does not start, or holds none of the load.
    """
    given = dict(words)
    require_known(given, LoadWords)
    if strange := given.keys() - _OF_A_LOAD:
        raise InputError(
            what="a given server is predicted as it is started",
            cause=f"{', '.join(sorted(strange))} would change it",
            fix="change the files, or the plan",
        )
    flags = _flags(None, given)
    if isinstance(server, ServingPlan):
        audit = predicted_plan(server, flags, "plan.json")
    else:
        paths = [server] if isinstance(server, (str, Path)) else list(server)
        audit = predicted_texts({str(path): read_text(Path(path)) for path in paths}, flags)
    if audit.missing:
        raise InputError(
            what="the server is not known whole",
            cause=f"missing: {', '.join(audit.missing)}",
            fix="give the files that say it, and a load: rate, concurrency or trace",
        )
    (load,) = audit.loads
    if load.running is None:
        wrong = next((start.finding for start in audit.starts if start.finding), None) or load.findings[0]
        raise NoFeasiblePlanError(what="the server serves nothing of this load", cause=wrong[0], fix=wrong[1])
    return load.running


_OF_A_LOAD = {
    *("gpu", "cluster", "input", "output", "input_p99", "output_p99", "rate", "concurrency", "trace"),
    *("ttft", "tpot", "e2e", "percentile", "cached", "burstiness"),
}


def _flags(model: str | None, words: Mapping[str, Any]) -> ServeFlags:
    """Words as a command line would have them."""
    flags: dict[str, Any] = {
        FIELD_OF_WORD.get(word, word): text_of(value, unit=UNIT_OF_WORD.get(word, ""))
        for word, value in words.items()
        if word not in ("layout", "set", "trace")
    }
    trace = None if words.get("trace") is None else Path(words["trace"])
    settings = (*layout_settings(words.get("layout")), *setting_words(words.get("set")))
    return ServeFlags(model=model, trace=trace, settings=settings, **flags)
