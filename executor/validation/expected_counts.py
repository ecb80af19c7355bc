"""What the cost model says a rank computes and sends in a step, in words of `executor.validation.counts`.

Legend: ``M`` microbatches, ``P`` parameters of a unit on a rank, ``N`` ranks sharing its state, ``R``
replicas of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.spec import ModelSpec, layer_runs
from costmodel.ops.adapters import adapted
from costmodel.ops.compressed import spared_parameters
from costmodel.ops.layer import embedding_ops, head_ops, layer_ops
from costmodel.ops.op import HALF_BYTES, TABLED, Op, OpKind
from costmodel.ops.shards import shard_of
from costmodel.ops.updates import matrices_of
from costmodel.stack import SoftwareStack, stack
from costmodel.updates.compression import Compression, parse_compression
from executor.comm.mesh import axis_of_messages, axis_of_replicas
from executor.parallel.narrow import padded_blocks
from executor.validation.counts import BACKWARD_ATTENTION_GEMMS, FROZEN, CountKey, StepCounts, count_step
from executor.validation.fake_rank import RankTask
from executor.validation.spared import gathered_once, spared

STACK = "meshplan"
FACTOR_PRODUCTS = 3  # of a matrix with factors: two that make them, one that joins them
BACKWARD_LINEAR_GEMMS = 2  # of a linear layer: gradients of its input and of its weight


def ops_by_part(task: RankTask) -> dict[str, tuple[tuple[Op, ...], int]]:
    """Operations of each part of a stage, and how many of the part the stage has."""
    profile = stack(STACK)
    job = TrainingJob(sequence_length=task.sequence_length, global_batch_size=1, adapter=task.adapter)
    shard, spec = shard_of(task.layout, task.sequence_length), task.spec
    work = Workload(model=spec, job=job, stack=profile)
    parts: dict[str, tuple[tuple[Op, ...], int]] = {}
    for run, count in zip(
        layer_runs(spec), layers_of_runs(spec, task.layers_of_stage, task.stage), strict=True
    ):
        name = f"{run.kind.mlp} layer" if spec.is_moe else "layer"
        if count:
            parts[name] = (layer_ops(work, run.kind, shard), count)
    if task.stage == 0:
        parts["embedding"] = (adapted(embedding_ops(work, shard), None, job, profile), 1)
    if task.stage == len(task.layers_of_stage) - 1:
        parts["head"] = (adapted(head_ops(spec, profile, shard), None, job, profile), 1)
    return parts


def layers_of_runs(spec: ModelSpec, layers_of_stage: Sequence[int], stage: int) -> tuple[int, ...]:
    """Layers of each run on one stage when stages take them in model order.

    >>> from costmodel.models.catalog import model
    >>> layers_of_runs(model("deepseek-v3"), (10, 51), 0)
    (3, 7)
    """
    start = sum(layers_of_stage[:stage])
    end, position, layers = start + layers_of_stage[stage], 0, []
    for run in layer_runs(spec):
        layers.append(max(0, min(end, position + run.count) - max(start, position)))
        position += run.count
    return tuple(layers)


def expected_counts(task: RankTask, padding: Mapping[str, int]) -> StepCounts:
    """FLOPs and messages of one step of a stage; `padding` is that of FSDP's shards, by axis."""
    step_counts = StepCounts(flop=Counter(), messages=Counter(), message_bytes=Counter())
    M = task.num_microbatches
    parts = ops_by_part(task)
    for part, (ops, count) in parts.items():
        for op in ops:
            _add(step_counts, part, op, M * count, task)
    if task.adapter is not None and task.stage == 0:
        first = f"{layer_runs(task.spec)[0].kind.mlp} layer" if task.spec.is_moe else "layer"
        for op in spared(parts[first][0], task.spec.hidden_size):
            _add(step_counts, first, op, -M, task, phases=("backward",))
    _add_replicas(step_counts, task, stack(STACK), padding)
    return step_counts


