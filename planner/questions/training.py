"""From words to a `PlanRequest`: names are resolved, defaults are chosen, and every choice is said aloud.

Legend: a *flag* is what the user wrote (text or None), a *request* is what the planner reads (complete).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from costmodel.job import MOST_USD, TrainingJob
from costmodel.kernels.level import StackLevel
from costmodel.kernels.precisions import TRAINING
from costmodel.models.catalog import model as find_model
from costmodel.models.catalog import uncompared_note
from costmodel.models.spec import ModelSpec
from costmodel.updates.adapters import parse_adapter
from planner.plan import FREE, OBJECTIVES, Objective, PlanRequest
from planner.questions.batches import read_batch
from planner.questions.engine import stack_and_engine, usual_engine
from planner.questions.expert_load import read_expert_load
from planner.questions.flags import FLAG_OF_FIELD, Flags, command_line
from planner.questions.modules import recompute_modules
from planner.questions.offload import offload_of, offload_pins, require_offloadable, with_host_rate
from planner.questions.seen import require_seen
from planner.questions.settings import override, override_cluster, settings_by_group, stated_switches
from planner.questions.traced import require_of_a_module
from planner.rules.check import user_pins
from topology.base.counts import TOTALS, counted, listed_counts, parse_count, parse_share, suffix_note
from topology.base.errors import InputError, shown
from topology.base.names import normalize, resolve
from topology.base.units import parse_seconds
from topology.cluster_file import resized
from topology.hardware.datasheets import default_gpu, sheet_named
from topology.pools.rates import rates_of, unpriced
from topology.spec import ClusterSpec

DEFAULT_SEQUENCE_LENGTH = 8192
DEFAULT_GLOBAL_BATCH_SIZE = 512
SEQUENCES_PER_GPU = 8
"""The default batch grows with the cluster: one sequence for every eight GPUs, as for Llama 3 405B."""
MOST_GPUS = 1_000_000
DEFAULT_TOP = "5"
MOST_ALTERNATIVES = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Understood:
    """A complete request, and what had to be interpreted to get there."""

    request: PlanRequest
    notes: tuple[str, ...]


def understand(
    flags: Flags,
    *,
    model: ModelSpec | None = None,
    cluster: ClusterSpec | None = None,
    job: TrainingJob | None = None,
) -> Understood:
    """Turn flags into a complete request.

    Args:
        flags: What was written.
        model: A model that has no name (an uploaded one), in place of the flag.
        cluster: A cluster that has no name, in place of the flags.
        job: A job in place of the flags that describe one.
    """
    _require_single(flags)
    groups = settings_by_group(flags.settings)
    model = override(model or _find_model(flags.model), groups["model"], "model")
    spec = understand_cluster(flags, cluster=cluster)
    offload, shares = offload_of(_offload_words(flags.offload, groups["layout"].pop("offload", None)))
    asked = job or _job(flags, model, spec.num_gpus)
    job = override(asked, groups["job"], "job")
    _require_one_word(flags, groups, asked, job)
    job = job if offload is None else replace(job, offload=offload)
    require_offloadable(job)
    spec, hosts = with_host_rate(job, spec)
    _require_step_of_tokens(job, model)
    stack, engine = stack_and_engine(flags.stack, flags.engine)
    request = PlanRequest(
        model=model,
        cluster=spec,
        job=job,
        stack=stack,
        engine=engine or FREE,
        objective=_objective(flags.objective, job, spec),
        pins=offload_pins(job.offload, _pins(flags, groups["layout"])),
        offload_shares=shares,
        switches=stated_switches(groups["switch"], model, job),
        recompute_modules=recompute_modules(flags.recompute_modules, stack, engine),
        top=parse_count(flags.top or DEFAULT_TOP, "--top", largest=MOST_ALTERNATIVES),
        memory_headroom=_headroom(flags),
        anchor=_anchor(flags.anchor, stack) if flags.anchor else None,
    )
    if model.module:
        require_of_a_module(model.module, job, request.pins)
    require_seen(job, model)
    notes = (*_notes(flags, request), *filter(None, (hosts,)))
    if flags.objective in RUN_OBJECTIVES:
        notes = (*notes, _run_objective_note(flags.objective or "", request.job))
    if engine is None:
        usual, why = usual_engine(request)
        request, notes = replace(request, engine=usual), (*notes, *why)
    return Understood(request=request, notes=notes)


SWEPT = ("gpus", "sequence_length", "global_batch_size")
"""Counts that `plan sweep` takes lists of."""
GROUP_DIGITS = 3
LARGEST_UNIT = 10_000
"""Tokens of a run that are likely meant in billions or trillions."""


def _require_single(flags: Flags) -> None:
    """Refuse a list where one number is planned, with the command that plans every one of it."""
    for field in SWEPT:
        written = getattr(flags, field)
        parts = listed_counts(written) if written else ()
        if len(parts) > 1:
            flag = FLAG_OF_FIELD[field]
            grouped = all(len(part) == GROUP_DIGITS for part in parts[1:])
            joined = f"; {''.join(parts)} alone is written without a break" if grouped else ""
            swept: dict[str, Any] = {field: ",".join(parts)}
            raise InputError(
                what=f"{flag} {written.strip()} is a list",
                cause=f"{' and '.join(parts)} are {len(parts)} numbers, and one is planned here{joined}",
                fix=f"give {flag} {''.join(parts).lstrip('0')}"
                if grouped and any(part.startswith("0") for part in parts)
                else command_line(replace(flags, **swept), "plan sweep"),
            )


_JOB_FIELDS: Mapping[str, str] = {
    "sequence_length": "sequence_length", "global_batch_size": "global_batch_size", "precision": "precision",
    "adapter": "adapter", "expert_load": "expert_load", "tokens": "total_tokens", "deadline": "deadline_s",
    "budget": "budget_usd",
}  # fmt: skip
"""Fields of a job by the flag that states them."""


def _require_one_word(
    flags: Flags, groups: Mapping[str, Mapping[str, str]], asked: TrainingJob, job: TrainingJob
) -> None:
    """Refuse a flag and a setting that say two things of one field."""
    for flag, field in _JOB_FIELDS.items():
        written = getattr(flags, flag)
        if written and field in groups["job"] and getattr(asked, field) != getattr(job, field):
            raise InputError(
                what=f"{FLAG_OF_FIELD[flag]} and --set job.{field} contradict each other",
                cause=f"{written} and {groups['job'][field]}",
                fix="leave one of them out",
            )
    gpu = groups["cluster"].get("gpu")
    if gpu and flags.gpu and sheet_named(flags.gpu).name != sheet_named(gpu).name:
        raise InputError(
            what="--gpu and --set cluster.gpu contradict each other",
            cause=f"{flags.gpu} and {gpu}",
            fix="leave one of them out",
        )


def _require_step_of_tokens(job: TrainingJob, model: ModelSpec) -> None:
    """Refuse a run that ends within its first step, as fifteen tokens where fifteen trillion are meant."""
    if job.total_tokens is None or job.total_tokens >= job.tokens_per_step:
        return
    total, noun = job.total_tokens, "sample" if model.module else "token"
    step = counted(job.tokens_per_step, noun)
    units = f"--tokens {total}T or --tokens {total}B" if total <= LARGEST_UNIT else "more --tokens"
    raise InputError(
        what=f"--tokens {total:,} ends within the first step",
        cause=f"a step of {counted(job.global_batch_size, 'sequence')} has {step}",
        fix=f"give {units}, or a smaller --global-batch-size",
    )


def _pins(flags: Flags, settings: Mapping[str, str]) -> dict[str, Any]:
    """Pinned fields; modules to compute again are the policy ``selective``."""
    pins = user_pins(settings)
    if flags.recompute_modules and pins.setdefault("recompute", "selective") != "selective":
        raise InputError(
            what="--recompute-modules and layout.recompute contradict each other",
            cause=f"modules are recomputed by recompute=selective, not {pins['recompute']}",
            fix="leave one of them out",
        )
    return pins


def _offload_words(flag: str | None, setting: str | None) -> str | None:
    """What is offloaded, by ``--offload`` or by ``--set layout.offload``."""
    if flag is not None and setting is not None and flag != setting:
        raise InputError(
            what="--offload and layout.offload contradict each other",
            cause=f"{shown(flag)} and {shown(setting)}",
            fix="leave one of them out",
        )
    return setting if flag is None else flag


def _headroom(flags: Flags) -> float | None:
    """Read the share of memory to leave free, if it was written."""
    return parse_share(flags.memory_headroom, "--memory-headroom") if flags.memory_headroom else None


def _anchor(text: str, stack: str) -> StackLevel:
    """The level that the user's own runs give this stack."""
    from costmodel.accuracy.kept_anchors import find_anchor
    from costmodel.kernels.tables import load_calibration

    anchor = find_anchor(text, load_calibration())
    level = anchor.level_of(stack)
    if level is None:
        measured = [entry.stack for entry in anchor.levels]
        raise InputError(
            what=f"the anchor {text} says nothing about {stack}",
            cause=f"its runs are of {', '.join(measured)}",
            fix=f"plan for --stack {measured[0]}, or anchor with runs of {stack}",
        )
    return replace(level, name=anchor.name)


