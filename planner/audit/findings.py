"""What is wrong with a job as its files have it: illegal, contradictory, without effect, needlessly slow.

What needs only the stated facts is told without a model or a cluster; a complete job is judged by the rules
of the planner too (`planner.rules.check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from planner.audit.facts import Facts
from planner.audit.job import Job
from planner.audit.read import Reading
from planner.audit.spelling import spelled_fix
from planner.audit.told import contract_of, setting_told
from planner.engines.megatron_lm.pairing import FLAG as PAIRS
from planner.rules.check import check
from topology.cluster import Cluster

FindingKind = Literal["illegal", "contradiction", "slow", "measured", "unpriced"]
"""``unpriced``: legal for all we know, but the profile that prices the job has no such thing."""

HIGHEST_SHARE_OF_PEAK = 0.8
"""Of a GPU's dense peak that a training step reaches at most: the best published ones stay below 0.75."""
MOST_TFLOPS = 800.0
"""TFLOP/s per GPU beyond which a rate is doubted where the GPU is not known: about 700 is reached in fp8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know.

    Attributes:
        kind: What it is.
        rule: A word for it, the same in every audit.
        message: What the file says, in numbers.
        fix: What changes it.
        file: Where.
        line: Where; 0 if no line says it.
    """

    kind: FindingKind
    rule: str
    message: str
    fix: str = ""
    file: str = ""
    line: int = 0


def findings_of(reading: Reading, job: Job, cluster: Cluster | None) -> tuple[Finding, ...]:
    """Everything that is wrong, the worst first."""
    found: dict[tuple[str, str], Finding] = {}
    for judge in _JUDGES:
        for finding in judge(reading):
            found.setdefault((finding.kind, finding.rule), finding)
    for finding in _broken_rules(reading, job):
        if not any(rule == finding.rule and kind == "illegal" for kind, rule in found):
            found[finding.kind, finding.rule] = finding
    for finding in _measured(reading, job, cluster):
        found.setdefault((finding.kind, finding.rule), finding)
    order = ("illegal", "unpriced", "contradiction", "measured", "slow")
    return tuple(sorted(found.values(), key=lambda finding: order.index(finding.kind)))


def _at(facts: Facts, name: str) -> tuple[str, int]:
    fact = facts.found.get(name)
    return (fact.file, fact.line) if fact else ("", 0)


