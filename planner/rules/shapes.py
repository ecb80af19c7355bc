"""Rules of arithmetic: what the sizes of the model, the batch and the cluster allow.

Legend: ``N`` GPUs of the cluster, ``V`` vocabulary, ``S`` sequence length, ``B`` global batch in sequences.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costmodel.layout import DEGREES, SCHEDULES, LayoutTable, ParallelLayout
from costmodel.models.attention import ATTENTION_KINDS
from costmodel.models.recurrence import Recurrence
from costmodel.models.spec import ModelSpec
from costmodel.parallel.divisions import BATCH, EXPERT_RANKS, EXPERTS, HEADS, RANKS
from costmodel.pipeline.schedules import column
from costmodel.training.rank_strides import axis_strides
from planner.law import Breach, Ground, Law, PlanLaw
from planner.plan import Problem
from planner.rules.rule import largest_divisor
from planner.rules.sequences import SEQUENCE_RULES
from topology.base.arrays import Mask, Quantity

_EMPTY_ENDS = column(lambda schedule: schedule.empty_ends)

MOST_VOCABULARY_PADDING = 0.01
"""Stacks pad the vocabulary to a multiple of tp; past this share the padding is work worth refusing."""


def _degrees_broken(_: Problem, t: LayoutTable) -> Mask:
    return functools.reduce(operator.or_, (getattr(t, name) < 1 for name in DEGREES))


def _degrees(_: Problem, x: ParallelLayout) -> Breach:
    name = next(name for name in DEGREES if getattr(x, name) < 1)
    value = getattr(x, name)
    return Breach(
        message=f"{name} = {value}, a degree counts GPUs and is at least 1",
        have=value,
        need=1,
        unit="",
        hint=f"set {name}=1 to leave that axis out",
    )


def _gpus_broken(s: Problem, t: LayoutTable) -> Mask:
    return np.asarray(t.num_gpus > s.cluster.num_gpus, dtype=bool)


def _gpus(s: Problem, x: ParallelLayout) -> Breach:
    have, need = x.num_gpus, s.cluster.num_gpus
    return Breach(
        message=f"dp·cp·tp·pp = {x.dp}·{x.cp}·{x.tp}·{x.pp} = {have} GPUs, the cluster has {need}",
        have=have,
        need=need,
        unit="GPUs",
        hint=f"lower the degrees to a product of at most {need}, or plan for {have} GPUs",
    )


def _indivisible(s: Problem, x: ParallelLayout, size_name: str, size: int, axis: str) -> Breach:
    """Build the violation of size % degree == 0."""
    degree = getattr(x, axis)
    rest = int(HEADS.rest(size, degree))
    message = f"{size_name} % {axis} = {size} % {degree} = {rest}, must be 0"
    hint = (
        f"use {axis}={_largest_degree(s, x, axis, size)}, the largest below {degree} that divides all it cuts"
    )
    return Breach(message=message, have=rest, need=0, unit="", hint=hint)


def _with_degree(x: ParallelLayout, axis: str, degree: int) -> ParallelLayout:
    """A layout with another degree of an axis."""
    changed: dict[str, Any] = {axis: degree}
    return replace(x, **changed)


def _largest_degree(s: Problem, x: ParallelLayout, axis: str, size: int) -> int:
    """The largest lower degree of an axis that keeps every law of what it cuts, and that fills the GPUs."""
    degree = getattr(x, axis)
    lower = [each for each in range(1, min(degree - 1, size) + 1) if HEADS.rest(size, each) == 0]
    table = LayoutTable.from_rows([_with_degree(x, axis, each) for each in lower])
    broken = np.zeros(len(lower), dtype=bool)
    for law in SHAPE_RULES:
        if law.name in _CUTS_OF[axis]:
            broken |= np.asarray(law.broken(s, table), dtype=bool)
    if axis == "tp":
        broken |= np.asarray(RANKS.rest(s.cluster.num_gpus, table.tp, table.pp, table.cp) != 0, dtype=bool)
    return max((each for each, stops in zip(lower, broken, strict=True) if not stops), default=1)


def _divides(
    name: str,
    axis: str,
    ground: Ground | Callable[[Problem, ParallelLayout], Ground] = "engine",
    unless: Callable[[Problem, LayoutTable], Mask | bool] = lambda _s, _t: False,
) -> PlanLaw:
    """The degree of an axis divides sizes of the model, if it has any; engines cut nothing unevenly.

    `unless` says of which layouts the engine holds whole what it cannot cut.
    """

    def sizes(model: ModelSpec) -> dict[str, int]:
        return {cut.field: cut.size for cut in model.cuts if cut.law == name}

    def broken(s: Problem, t: LayoutTable) -> Mask | bool:
        wholes = sizes(s.model).values()
        if not wholes:
            return False
        uneven = np.asarray(HEADS.rest(math.gcd(*wholes), getattr(t, axis)) != 0, dtype=bool)
        return np.asarray(uneven & ~np.asarray(unless(s, t), dtype=bool), dtype=bool)

    def explain(s: Problem, x: ParallelLayout) -> Breach:
        degree = getattr(x, axis)
        field, size = next(
            (field, size) for field, size in sizes(s.model).items() if HEADS.rest(size, degree)
        )
        return _indivisible(s, x, field, size, axis)

    return Law(name=name, reads=(axis,), broken=broken, says=explain, ground=ground)


def _key_heads_ground(s: Problem, x: ParallelLayout) -> Ground:
    """Engines give several ranks the same head of keys where tp is a multiple of their number."""
    return "unpriced" if x.tp % s.model.attention.whole_heads == 0 else "engine"


def _gathers_key_heads(s: Problem, t: LayoutTable) -> Mask | bool:
    """Whether the engine gathers the heads of keys and values of ranks that outnumber them."""
    if not s.stack.timing.gathers_key_heads:
        return False
    return np.asarray(t.tp % s.model.attention.whole_heads == 0, dtype=bool)


def _whole_sequence(name: str) -> PlanLaw:
    """Sequences are whole on a rank where a kind of layer says why, and that this rule says so.

    Unless the engine gives every context rank heads of its own around that kind: then tp·cp divides them.
    """

    def why(s: Problem) -> str:
        return next((m.whole_sequence for m in s.model.mechanisms if m.context_law == name), "")

    def heads(s: Problem) -> dict[str, int]:
        if not s.stack.supports.recurrent_context:
            return {}
        cuts = (cut for kind in s.model.mechanisms if kind.context_law == name for cut in kind.context_cuts)
        return {cut.field: cut.size for cut in cuts}

    def broken(s: Problem, t: LayoutTable) -> Mask:
        if not why(s):
            return np.zeros(len(t), dtype=bool)
        wholes = heads(s).values()
        uneven = HEADS.rest(math.gcd(*wholes), t.tp * t.cp) != 0 if wholes else True
        return np.asarray((t.cp > 1) & uneven, dtype=bool)

    def explain(s: Problem, x: ParallelLayout) -> Breach:
        for field, size in heads(s).items():
            if rest := int(HEADS.rest(size, x.tp * x.cp)):
                message = f"{field} % (tp·cp) = {size} % ({x.tp}·{x.cp}) = {rest}, must be 0: {why(s)}"
                return Breach(message=message, have=rest, need=0, unit="heads", hint="use a smaller cp")
        return Breach(message=f"cp = {x.cp}: {why(s)}", have=x.cp, need=1, unit="", hint="use cp=1")

    def ground(s: Problem, _: ParallelLayout) -> Ground:
        return "engine" if heads(s) else "unpriced"

    return Law(name=name, reads=("cp", "tp"), broken=broken, says=explain, ground=ground)


def _vocabulary_broken(s: Problem, t: LayoutTable) -> Mask:
    rows = s.model.module.classes if s.model.module else s.model.vocab_size
    return np.asarray((-rows) % t.tp > MOST_VOCABULARY_PADDING * rows, dtype=bool) & (rows > 0)


def _vocabulary(s: Problem, x: ParallelLayout) -> Breach:
    vocabulary = s.model.vocab_size
    padding = -vocabulary % x.tp
    return Breach(
        message=f"padding vocab_size {vocabulary} to a multiple of tp {x.tp} adds {padding} rows, more than "
        f"{MOST_VOCABULARY_PADDING:.0%}",
        have=padding,
        need=math.floor(MOST_VOCABULARY_PADDING * vocabulary),
        unit="rows",
        hint="use a smaller tp",
    )


def _expert_tensor_broken(_: Problem, t: LayoutTable) -> Mask:
    return np.asarray((t.expert_tp != 1) & (t.expert_tp != t.tp), dtype=bool)


def _expert_tensor(_: Problem, x: ParallelLayout) -> Breach:
    """Of 2,286 published Megatron-Bridge recipes each has one of the two; nothing else was measured."""
    return Breach(
        message=f"expert_tp = {x.expert_tp} at tp = {x.tp}: an expert is whole, or cut as its layer is",
        have=x.expert_tp,
        need=1,
        unit="ranks",
        hint="use expert_tp=1" + (f" or expert_tp={x.tp}" if x.tp > 1 else "") + ", and ep to spread experts",
    )


def _experts_broken(s: Problem, t: LayoutTable) -> Mask:
    return np.asarray(
        EXPERTS.rest(s.model.num_experts, t.ep) != 0 if s.model.is_moe else (t.ep != 1) | (t.expert_tp != 1),
        dtype=bool,
    )


def _experts(s: Problem, x: ParallelLayout) -> Breach:
    if s.model.is_moe:
        return _indivisible(s, x, "num_experts", s.model.num_experts, "ep")
    return Breach(
        message=f"ep·expert_tp = {x.ep}·{x.expert_tp} but {s.model.name} has no experts",
        have=x.expert_shards,
        need=1,
        unit="",
        hint="use ep=1 and expert_tp=1 for a dense model",
    )


def _experts_ground(s: Problem, _: ParallelLayout) -> Ground:
    """No expert is divided among ranks that are no divisor; a dense model has none to divide."""
    return "engine" if s.model.is_moe else "impossible"


def _expert_block_broken(_: Problem, t: LayoutTable) -> Mask:
    return np.asarray(EXPERT_RANKS.rest(t.stage_ranks, t.ep, t.expert_tp) != 0, dtype=bool)


def _expert_block(_: Problem, x: ParallelLayout) -> Breach:
    block, experts_over = x.stage_ranks, x.expert_shards
    rest = int(EXPERT_RANKS.rest(block, x.ep, x.expert_tp))
    return Breach(
        message=f"(dp·cp·tp) % (ep·expert_tp) = ({x.dp}·{x.cp}·{x.tp}) % ({x.ep}·{x.expert_tp}) = "
        f"{rest}, must be 0: experts are spread over the ranks of one pipeline stage",
        have=rest,
        need=0,
        unit="",
        hint=f"use ep·expert_tp={math.gcd(block, experts_over)}",
    )


def _layers_broken(s: Problem, t: LayoutTable) -> Mask:
    return np.asarray(t.pp * t.virtual_stages > _most_stages(s, t.virtual_stages, t.schedule), dtype=bool)


def _most_stages(s: Problem, virtual_stages: Quantity, schedule: Quantity) -> Quantity:
    """One layer each; interleaved, the ends may do with the embedding or the head."""
    empty_chunks = (
        s.stack.supports.empty_end_chunks & (virtual_stages > 1) & _EMPTY_ENDS[np.asarray(schedule)]
    )
    return np.asarray(s.model.num_layers + 2 * empty_chunks)


def _layers(s: Problem, x: ParallelLayout) -> Breach:
    stages, layers = x.pp * x.virtual_stages, s.model.num_layers
    most = int(_most_stages(s, x.virtual_stages, SCHEDULES.index(x.schedule)))
    return Breach(
        message=f"pp·virtual_stages = {x.pp}·{x.virtual_stages} = {stages} stages, the model has {layers} "
        "layers",
        have=stages,
        need=most,
        unit="stages",
        hint=f"use at most {most} stages",
    )


def _even_layers_broken(s: Problem, t: LayoutTable) -> Mask | bool:
    return np.asarray(
        False if s.stack.supports.uneven_stages else s.model.num_layers % (t.pp * t.virtual_stages) != 0,
        dtype=bool,
    )


def _even_layers(s: Problem, x: ParallelLayout) -> Breach:
    stages, layers = x.pp * x.virtual_stages, s.model.num_layers
    return Breach(
        message=f"num_layers % (pp·virtual_stages) = {layers} % ({x.pp}·{x.virtual_stages}) = "
        f"{layers % stages}, "
        f"must be 0: {s.stack.name} has only equal stages",
        have=layers % stages,
        need=0,
        unit="layers",
        hint=f"use {largest_divisor(layers, stages)} stages",
    )


def _batch_broken(s: Problem, t: LayoutTable) -> Mask:
    return np.asarray(BATCH.rest(s.job.global_batch_size, t.dp, t.microbatch_size) != 0, dtype=bool)


def _batch(s: Problem, x: ParallelLayout) -> Breach:
    B, step = s.job.global_batch_size, x.dp * x.microbatch_size
    rest = int(BATCH.rest(B, x.dp, x.microbatch_size))
    return Breach(
        message=f"global_batch_size % (dp·microbatch_size) = {B} % ({x.dp}·{x.microbatch_size}) = {rest}, "
        "must be 0",
        have=rest,
        need=0,
        unit="sequences",
        hint=f"use dp·microbatch_size={largest_divisor(B, step)}, or a global batch of "
        f"{-(-B // step) * step}",
    )


def _sequence_limit_broken(s: Problem, _: LayoutTable) -> bool:
    length = s.job.sequence_length
    return length > s.model.with_positions(length).max_sequence_length


def _sequence_limit(s: Problem, _: ParallelLayout) -> Breach:
    have, need = s.job.sequence_length, s.model.max_sequence_length
    return Breach(
        message=f"sequence_length {have} is longer than the {need} positions of {s.model.name}",
        have=have,
        need=need,
        unit="tokens",
        hint="leave the sequence length out: a traced module counts samples, whose shape --input gives"
        if s.model.module
        else f"use a sequence length of at most {need}, the rows of its table of positions, or set "
        f"model.max_sequence_length={have} and model.learned_positions={have} for a longer one",
    )


def _alignment_broken(s: Problem, t: LayoutTable) -> Mask:
    node = s.cluster.hierarchy.gpus_per_node
    block = _innermost_block(t)
    return np.asarray((t.tp > 1) & (node % block != 0) & (block % node != 0), dtype=bool)


def _innermost_block(t: LayoutTable) -> npt.NDArray[np.int64]:
    """GPUs spanned by one tensor-parallel group, strided over the axes that vary faster than it."""
    return np.asarray(t.tp * axis_strides(t)["tp"], dtype=np.int64)


def _alignment(s: Problem, x: ParallelLayout) -> Breach:
    node = s.cluster.hierarchy.gpus_per_node
    inner = x.axis_order[x.axis_order.index("tp") :]
    block = math.prod(getattr(x, axis) for axis in inner)
    terms = "·".join(f"{axis} {getattr(x, axis)}" for axis in inner)
    return Breach(
        message=f"a tensor-parallel group spans {terms} = {block} GPUs, which neither divides a node of "
        f"{node} nor "
        "fills whole nodes: some groups would straddle two nodes",
        have=block,
        need=largest_divisor(node, block),
        unit="GPUs",
        hint=f"use tp={largest_divisor(node, x.tp)} with tp innermost",
    )


CONTEXT_LAWS = tuple(
    dict.fromkeys(kind.context_law for kind in (Recurrence, *ATTENTION_KINDS) if kind.context_law)
)
"""Rules that keep sequences whole, by the kinds of layers that say why."""

_CUTS_OF: Mapping[str, tuple[str, ...]] = {
    "tp": ("attention-heads", "kv-heads", "feed-forward", "recurrence-heads", "output-groups"),
    "expert_tp": ("expert-width",),
    "ep": (),
}
"""Laws of what an axis cuts beside the size in question, by the axis."""
SHAPE_RULES: tuple[PlanLaw, ...] = (
    Law(name="degrees", reads=DEGREES, broken=_degrees_broken, says=_degrees, ground="impossible"),
    Law(
        name="sequence-limit",
        reads=(),
        broken=_sequence_limit_broken,
        says=_sequence_limit,
        ground="impossible",
    ),
    Law(name="gpus", reads=("dp", "cp", "tp", "pp"), broken=_gpus_broken, says=_gpus, ground="impossible"),
    _divides("attention-heads", "tp"),
    _divides("kv-heads", "tp", _key_heads_ground, unless=_gathers_key_heads),
    *(_divides(name, "tp") for name in _CUTS_OF["tp"][2:]),
    *(_whole_sequence(name) for name in CONTEXT_LAWS),
    Law(name="vocabulary", reads=("tp",), broken=_vocabulary_broken, says=_vocabulary, ground="unpriced"),
    Law(
        name="experts",
        reads=("ep", "expert_tp"),
        broken=_experts_broken,
        says=_experts,
        ground=_experts_ground,
    ),
    _divides("expert-width", "expert_tp"),
    Law(
        name="expert-tensor",
        reads=("expert_tp", "tp"),
        broken=_expert_tensor_broken,
        says=_expert_tensor,
        ground="unpriced",
        lenient_at_one=False,
    ),
    Law(
        name="expert-block",
        reads=("dp", "cp", "tp", "ep", "expert_tp"),
        broken=_expert_block_broken,
        says=_expert_block,
        ground="impossible",
        lenient_at_one=False,
    ),
    Law(
        name="layers",
        reads=("pp", "virtual_stages", "schedule"),
        broken=_layers_broken,
        says=_layers,
        ground="engine",
    ),
    Law(
        name="even-layers",
        reads=("pp", "virtual_stages"),
        broken=_even_layers_broken,
        says=_even_layers,
        ground="engine",
    ),
    Law(name="batch", reads=("dp", "microbatch_size"), broken=_batch_broken, says=_batch, ground="engine"),
    *SEQUENCE_RULES,
    Law(
        name="node-alignment",
        reads=("tp", "axis_order", "dp", "cp", "pp"),
        broken=_alignment_broken,
        says=_alignment,
        ground="unpriced",
    ),
)
"""In the order a person would check them; the first broken rule is the one a pruned layout is counted
under.
"""
