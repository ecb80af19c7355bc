"""What is wrong with a job as its files have it: illegal, contradictory, without effect, needlessly slow.

What needs only the stated facts is told without a model or a cluster; a complete job is judged by the rules
of the planner too (`planner.rules.check`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from costmodel.layout import PLAIN_SCHEDULE
from costmodel.parallel.divisions import BATCH, EXPERT_RANKS, HEADS, RANKS
from planner.audit.contract_reading import contract_of
from planner.audit.environment import FEWER_NICS, FULL_PRECISION, NICS, OVER_TCP, nics_named, slow_settings
from planner.audit.full_precision import in_full_precision
from planner.audit.given import without_presumed
from planner.audit.job import Job
from planner.audit.legal import KIND_OF, Finding, FindingKind, place_of, refusal_findings, rule_findings
from planner.audit.read import Reading
from planner.audit.residual import work_of_step
from planner.audit.spelling import spelled_fix, spelled_name
from planner.audit.stops_at_start import STOPS_AT_START
from planner.bounds.reachable import HIGHEST_SHARE_OF_PEAK, reachable_flop_per_s
from planner.engines.megatron_lm.limits import orders_kernels_by_queue
from planner.engines.megatron_lm.pairing import FLAG as PAIRS
from planner.formats.logs import Measured
from planner.formats.settings import whole_or_none
from planner.law import Law, stop
from planner.plan import PlanRequest
from topology.base.units import TERA, format_bytes, format_seconds
from topology.cluster import Cluster
from topology.hardware.datasheets import reference_machine, sheet_named

MOST_TFLOPS = 800.0
"""TFLOP/s per GPU beyond which a rate is doubted where the GPU is not known: about 700 is reached in fp8."""


def findings_of(reading: Reading, job: Job, cluster: Cluster | None) -> tuple[Finding, ...]:
    """Everything that is wrong, the worst first."""
    findings: dict[tuple[str, str], Finding] = {}
    for finding in _known(reading, job, cluster):
        findings.setdefault((finding.kind, finding.rule), finding)
    stopped = {rule for kind, rule in findings if kind == "illegal"}
    stopped |= {rule for law in laws_of_words(reading) if law.name in stopped for rule in law.says_of}
    for finding in rule_findings(reading, job):
        if finding.rule not in stopped:
            findings[finding.kind, finding.rule] = finding
    for finding in _measured(reading, job, cluster):
        findings.setdefault((finding.kind, finding.rule), finding)
    order = ("illegal", "open", "unpriced", "contradiction", "measured", "slow")
    return tuple(sorted(findings.values(), key=lambda finding: order.index(finding.kind)))


def _of_words(reading: Reading, job: Job, cluster: Cluster | None) -> Iterator[Finding]:
    """What is wrong with words of files, whatever a complete job would break."""
    yield from refusal_findings(reading, job)
    for check in _JUDGES:
        yield from check(reading)
    yield from _across_nodes(reading, job)
    yield from _environment(reading, job, cluster)
    yield from _slow_variables(reading, job, cluster)
    yield from _fewer_nics(reading, job)
    yield from _full_precision(reading)
    yield from _sockets(reading)


def _known(reading: Reading, job: Job, cluster: Cluster | None) -> Iterator[Finding]:
    """The same, of which those that rest on a count taken for granted make no job illegal."""
    if not reading.presumed:
        yield from _of_words(reading, job, cluster)
        return
    settled = _of_words(without_presumed(reading), job, cluster)
    sure = {finding.rule for finding in settled if finding.kind == "illegal"}
    for finding in _of_words(reading, job, cluster):
        rests = finding.kind == "illegal" and finding.rule not in sure
        yield replace(finding, kind="unpriced", fix="") if rests else finding


def _degrees(reading: Reading) -> tuple[int, int, int] | None:
    """Tensor, pipeline and context parallelism; None where only a run knows one of them."""
    facts = reading.facts
    if facts.unknown & {f"layout.{name}" for name in _CUT} - facts.by_field.keys():
        return None
    tp, pp, cp = (facts.count(f"layout.{name}") or 1 for name in _CUT)
    return tp, pp, cp


def _gpus(reading: Reading) -> tuple[str, str] | None:
    degrees, world = _degrees(reading), reading.facts.count("cluster.num_gpus")
    if degrees is None or not world or not RANKS.rest(world, *degrees):
        return None
    names = [spelled_name(reading, name) for name, size in zip(_CUT, degrees, strict=True) if size > 1]
    fix = f"start a multiple of {math.prod(degrees)} GPUs, or lower {' or '.join(names)}"
    return RANKS.says(world, *degrees), fix


def _expert_ranks(reading: Reading) -> tuple[str, str] | None:
    degrees, world = _degrees(reading), reading.facts.count("cluster.num_gpus")
    ep = reading.facts.count("layout.ep") or 1
    if degrees is None or not world or RANKS.rest(world, *degrees):
        return None
    stage = world // degrees[1]
    if not EXPERT_RANKS.rest(stage, ep) or reading.family.name == "Megatron-DeepSpeed":
        return None
    largest = f"set {spelled_name(reading, 'ep')} {EXPERT_RANKS.largest(stage, ep)}"
    return (
        f"ep {ep} does not divide the {stage} ranks of a stage",
        f"{largest}, or start {ep * degrees[1]} GPUs",
    )


def _heads(reading: Reading) -> tuple[str, str] | None:
    degrees, heads = _degrees(reading), reading.facts.count("model.num_attention_heads")
    if degrees is None or not heads or not HEADS.rest(heads, degrees[0]):
        return None
    tp = degrees[0]
    return HEADS.says(heads, tp), f"set {spelled_name(reading, 'tp')} {HEADS.largest(heads, tp)}"


def _batch_of(reading: Reading) -> tuple[int, int, int] | None:
    """A global batch, replicas and a microbatch, where all are known."""
    facts = reading.facts
    batch, dp = facts.count("job.global_batch_size"), facts.count("layout.dp")
    if not batch or not dp or "layout.microbatch_size" in facts.unknown:
        return None
    return batch, dp, facts.count("layout.microbatch_size") or 1


def _batch(reading: Reading) -> tuple[str, str] | None:
    counts = _batch_of(reading)
    if counts is None or not BATCH.rest(*counts):
        return None
    return BATCH.says(
        *counts
    ), f"set {spelled_name(reading, 'job.global_batch_size')} {BATCH.nearest(*counts)}"


def _whole_sequences(reading: Reading) -> tuple[str, str] | None:
    facts = reading.facts
    known = "layout.tp" in facts.by_field or "layout.tp" not in facts.unknown
    if not facts.truth("layout.sequence_parallel") or (facts.count("layout.tp") or 1) != 1 or not known:
        return None
    fix = f"leave it out, or set {spelled_name(reading, 'tp')}"
    return "sequence parallelism is set at tp 1, where it has no effect", fix


def _idle_schedule(reading: Reading) -> tuple[str, str] | None:
    facts, name = reading.facts, "layout.schedule"
    if facts.value(name) in (None, PLAIN_SCHEDULE) or not facts.stated(name):
        return None
    if (facts.count("layout.pp") or 1) != 1:
        return None
    fix = f"leave it out, or set {spelled_name(reading, 'pp')}"
    return f"{facts.by_field[name].source} at pp 1, where no schedule has an effect", fix


STARTED = "started-gpus"
"""The law of two words that count the GPUs of one job."""


def _started(reading: Reading) -> tuple[str, str] | None:
    """GPUs that a launcher starts, and another number that the command is told or chooses its recipe by.

    A number of nodes or of a node's GPUs under another name (``WORLD_SIZE`` of pods) contradicts none.
    """
    facts = reading.facts
    nodes, each, total = (facts.count(f"said.{name}") for name in ("nodes", "gpus_per_node", "num_gpus"))
    colocated = facts.truth("said.generation_colocated") is not False
    if not (nodes and each and total and colocated) or total in (nodes * each, nodes, each):
        return None
    fact, started = facts.by_field["said.num_gpus"], f"{nodes} nodes of {each} GPUs are {nodes * each}"
    whole = "" if total % each else f"start {total // each} nodes, or "
    if fact.how == "default":
        return (
            f"{started}, and {reading.published_name} is for {total}",
            f"{whole}name a recipe of {nodes * each}",
        )
    recipe = f", by which {reading.published_name} is chosen" if reading.published_name else ""
    word = fact.word or "the number of GPUs"
    return (
        f"{started}, and {fact.source} (line {fact.line}) is another{recipe}",
        f"{whole}set {word} {nodes * each}",
    )


def _halves(reading: Reading) -> tuple[str, str] | None:
    if not (reading.facts.truth("said.bf16") and reading.facts.truth("said.fp16")):
        return None
    fix = f"keep {spelled_name(reading, 'said.bf16')}, or {spelled_name(reading, 'said.fp16')}"
    return "bf16 and fp16 are both on", fix


def _sharded_pipeline(reading: Reading) -> tuple[str, str] | None:
    """Gradients or weights that are shared beside DeepSpeed's pipeline, whose engine asserts that none are.

    deepspeed/runtime/pipe/engine.py: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism". A log
    with steps is of a job that was told otherwise.
    """
    facts = reading.facts
    pp, stage = facts.count("layout.pp") or 1, facts.count("said.zero_stage") or 0
    ran = reading.measured is not None and reading.measured.has_steps
    if reading.family.name != "Megatron-DeepSpeed" or pp == 1 or stage < SHARES_GRADIENTS or ran:
        return None
    if "said.deepspeed" not in facts.by_field or facts.truth("said.no_pipeline"):
        return None
    message = f"ZeRO-{stage} beside pp {pp}: DeepSpeed's pipeline engine shares neither gradients nor weights"
    return message, f"set {spelled_name(reading, 'said.zero_stage')} 1, or {spelled_name(reading, 'pp')} 1"


SHARES_GRADIENTS = 2
"""The stage of ZeRO from which gradients are shared."""


def _mesh(reading: Reading) -> tuple[str, str] | None:
    """Axes of MaxText's mesh, within slices and over them, that do not multiply to the devices that start.

    One axis of each kind may be -1, which takes what is left (fill_unspecified_mesh_axes of max_utils.py);
    where nobody says another, it is the first of each kind here.
    """
    world = reading.facts.count("cluster.num_gpus")
    if reading.family.name != "MaxText" or not world:
        return None
    axes: dict[str, int] = dict.fromkeys(_FILLED, -1)
    for setting in reversed(reading.settings):
        word = setting.path[-1].strip("-")
        if _AXIS_OF_MESH.fullmatch(word) and reading.kinds.get(setting.file) != "log":
            if (degree := whole_or_none(setting.value)) is None:
                return None
            axes[word] = degree
    if min(axes.values()) < 1 or math.prod(axes.values()) == world:
        return None
    mesh = " · ".join(f"{word} {degree}" for word, degree in axes.items() if degree > 1)
    product = math.prod(axes.values())
    return (
        f"{mesh} is a mesh of {product:,} devices, and {world:,} are started",
        f"set {_FILLED[0]} -1, which takes what is left, or start {product:,}",
    )


_FILLED = ("ici_fsdp_parallelism", "dcn_data_parallelism")
"""Axes that take what is left where nobody says more (configs/base.yml)."""
_AXIS_OF_MESH = re.compile(r"(?:ici|dcn)_\w+_parallelism")
_CUT = ("tp", "pp", "cp")
FILE_LAWS: tuple[Law[[Reading], [Reading]], ...] = (
    stop(name="gpus", reads=("cluster.num_gpus", "layout.tp", "layout.pp", "layout.cp"), stops=_gpus),
    stop(name="mesh", reads=("said.dp_shard", "said.dp_replicate"), stops=_mesh),
    stop(
        name="zero-with-pipeline",
        reads=("said.zero_stage", "layout.pp"),
        stops=_sharded_pipeline,
        says_of=("zero-stage-offered",),
    ),
    stop(name="expert-block", reads=("layout.ep",), stops=_expert_ranks),
    stop(name=STARTED, reads=("said.num_gpus", "said.nodes"), stops=_started, ground="overruled"),
    stop(name="heads", reads=("layout.tp",), stops=_heads, says_of=("attention-heads",)),
    stop(name="batch", reads=("job.global_batch_size", "layout.microbatch_size"), stops=_batch),
    stop(
        name="sequence-parallel",
        reads=("layout.sequence_parallel",),
        stops=_whole_sequences,
        ground="overruled",
    ),
    stop(name="schedule", reads=("layout.schedule",), stops=_idle_schedule, ground="overruled"),
    stop(name="precision", reads=("said.fp16",), stops=_halves),
    *STOPS_AT_START,
)
"""What every engine stops at or overrules, of facts alone; it stands at the first that is stated."""


def laws_of_words(reading: Reading) -> tuple[Law[..., ...], ...]:
    """The laws of words that judge a reading: those of its engine, and those of every file."""
    contract = contract_of(reading)
    return (*(contract.refusals if contract is not None else ()), *FILE_LAWS)


def _broken(reading: Reading) -> Iterator[Finding]:
    """Laws of every file that a reading breaks, at their place."""
    for law in FILE_LAWS:
        if law.broken(reading):
            violation, (file, line) = law.violation(reading), place_of(reading.facts, *law.reads)
            yield Finding(
                kind=KIND_OF[violation.ground],
                rule=violation.rule,
                message=violation.message,
                fix=violation.hint,
                file=file,
                line=line,
            )


def _bubble(reading: Reading) -> Iterator[Finding]:
    """Few microbatches in a long pipeline."""
    counts, pp = _batch_of(reading), reading.facts.count("layout.pp") or 1
    if counts is None or BATCH.rest(*counts):
        return
    batch, dp, size = counts
    if pp > 1 and batch // (dp * size) < pp:
        file, line = place_of(reading.facts, "layout.pp")
        whole = spelled_name(reading, "job.global_batch_size")
        part, stages = spelled_name(reading, "microbatch_size"), spelled_name(reading, "pp")
        yield Finding(
            kind="slow",
            rule="bubble",
            message=f"{batch // (dp * size)} microbatches fill a pipeline of {pp} stages badly",
            fix=f"raise {whole}, or lower {part} or {stages}",
            file=file,
            line=line,
        )


def _slow(reading: Reading) -> Iterator[Finding]:
    """Settings that are legal and cost time or memory."""
    facts = reading.facts
    tp, dp, cp = (facts.count(f"layout.{name}") or 1 for name in ("tp", "dp", "cp"))
    if reading.family.name not in ("Megatron-LM", "NeMo", "Megatron-Bridge"):
        return
    if (
        tp > 1
        and "layout.sequence_parallel" in facts.by_field
        and not facts.truth("layout.sequence_parallel")
    ):
        file, line = place_of(facts, "layout.sequence_parallel")
        yield Finding(
            kind="slow",
            rule="no-sequence-parallel",
            message=f"tp {tp} without sequence parallelism keeps whole activations on every rank",
            fix=spelled_fix(reading, "layout.sequence_parallel"),
            file=file,
            line=line,
        )
    if dp * cp > 1 and "layout.zero_stage" not in facts.by_field and reading.family.name == "Megatron-LM":
        file, line = place_of(facts, "layout.dp", "cluster.num_gpus", "layout.tp")
        yield Finding(
            kind="slow",
            rule="no-distributed-optimizer",
            message=f"optimizer states are kept {dp * cp} times",
            fix=spelled_fix(reading, "said.distributed_optimizer"),
            file=file,
            line=line,
        )
    elif (
        facts.value("layout.zero_stage") == 1
        and dp > 1
        and not facts.truth("said.overlap_gradients")
        and "shell" in reading.kinds.values()
    ):
        file, line = place_of(facts, "layout.zero_stage")
        yield Finding(
            kind="slow",
            rule="no-overlap",
            message="gradients are reduced after the backward pass, not under it",
            fix=spelled_fix(reading, "said.overlap_gradients", "said.overlap_parameters"),
            file=file,
            line=line,
        )


def _across_nodes(reading: Reading, job: Job) -> Iterator[Finding]:
    """Tensor parallelism over more GPUs than a scale-up domain has: NVLink may join the trays of a rack."""
    facts = reading.facts
    tp, each = facts.count("layout.tp") or 1, facts.count("said.gpus_per_node")
    joined = _joined_nodes(reading, job)
    if each and tp > each * joined:
        file, line = place_of(facts, "layout.tp")
        trays = "" if joined == 1 else f", {joined} of them joined"
        yield Finding(
            kind="slow",
            rule="tp-across-nodes",
            message=f"tp {tp} spans nodes of {each} GPUs{trays}, so every layer waits for the network",
            fix=f"set {spelled_name(reading, 'tp')} {each * joined} or less",
            file=file,
            line=line,
        )


def _joined_nodes(reading: Reading, job: Job) -> int:
    """Nodes of a scale-up domain: of the cluster that is asked about, else of the GPUs that files mention."""
    if job.request is not None:
        return job.request.cluster.nodes[0].nodes_per_domain
    machines = (reference_machine(sheet_named(name)) for name in reading.gpus)
    return max((machine.nodes_per_domain for machine in machines), default=1)


def _environment(reading: Reading, job: Job, cluster: Cluster | None) -> Iterator[Finding]:
    """A variable that engines of Megatron ask for, or stop at; open where what no file says may settle it."""
    facts = reading.facts
    if not reading.family.one_queue or "shell" not in reading.kinds.values():
        return
    split = any(
        facts.truth(name) if name == "layout.sequence_parallel" else (facts.count(name) or 1) > 1
        for name in reading.family.one_queue
    )
    queue_setting = reading.variables.get(QUEUES)
    queues = str(queue_setting.value).strip() if queue_setting else ""
    file, line = (
        (queue_setting.file, queue_setting.line)
        if queue_setting
        else place_of(facts, "layout.tp", "layout.cp")
    )
    sharded = next((name for name in _SHARDED if facts.truth(name)), None)
    settled = True
    if sharded is not None:
        wrong, fix = queues == "1", f"unset {QUEUES}"
        message = f"{QUEUES} is 1: {_SHARDED[sharded]} stops"
    else:
        wrong = split and (not reading.sets_queues or (queues.isdecimal() and queues != "1"))
        wrong = wrong and not _pairs(reading) and (cluster is None or orders_kernels_by_queue(cluster.gpu))
        fix = f"export {QUEUES}=1"
        settled = bool(queues) and cluster is not None and "cluster.gpu" not in job.open_fields
        stated = f"is {queues}" if queues else "is set in none of these files"
        asked = " or ".join(name.partition(".")[2] for name in reading.family.one_queue)
        message = f"{QUEUES} {stated}: below Blackwell {reading.family.name} stops with {asked}"
    if wrong:
        kind: FindingKind = "illegal" if settled else "open"
        yield Finding(kind=kind, rule="cuda-connections", message=message, fix=fix, file=file, line=line)


def _slow_variables(reading: Reading, job: Job, cluster: Cluster | None) -> Iterator[Finding]:
    """Variables that slow the job of a reading down, where it has what they slow down.

    GPUs that reach each other through their host alone lose nothing where that is asked for; of an assumed
    GPU it is not known.
    """
    facts = reading.facts
    gpus, each, nodes = (
        facts.count(name) for name in ("cluster.num_gpus", "said.gpus_per_node", "said.nodes")
    )
    shared = gpus is None or gpus > 1
    several = nodes > 1 if nodes else not (gpus and (gpus <= (each or 1) or gpus == 1))
    is_known = cluster is not None and "cluster.gpu" not in job.open_fields
    peers = not (is_known and cluster is not None and not cluster.gpu.peer_to_peer)
    variables, anywhere = reading.variables, reading.slow_variables
    for slow in slow_settings(variables, anywhere, shared=shared, several=several, peers=peers):
        yield Finding(
            kind="slow",
            rule=slow.variable.rule,
            message=slow.message,
            fix=slow.variable.fix + ("" if is_known or slow.variable.needs != "peers" else NO_PEERS),
            file=slow.setting.file,
            line=slow.setting.line,
        )


def _sockets(reading: Reading) -> Iterator[Finding]:
    """Nodes that NCCL joins by TCP sockets, as the log of a job of several says; one node uses no network."""
    log, facts = reading.measured, reading.facts
    gpus, nodes = facts.count("cluster.num_gpus"), facts.count("said.nodes")
    each = facts.count("said.gpus_per_node") or MOST_OF_HOST
    if log is None or not log.sockets or (nodes or (gpus or 0) / each) <= 1:
        return
    yield Finding(
        kind="slow",
        rule=OVER_TCP,
        message="NCCL over TCP: nodes are joined by sockets, not InfiniBand or RoCE "
        f"(line {log.sockets} of the log)",
        fix="let it use the fabric (mount /dev/infiniband, load the plugin of the NICs)",
    )


def _fewer_nics(reading: Reading, job: Job) -> Iterator[Finding]:
    """NICs of a node that NCCL is told to leave idle, of a cluster whose nodes are known."""
    named = reading.variables.get(NICS)
    if named is None or job.request is None or "cluster.gpu" in job.open_fields:
        return
    cluster, taken = job.request.cluster, nics_named(str(named.value))
    each = cluster.nodes[0].nics_per_node
    if cluster.num_nodes > 1 and 0 < taken < each:
        yield Finding(
            kind="slow",
            rule=FEWER_NICS,
            message=f"{NICS} is {named.value}: {taken} of the {each} NICs that a node is taken to have",
            fix=f"name all of them, or price {taken} by --set cluster.nics_per_node={taken}",
            file=named.file,
            line=named.line,
        )


def _full_precision(reading: Reading) -> Iterator[Finding]:
    """A job in fp32, which takes the GPU's units of sixteen bits away, and twice the activations."""
    why = in_full_precision(reading)
    if why:
        yield Finding(
            kind="slow",
            rule=FULL_PRECISION,
            message=f"fp32: {why}; its products are many times slower than in bf16, which alone is priced",
            fix=spelled_fix(reading, "said.bf16"),
        )