def _add(
    step_counts: StepCounts,
    part: str,
    op: Op,
    times: int,
    task: RankTask,
    phases: Sequence[str] = ("forward", "backward"),
) -> None:
    """Add one operation, forward and backward; the gradient of a frozen weight is not computed.

    A ring does an all-gather or a reduce-scatter over cp as c − 1 messages of each tensor to the next rank.
    """
    if op.kind is OpKind.COLLECTIVE:
        if op.collective_bytes and op.axis is not None and op.collective is not None and op.phase in phases:
            c = task.layout.cp
            ring = op.axis == "cp" and task.layout.cp_kind == "ring"
            axis = axis_of_messages(task.layout, op.axis)
            key = CountKey(part=part, phase=op.phase, kind="p2p" if ring else op.collective, axis=axis)
            step_counts.messages[key] += times * int(op.count) * (c - 1 if ring else 1)
            step_counts.message_bytes[key] += round(
                float(op.collective_bytes * times * ((c - 1) / c if ring else 1))
            )
    elif op.flop:
        kind = "attention" if op.kind is OpKind.ATTENTION else "gemm"
        linear_gemms = BACKWARD_LINEAR_GEMMS - op.frozen
        backward_gemms = BACKWARD_ATTENTION_GEMMS if op.kind is OpKind.ATTENTION else linear_gemms
        flop = Fraction(float(op.flop)) * times
        for phase, gemms in (("forward", 1), ("backward", backward_gemms)):
            if phase in phases:
                step_counts.flop[CountKey(part=part, phase=phase, kind=kind)] += round(flop * Fraction(gemms))


def expected_parameters(task: RankTask, *, frozen: bool = False) -> tuple[Counter[str], Counter[str]]:
    """Trained or frozen parameters of a rank outside routed experts and in them, by part.

    A tied head is on its own stage too.
    """
    dense: Counter[str] = Counter()
    expert: Counter[str] = Counter()
    parts = ops_by_part(task)
    for part, (ops, count) in parts.items():
        for op in ops:
            into = expert if op.kind is OpKind.GROUPED_GEMM else dense
            held = op.frozen_bytes / HALF_BYTES if frozen else op.parameters
            into[part] += round(float(held * count))
    if task.spec.tie_word_embeddings and "head" in parts and task.stage > 0:
        copied = task.spec.vocab_size * task.spec.hidden_size // task.layout.tp
        dense["head"] += copied * (frozen == (task.adapter is not None))
    return +dense, +expert