def understand_cluster(flags: Flags, *, cluster: ClusterSpec | None = None) -> ClusterSpec:
    """The cluster alone, its settings applied; as many nodes as hold the GPUs asked for, less what is out."""
    return what_is_left(_whole_cluster(flags, cluster), flags.without, flags.degraded)


def settings_of_nodes(flags: Flags, per_node: int) -> tuple[str, ...]:
    """Settings that give the same GPUs in nodes of another size, each with its share of the network cards.

    >>> settings_of_nodes(Flags(gpu="h100-sxm", gpus="32"), 4)
    ('cluster.gpus_per_node=4', 'cluster.count=8', 'cluster.nics_per_node=4')
    """
    usual = understand_cluster(flags)
    count, left = divmod(usual.num_gpus, per_node)
    if left:
        raise InputError(
            what=f"{usual.num_gpus:,} GPUs do not fill nodes of {per_node}",
            cause=f"{left} GPUs would be left over",
            fix="choose GPUs per node that divide the GPUs",
        )
    node = usual.nodes[0]
    nics = max(1, node.nics_per_node * per_node // node.gpus_per_node)
    sizes = {"gpus_per_node": per_node, "count": count, "nics_per_node": nics}
    return tuple(f"cluster.{name}={size}" for name, size in sizes.items())


def what_is_left(spec: ClusterSpec, without: str | None, faults: str | None) -> ClusterSpec:
    """A cluster without hosts, and with degraded hosts, as `--without` and `--degraded` say."""
    if not (without or faults):
        return spec
    from topology.discover.hostlist import hosts_in
    from topology.fabric.degraded import degraded

    named = hosts_in(without, "--without") if without else ()
    return degraded(spec, named, [word for word in (faults or "").split(",") if word.strip()])


def _whole_cluster(flags: Flags, cluster: ClusterSpec | None) -> ClusterSpec:
    """The cluster before anything is left out."""
    settings = settings_by_group(flags.settings)["cluster"]
    spec = override_cluster(cluster or _find_cluster(flags), settings)
    asked = _num_gpus(flags)
    if asked is None or asked == spec.num_gpus or spec.num_gpus < 1:  # the last is refused where it is built
        return spec
    if "count" in settings:
        raise InputError(
            what=f"--gpus {asked} and --set cluster.count={settings['count']} contradict each other",
            cause=f"{settings['count']} nodes of {spec.nodes[0].gpus_per_node} GPUs are {spec.num_gpus} GPUs",
            fix=f"use --gpus {spec.num_gpus}, or leave out cluster.count",
        )
    return resized(spec, asked)


def _num_gpus(flags: Flags) -> int | None:
    """Read the number of GPUs, if it was written."""
    return parse_count(flags.gpus, "--gpus", largest=MOST_GPUS) if flags.gpus else None


def _find_model(name: str | None) -> ModelSpec:
    """Find the model, or ask for one."""
    if not name:
        raise InputError(
            what="no model was named", cause="--model is missing",
            fix="add for example --model 70b; `plan models` lists them all",
        )  # fmt: skip
    return find_model(name)


def _find_cluster(flags: Flags) -> ClusterSpec:
    """Find the cluster by name or file, or build the usual one of a GPU kind."""
    from topology.builders import default_cluster
    from topology.catalog import cluster, dumps_named

    num_gpus = _num_gpus(flags)
    if flags.cluster and flags.gpu and not dumps_named(flags.cluster):
        raise InputError(
            what="two kinds of GPU were named", cause=f"--cluster {flags.cluster} and --gpu {flags.gpu}",
            fix="give --cluster or --gpu",
        )  # fmt: skip
    if flags.cluster:
        stated = settings_by_group(flags.settings)["cluster"].get("gpu", "")
        gpu = flags.gpu or (stated if dumps_named(flags.cluster) else "")
        return cluster(flags.cluster, num_gpus, gpu).spec
    if num_gpus is None:
        raise InputError(
            what="the number of GPUs is not known", cause="neither --gpus nor --cluster was given",
            fix="add for example --gpus 32",
        )  # fmt: skip
    return default_cluster(flags.gpu or default_gpu(), num_gpus).spec


def _job(flags: Flags, model: ModelSpec, num_gpus: int) -> TrainingJob:
    """Read the job, with the defaults of a pre-training run."""
    length = min(DEFAULT_SEQUENCE_LENGTH, model.max_sequence_length)
    if flags.sequence_length:
        length = parse_count(flags.sequence_length, "--sequence-length")
    batch = default_batch(num_gpus)
    if flags.global_batch_size:
        batch = read_batch(flags.global_batch_size, sample_tokens(model, length))
    precisions = tuple(TRAINING)
    job = TrainingJob(
        sequence_length=length,
        global_batch_size=batch,
        precision=_one_of(flags.precision or precisions[0], precisions, "precision"),
        adapter=parse_adapter(flags.adapter) if flags.adapter else None,
        expert_load=read_expert_load(flags.expert_load, model) if flags.expert_load else (),
        total_tokens=_total(flags.tokens, model) if flags.tokens else None,
        deadline_s=parse_seconds(flags.deadline, "30d") if flags.deadline else None,
        budget_usd=read_budget(flags.budget) if flags.budget else None,
    )
    _require_run_of_limits(flags)
    return job


def _require_run_of_limits(flags: Flags) -> None:
    """Refuse a limit of a whole run whose length nobody says."""
    for limit, words in (("deadline", flags.deadline), ("budget", flags.budget)):
        if words is not None and flags.tokens is None:
            raise InputError(
                what=f"a {limit} is that of a whole run",
                cause=f"--{limit} {words} came without --tokens",
                fix="say how many tokens to train, for example --tokens 1T",
            )


def read_budget(text: str) -> float:
    """Dollars of a budget, with the sign before or behind the number or without one.

    >>> read_budget("2M$"), read_budget("$1,500,000"), read_budget("800k")
    (2000000.0, 1500000.0, 800000.0)
    """
    value = text.strip()
    number = value[1:] if value.startswith("$") else value.removesuffix("$")
    return float(parse_count(number.strip(), "--budget", largest=int(MOST_USD), suffixes=TOTALS))


def sample_tokens(model: ModelSpec, length: int) -> int:
    """Tokens of one sequence of a batch; of a traced module of one sample, 0 where it has none."""
    return model.module.sample_tokens if model.module else length


def _total(text: str, model: ModelSpec) -> int:
    """Tokens of a run; of a traced module that reads text the samples that have as many."""
    total = parse_count(text, "--tokens", suffixes=TOTALS)
    each = model.module.sample_tokens if model.module else 0
    return -(-total // each) if each else total


def default_batch(num_gpus: int) -> int:
    """Give the global batch in sequences when none was asked for: 512, or one per eight GPUs if that is more.

    >>> default_batch(32), default_batch(16384)
    (512, 2048)
    """
    wanted = max(DEFAULT_GLOBAL_BATCH_SIZE, num_gpus / SEQUENCES_PER_GPU)
    return 1 << math.ceil(math.log2(wanted))


RUN_OBJECTIVES = {"time": "step-time", "date": "step-time"}
"""Objectives of a whole run: its layout is that of the shortest step, the rest is chosen by its campaign."""


def _objective(name: str | None, job: TrainingJob, cluster: ClusterSpec) -> Objective:
    """Read the objective, and see that it has what it needs."""
    named = RUN_OBJECTIVES.get(name or "", name or OBJECTIVES[0])
    objective = _one_of(named, OBJECTIVES, "objective")
    needed = {"--deadline": job.deadline_s, "--tokens": job.total_tokens}
    if objective == "gpus" and None in needed.values():
        raise InputError(
            what="the fewest GPUs for a deadline need one",
            cause=" and ".join(f"{flag} is missing" for flag, value in needed.items() if value is None),
            fix="add for example --tokens 1T --deadline 30d",
        )
    if job.budget_usd is not None and rates_of(cluster) is None:
        raise InputError(
            what="a budget needs a price of every kind of node",
            cause=f"no price is known of nodes of {', '.join(unpriced(cluster))}",
            fix="add for example --set cluster.usd_per_gpu_hour=2.5",
        )
    if objective == "cost" and rates_of(cluster) is None:
        raise InputError(
            what="the least cost needs a price",
            cause=f"no price of {', '.join(map(shown, unpriced(cluster)))} is known",
            fix="add --set cluster.usd_per_gpu_hour=…, or leave out --objective cost",
        )
    return objective


def _run_objective_note(word: str, job: TrainingJob) -> str:
    """What an objective of a run is taken for."""
    if word == "time" or job.total_tokens is None:
        return f"objective {word} is step-time: the run of the shortest step is the shortest run"
    return "objective date: the earliest finish in the median, and spares until hardly any is waited for"


def _one_of(name: str, choices: Sequence[T], kind: str) -> T:
    """Resolve a name among a few words."""
    text = resolve(name, [str(choice) for choice in choices], kind)
    return next(choice for choice in choices if str(choice) == text)


def left_out_note(model: ModelSpec) -> str:
    """What of a model that also sees is not planned, and how all of it is."""
    whole = (
        f"; --model transformers:{model.source} traces all of it, where that library can"
        if model.source
        else ""
    )
    return f"the language model of {model.name} alone is planned, without {model.left_out}{whole}"


def untrained_note(model: ModelSpec) -> str:
    """What of a model that predicts further tokens is not trained, and how it is."""
    count = model.num_nextn_predict_layers
    return (
        f"{model.name} has {counted(count, 'module')} to predict further tokens, not trained: "
        f"--set job.mtp_layers={count} trains as many"
    )


def _count_notes(flags: Flags, request: PlanRequest) -> tuple[str, ...]:
    """What counts with a suffix were read as."""
    job, sequence = request.job, "sample" if request.model.module else "sequence"
    return (
        *suffix_note(flags.gpus, request.cluster.num_gpus, "--gpus", "GPU"),
        *suffix_note(flags.sequence_length, job.sequence_length, "--sequence-length", "token"),
        *suffix_note(flags.global_batch_size, job.global_batch_size, "--global-batch-size", sequence),
        *_total_note(flags, request),
    )


def _total_note(flags: Flags, request: PlanRequest) -> tuple[str, ...]:
    """What tokens with a suffix were read as, and how many samples of a traced module have them."""
    total, module = request.job.total_tokens or 0, request.model.module
    if module is None or not flags.tokens:
        return suffix_note(flags.tokens, total, "--tokens", "token")
    of = f" of {counted(module.sample_tokens, 'token')}" if module.sample_tokens else ""
    return (f"--tokens {flags.tokens} is {counted(total, 'sample')}{of}",)


def _notes(flags: Flags, request: PlanRequest) -> tuple[str, ...]:
    """Say what a lenient name was understood as."""
    meant = (
        ("model", flags.model, request.model.name),
        ("GPU", flags.gpu, request.cluster.nodes[0].gpu),
        ("stack", flags.stack, request.stack),
        ("engine", (flags.engine or "").partition("@")[0], request.engine),
    )
    alone = tuple(filter(None, (uncompared_note(request.model),)))
    if request.model.left_out:
        alone = (left_out_note(request.model), *alone)
    if request.model.num_nextn_predict_layers and not (request.job.mtp_layers or request.job.adapter):
        alone = (*alone, untrained_note(request.model))
    if request.model.weight_format not in ("", "bf16"):
        stored = f"the checkpoint's weights are {request.model.weight_format}, a format to serve in"
        alone = (*alone, f"{stored}: training holds them as the job says")
    return (
        alone
        + _count_notes(flags, request)
        + tuple(
            f"{kind} {written} is {name}"
            for kind, written, name in meant
            if written
            and normalize(written.rpartition("/")[2]) != normalize(name)
            and ("/" not in written or request.model.source.endswith(f"/{written}"))
            and not written.endswith(".json")
        )
    )