MOST_OF_HOST = 8
"""GPUs of a host where nobody says how many: more of a job are on several."""


NO_PEERS = " (not on GeForce cards, which have no peer access)"
"""What is not known of an assumed GPU."""


_SHARDED = {"said.megatron_fsdp": "Megatron-FSDP", "said.torch_fsdp2": "torch FSDP2"}
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def _pairs(reading: Reading) -> bool:
    """Whether two microbatches compute and exchange at once, which wants more queues than one."""
    return any(setting.name.strip("-").replace("_", "-") == PAIRS.strip("-") for setting in reading.settings)


_JUDGES: tuple[Callable[[Reading], Iterator[Finding]], ...] = (_broken, _bubble, _slow)


def _measured(reading: Reading, job: Job, cluster: Cluster | None) -> Iterator[Finding]:
    """Rates and memory that no GPU of the job reaches."""
    measured = reading.measured
    if measured is None:
        return
    rate, limit = measured.tflops_per_gpu, MOST_TFLOPS
    if cluster is not None and job.request is not None:
        limit = reachable_flop_per_s(cluster.gpu, job.request.job) / TERA
    if rate is not None and rate > limit:
        message = (
            f"the log prints {rate:.0f} TFLOP/s per GPU, more than a training step reaches ({limit:.0f})"
        )
        yield Finding(
            kind="measured",
            rule=IMPOSSIBLE_RATE,
            message=message,
            fix="see how the log counts its operations; the step time is what compares",
        )
    if cluster is None or job.request is None:
        return
    yield from _beyond_peak(measured, job.request, cluster)
    yield from _other_work(measured, job.request)
    peak, capacity = measured.peak_memory_bytes, cluster.gpu.memory_bytes
    if peak is not None and peak > capacity:
        yield Finding(
            kind="measured",
            rule="printed-peak",
            message=f"the log prints a peak of {format_bytes(peak)}, and a {cluster.gpu.name} has "
            f"{format_bytes(capacity)}",
            fix="name the GPU that it ran on by --gpu",
        )