def _add_replicas(
    step_counts: StepCounts, task: RankTask, profile: SoftwareStack, padding: Mapping[str, int]
) -> None:
    """Add gradient reductions and weight gathers: units are layers, their experts, embedding and head."""
    dense, expert = expected_parameters(task)
    still, still_experts = expected_parameters(task, frozen=True)
    layout = task.layout
    shards = layout.effective_shard_degree if layout.zero_stage else 1
    expert_shards = layout.expert_shard_degree if layout.zero_stage else 1
    units = {part: count for part, (_, count) in ops_by_part(task).items()}
    if task.spec.routing.bias_selects:  # whole on every rank and never trained: FSDP leaves it alone
        routers = dense if task.adapter is None else still
        routers["moe layer"] -= task.spec.num_experts * units.get("moe layer", 0)
    if task.spec.tie_word_embeddings and {"embedding", "head"} <= set(units):
        del units["embedding"]  # one unit with the head
    groups = (
        ("", dense, still, set(units), shards, layout.replicas // shards),
        ("expert_", expert, still_experts, {*expert, *still_experts}, expert_shards,
         layout.expert_dp // expert_shards),
    )  # fmt: skip
    for prefix, trained, frozen, of_group, N, R in groups:
        whole = sum(trained.values()) + padding.get(f"{prefix}shard", 0)
        held = sum(frozen.values()) + padding.get(f"{FROZEN}{prefix}shard", 0)
        shard, replicate = (axis_of_replicas(layout, f"{prefix}{axis}") for axis in ("shard", "replicate"))
        count = sum(units[part] for part in of_group)
        summed = sum(units[part] for part in of_group if trained[part])
        if not count:
            continue
        reductions = task.num_microbatches if layout.zero_stage >= 2 else 1
        gathers = 2 * task.num_microbatches if layout.zero_stage >= 3 else 1
        reduced = whole * profile.memory.gradient_reduce_bytes
        gathered = whole * profile.memory.parameter_gather_bytes + held * HALF_BYTES
        if N > 1:
            once = 0 if prefix else gathered_once(task, N)
            less, M = HALF_BYTES * once, task.num_microbatches
            messages = gathers * count - M * (once > 0)
            _step(step_counts, "all_gather", shard, messages, gathers * gathered - M * less)
        if N > 1 and summed:
            _step(step_counts, "reduce_scatter", shard, reductions * summed, reductions * reduced)
        if R > 1 and task.compression is not None:
            _add_compressed(step_counts, task, units, parse_compression(task.compression), R)
        elif R > 1 and summed:
            _step(step_counts, "all_reduce", replicate, reductions * summed, reductions * reduced / N)


def _add_compressed(
    step_counts: StepCounts, task: RankTask, units: Mapping[str, int], how: Compression, R: int
) -> None:
    """Add sums of whole replicas' compressed gradients, by unit; factors are multiplied in the step.

    Bytes are the cost model's: those of a value times the parameters that are not spared. In eight bits a
    unit is filled up to whole blocks for every rank, and goes once to the ranks that add it and once back.
    """
    whole = stack(STACK).memory.gradient_reduce_bytes
    dense, _ = expected_parameters(task)
    if "embedding" not in units and "head" in units:  # one unit with the head
        dense["head"] += dense.pop("embedding", 0)
    ops = {part: of_part for part, (of_part, _) in ops_by_part(task).items()}
    for part, count in units.items():
        parameters = dense[part] // count
        size = how.value_bytes(whole) * parameters
        if how.kind == "int8":
            filled = how.value_bytes(whole) * padded_blocks(parameters, R)
            _step(step_counts, "all_to_all", "replicate", count, count * filled)
            _step(step_counts, "all_gather", "replicate", count, count * filled)
            continue
        spared = float(spared_parameters(ops[part], how, experts=False))
        messages = 3 if spared else 1  # what goes whole, and two factors
        _step(step_counts, "all_reduce", "replicate", count * messages, count * (size - whole * spared))
        if spared:
            key = CountKey(part="step", phase="step", kind="gemm")
            step_counts.flop[key] += count * FACTOR_PRODUCTS * 2 * round(_factored_products(ops[part], how))


def _factored_products(ops: Sequence[Op], how: Compression) -> float:
    """Multiplications of matrices by their factors of rank r: Σ r·m·n."""
    total = 0.0
    for op in ops:
        if (
            op.kind in TABLED
            and np.any(op.parameters)
            and float(spared_parameters((op,), how, experts=False))
        ):
            each, m, n = (float(value) for value in matrices_of(op))
            total += each * min(how.rank, m) * m * n
    return total


def _step(step_counts: StepCounts, kind: str, axis: str, messages: int, size_bytes: float) -> None:
    """Add messages of the step."""
    key = CountKey(part="step", phase="step", kind=kind, axis=axis)
    step_counts.messages[key] += messages
    step_counts.message_bytes[key] += round(size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One number that both sides know: the cost model's and the executor's."""

    name: str
    unit: str
    expected: int
    measured: int

    @property
    def equal(self) -> bool:
        """Whether they agree exactly."""
        return self.expected == self.measured


def compare_counts(task: RankTask) -> tuple[Term, ...]:
    """Count one step of a stage and set every number beside the cost model's."""
    measured, parameters = count_step(task)
    expected = expected_counts(task, parameters.padding)
    (dense, expert), still = expected_parameters(task), expected_parameters(task, frozen=True)
    terms = _parameter_terms("parameters", dense + still[0], parameters.dense)
    terms += _parameter_terms("expert parameters", expert + still[1], parameters.expert)
    terms += _parameter_terms("frozen parameters", still[0] + still[1], parameters.frozen)
    for title, unit in (("flop", "flop"), ("messages", ""), ("message_bytes", "B")):
        terms += terms_of(title, unit, getattr(expected, title), getattr(measured, title))
    return tuple(terms)


def _parameter_terms(title: str, expected: Counter[str], measured: Counter[str]) -> list[Term]:
    """Parameters by part."""
    return [
        Term(name=f"{part} {title}", unit="", expected=expected[part], measured=measured[part])
        for part in sorted({*+expected, *+measured})
    ]


def terms_of(title: str, unit: str, expected: Counter[CountKey], measured: Counter[CountKey]) -> list[Term]:
    """Counts by part, phase, kind and axis; messages outside the axes (norms, stages) are not compared."""
    keys = sorted(key for key in {*+expected, *+measured} if title == "flop" or key.axis)
    return [
        Term(
            name=" ".join(filter(None, (k.part, k.phase, k.axis, k.kind, title.replace("_", " ")))),
            unit=unit,
            expected=expected[k],
            measured=measured[k],
        )
        for k in keys
    ]
