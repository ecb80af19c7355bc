"""Rules of sequences: what context and sequence parallelism may divide them by."""

from __future__ import annotations

import numpy as np

from costmodel.layout import CP_KINDS, LayoutTable, ParallelLayout
from planner.law import Breach, Law, PlanLaw
from planner.plan import Problem
from topology.base.arrays import Mask

_ULYSSES = CP_KINDS.index("ulysses")


def _sequence_split_broken(s: Problem, t: LayoutTable) -> Mask:
    balance = 1 + ((t.cp > 1) & (t.cp_kind != _ULYSSES))
    ranks = 1 + (t.tp - 1) * t.sequence_parallel
    if s.model.module:  # a sample is one token of the job
        whole = (s.model.module.tokens or 1) % ranks == 0
        return np.asarray(~whole | (s.job.sequence_length % (t.cp * balance) != 0), dtype=bool)
    return np.asarray(s.job.sequence_length % (t.cp * balance * ranks) != 0, dtype=bool)


def _sequence_split(s: Problem, x: ParallelLayout) -> Breach:
    if s.model.module and x.cp == 1:
        return _tokens_of_a_trace(s.model.module.tokens, x.tp)
    balance = 2 if x.cp > 1 and x.cp_kind != "ulysses" else 1
    shards = x.cp * balance * (x.tp if x.sequence_parallel else 1)
    terms = f"cp {x.cp}" + " · 2 (causal balance)" * (balance == 2) + f" · tp {x.tp}" * x.sequence_parallel
    S = s.job.sequence_length
    return Breach(
        message=f"sequence_length % ({terms}) = {S} % {shards} = {S % shards}, must be 0",
        have=S % shards,
        need=0,
        unit="tokens",
        hint=f"use a sequence length of {-(-S // shards) * shards}",
    )


def _tokens_of_a_trace(tokens: int, tp: int) -> Breach:
    """Build the violation of a traced module whose sequence cannot be split by sequence parallelism."""
    have = f"{tokens} tokens % tp = {tokens} % {tp} = {tokens % tp}, must be 0"
    return Breach(
        message=have if tokens else "between blocks of this trace not every operation is of a token alone",
        have=tokens % tp if tokens else tp,
        need=0 if tokens else 1,
        unit="tokens",
        hint="use sequence_parallel=false",
    )


def _ulysses_broken(s: Problem, t: LayoutTable) -> Mask:
    groups = s.model.attention.whole_heads
    return np.asarray((t.cp_kind == _ULYSSES) & (groups % (t.tp * t.cp) != 0), dtype=bool)


def _ulysses(s: Problem, x: ParallelLayout) -> Breach:
    groups = s.model.attention.whole_heads
    return Breach(
        message=f"num_key_value_heads % (tp·cp) = {groups} % ({x.tp}·{x.cp}) = {groups % (x.tp * x.cp)}, "
        "must be 0: "
        "Ulysses gives every rank whole heads",
        have=groups % (x.tp * x.cp),
        need=0,
        unit="heads",
        hint="use cp_kind=ring, or a smaller cp",
    )


SEQUENCE_RULES: tuple[PlanLaw, ...] = (
    Law(
        name="sequence-split",
        reads=("cp", "tp", "sequence_parallel", "cp_kind"),
        broken=_sequence_split_broken,
        says=_sequence_split,
        ground="engine",
        lenient_at_one=False,
    ),
    Law(
        name="ulysses-heads",
        reads=("cp_kind", "tp", "cp"),
        broken=_ulysses_broken,
        says=_ulysses,
        ground="engine",
    ),
)
"""Judged after the batch."""