IMPOSSIBLE_RATE, IMPOSSIBLE_PACE, OTHER_WORK = "rate", "pace", "other-work"
MOST_COUNTED = 2.0
"""Ratio of two counts of one step's operations: with recomputation, and attention whole or half."""


def _other_work(measured: Measured, request: PlanRequest) -> Iterator[Finding]:
    """A printed step whose printed rate means another number of operations than a step of this job has."""
    work = work_of_step(request)
    if not (measured.tflops_per_gpu and measured.step_time_s and work.flop and work.gpus):
        return
    printed = measured.tflops_per_gpu * TERA * measured.step_time_s * work.gpus
    if 1 / MOST_COUNTED <= printed / work.flop <= MOST_COUNTED:
        return
    yield Finding(
        kind="measured",
        rule=OTHER_WORK,
        message=f"the log's {measured.tflops_per_gpu:.1f} TFLOP/s per GPU over "
        f"{format_seconds(measured.step_time_s)} are {printed / TERA:,.4g} TFLOP on {work.gpus:,} GPUs; a "
        f"step of this job is {work.flop / TERA:,.4g}",
        fix="see what is not the log's: the model, the length, the batch, the number of GPUs",
    )


def _beyond_peak(measured: Measured, request: PlanRequest, cluster: Cluster) -> Iterator[Finding]:
    """A step, or a rate in tokens, that means more operations than a GPU does."""
    work, gpu = work_of_step(request), cluster.gpu
    if not (work.flop and work.tokens and work.gpus):
        return
    length, limit = request.job.sequence_length, reachable_flop_per_s(gpu, request.job)
    each = work.flop / work.tokens
    pace = measured.pace(work)
    of_step = None if pace is None or "FLOP" in pace.from_rate else work.flop / (pace.step_s * work.gpus)
    tokens = measured.tokens_per_s_per_gpu
    if tokens is None and measured.tokens_per_s:
        tokens = measured.tokens_per_s / work.gpus
    of_tokens = None if tokens is None else tokens * each
    highest = max(of_step or 0.0, of_tokens or 0.0)
    if highest <= limit:
        return
    if of_tokens is not None and tokens is not None and of_tokens > limit:
        says = f"{tokens:,.0f} tokens/s per GPU are"
    else:
        says = f"a step of {format_seconds(pace.step_s)} is" if pace else "it is"
    shorter = next(
        (
            part
            for part in (length // 2, length // 4, length // 8)
            if part and highest * part / length <= limit
        ),
        None,
    )
    peak = limit / HIGHEST_SHARE_OF_PEAK
    others = "the model, the batch, the GPU or their number"
    if shorter is None:
        fix = f"see what is not this job: the length, {others}"
    else:
        part = shorter / length
        rate = "" if of_tokens is None or tokens is None else f"{tokens * part:,.0f} tokens/s, "
        reached = f"{highest * part / TERA:.0f} TFLOP/s, {highest * part / peak:.0%} of the peak".replace(
            "%", " %"
        )
        fix = f"the length may be {shorter:,}: {rate}{reached}; else see {others}"
    yield Finding(
        kind="measured",
        rule=IMPOSSIBLE_PACE,
        message=f"{says} {highest / TERA:.0f} TFLOP/s of this model at {length:,} tokens: {gpu.name} peaks "
        f"at {peak / TERA:.0f}, and a training step reaches {limit / TERA:.0f}",
        fix=fix,
    )