def _counts(reading: Reading) -> Iterator[Finding]:
    """Degrees against GPUs, layers and heads."""
    facts = reading.facts
    tp, pp, cp, ep = (facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp", "ep"))
    world, layers, heads = (
        facts.count("cluster.num_gpus"),
        facts.count("model.num_layers"),
        facts.count("model.num_attention_heads"),
    )
    file, line = _at(facts, "cluster.num_gpus")
    if world and world % (tp * pp * cp):
        message = f"tp {tp} · pp {pp} · cp {cp} = {tp * pp * cp} ranks, and {world} GPUs"
        fix = f"start a multiple of {tp * pp * cp} GPUs, or split less"
        yield Finding(kind="illegal", rule="gpus", message=message, fix=fix, file=file, line=line)
    elif world and (world // pp) % ep and reading.family.name != "Megatron-DeepSpeed":
        message = f"ep {ep} does not divide the {world // pp} ranks of a stage"
        file, line = _at(facts, "layout.ep")
        yield Finding(
            kind="illegal",
            rule="experts",
            message=message,
            fix=f"start at least {ep * pp} GPUs, or ep {world // pp}",
            file=file,
            line=line,
        )
    if heads and heads % tp:
        file, line = _at(facts, "layout.tp")
        yield Finding(
            kind="illegal",
            rule="heads",
            message=f"{heads} heads do not divide by tp {tp}",
            fix="set a tp that divides them",
            file=file,
            line=line,
        )
    chunks = facts.count("layout.virtual_stages") or 1
    uneven = any(
        name in facts.found
        for name in ("said.stage_layout", "said.first_stage_layers", "said.last_stage_layers")
    )
    megatron = reading.family.name == "Megatron-LM"
    if layers and megatron and not uneven and layers % (pp * chunks):
        file, line = _at(facts, "layout.pp")
        message = f"{layers} layers do not divide by {pp * chunks} stages"
        yield Finding(
            kind="illegal",
            rule="layers",
            message=message,
            fix="set a pp that divides the layers, or a stage layout",
            file=file,
            line=line,
        )


def _batches(reading: Reading) -> Iterator[Finding]:
    """The global batch against replicas and microbatches."""
    facts = reading.facts
    batch, dp, size = (
        facts.count("job.global_batch_size"),
        facts.count("layout.dp"),
        facts.count("layout.microbatch_size") or 1,
    )
    if batch and dp and batch % (dp * size):
        file, line = _at(facts, "job.global_batch_size")
        message = f"a global batch of {batch} is no multiple of dp {dp} · {size} samples"
        yield Finding(
            kind="illegal",
            rule="batch",
            message=message,
            fix=f"set a multiple of {dp * size}",
            file=file,
            line=line,
        )
    pp = facts.count("layout.pp") or 1
    if batch and dp and pp > 1 and batch % (dp * size) == 0 and batch // (dp * size) < pp:
        file, line = _at(facts, "layout.pp")
        message = f"{batch // (dp * size)} microbatches fill a pipeline of {pp} stages badly"
        yield Finding(
            kind="slow",
            rule="bubble",
            message=message,
            fix="a larger global batch, a smaller microbatch or fewer stages",
            file=file,
            line=line,
        )


def _without_effect(reading: Reading) -> Iterator[Finding]:
    """Words that say nothing."""
    facts = reading.facts
    tp, pp = facts.count("layout.tp") or 1, facts.count("layout.pp") or 1
    if facts.truth("layout.sequence_parallel") and tp == 1:
        file, line = _at(facts, "layout.sequence_parallel")
        yield Finding(
            kind="contradiction",
            rule="sequence-parallel",
            message="sequence parallelism is set at tp 1, where it has no effect",
            fix="leave it out, or set tp",
            file=file,
            line=line,
        )
    if facts.value("layout.schedule") not in (None, "1f1b") and pp == 1 and facts.stated("layout.schedule"):
        file, line = _at(facts, "layout.schedule")
        yield Finding(
            kind="contradiction",
            rule="schedule",
            message=f"{facts.found['layout.schedule'].said} at pp 1, where no schedule has an effect",
            fix="leave it out, or set pp",
            file=file,
            line=line,
        )
    if facts.truth("said.bf16") and facts.truth("said.fp16"):
        file, line = _at(facts, "said.fp16")
        yield Finding(
            kind="illegal",
            rule="precision",
            message="bf16 and fp16 are both on",
            fix="keep one of them",
            file=file,
            line=line,
        )


def _slow(reading: Reading) -> Iterator[Finding]:
    """Settings that are legal and cost time or memory."""
    facts = reading.facts
    tp, dp, cp = (facts.count(f"layout.{name}") or 1 for name in ("tp", "dp", "cp"))
    each = facts.count("said.gpus_per_node")
    if each and tp > each:
        file, line = _at(facts, "layout.tp")
        yield Finding(
            kind="slow",
            rule="tp-across-nodes",
            message=f"tp {tp} spans nodes of {each} GPUs, so every layer waits for the network",
            fix=f"tp of at most {each}",
            file=file,
            line=line,
        )
    if reading.family.name not in ("Megatron-LM", "NeMo", "Megatron-Bridge"):
        return
    if tp > 1 and "layout.sequence_parallel" in facts.found and not facts.truth("layout.sequence_parallel"):
        file, line = _at(facts, "layout.sequence_parallel")
        yield Finding(
            kind="slow",
            rule="no-sequence-parallel",
            message=f"tp {tp} without sequence parallelism keeps whole activations on every rank",
            fix=spelled_fix(reading, "layout.sequence_parallel"),
            file=file,
            line=line,
        )
    if dp * cp > 1 and "layout.zero_stage" not in facts.found and reading.family.name == "Megatron-LM":
        file, line = _at(facts, "layout.dp")
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
        file, line = _at(facts, "layout.zero_stage")
        yield Finding(
            kind="slow",
            rule="no-overlap",
            message="gradients are reduced after the backward pass, not under it",
            fix=spelled_fix(reading, "said.overlap_gradients", "said.overlap_parameters"),
            file=file,
            line=line,
        )


def _environment(reading: Reading) -> Iterator[Finding]:
    """A variable that Megatron-LM asks for, or stops at."""
    facts = reading.facts
    if reading.family.name != "Megatron-LM" or "shell" not in reading.kinds.values():
        return
    split = (facts.count("layout.tp") or 1) > 1 or (facts.count("layout.cp") or 1) > 1
    queues = reading.variables.get(_QUEUES, "").strip()
    if facts.truth("said.megatron_fsdp"):
        wrong, fix = queues == "1", f"unset {_QUEUES}"
        message = f"{_QUEUES} is 1: Megatron-FSDP stops"
    else:
        wrong = split and (not reading.sets_queues or (queues.isdecimal() and queues != "1"))
        wrong, fix = wrong and not _pairs(reading), f"export {_QUEUES}=1"
        stated = f"is {queues}" if queues else "is not set"
        message = f"{_QUEUES} {stated}: below Blackwell Megatron-LM stops with tp or cp above 1"
    if wrong:
        file, line = _at(facts, "layout.tp")
        yield Finding(kind="illegal", rule="cuda-connections", message=message, fix=fix, file=file, line=line)


_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


def _pairs(reading: Reading) -> bool:
    """Whether two microbatches compute and exchange at once, which wants more queues than one."""
    return any(setting.name.strip("-").replace("_", "-") == PAIRS.strip("-") for setting in reading.settings)


_JUDGES: tuple[Callable[[Reading], Iterator[Finding]], ...] = (
    _counts,
    _batches,
    _without_effect,
    _slow,
    _environment,
)


def _broken_rules(reading: Reading, job: Job) -> Iterator[Finding]:
    """Rules of the planner and of the engine that a complete job breaks, with the switches of its files."""
    if job.request is None or job.layout is None:
        return
    setting = setting_told(reading, job.request)
    for violation in check(
        setting.model, setting.cluster, setting.job, setting.stack, job.layout, engine=setting.engine
    ):
        lent = setting.stack.name == "pytorch" or contract_of(reading) is None
        theirs = violation.rule.endswith("-offered") or violation.rule.startswith(f"{setting.engine}-")
        kind: FindingKind = "unpriced" if lent and theirs else "illegal"
        fix = "" if kind == "unpriced" else violation.hint
        yield Finding(kind=kind, rule=violation.rule, message=violation.message, fix=fix)


def _measured(reading: Reading, job: Job, cluster: Cluster | None) -> Iterator[Finding]:
    """Rates that no GPU reaches."""
    rate = reading.measured.tflops_per_gpu if reading.measured else None
    if rate is None:
        return
    limit = MOST_TFLOPS
    if cluster is not None and job.request is not None:
        low = job.request.job.is_low_precision
        peak = (
            cluster.gpu.peak("fp8")
            if low and "fp8" in cluster.gpu.peak_flop_per_s
            else cluster.gpu.peak("bf16")
        )
        limit = HIGHEST_SHARE_OF_PEAK * peak / 1e12
    if rate > limit:
        message = (
            f"the log prints {rate:.0f} TFLOP/s per GPU, more than a training step reaches ({limit:.0f})"
        )
        yield Finding(
            kind="measured",
            rule="rate",
            message=message,
            fix="see how the log counts its operations; the step time is what compares",
        )
