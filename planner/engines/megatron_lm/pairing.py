"""Whether Megatron-LM hides the exchange of experts under another microbatch, and what that asks for.

Read in `TransformerConfig.__post_init__` of megatron-core 0.19.2.
"""

from __future__ import annotations

import numpy as np

from costmodel.layout import INTERLEAVED_SCHEDULE, RECOMPUTES, LayoutTable, ParallelLayout
from planner.engines.fields import Facts
from planner.engines.limit import limit
from planner.engines.setting import EngineSetting, Word
from planner.plan import Problem

UNPRICED = {
    "--delay-wgrad-compute": "moves weight gradients under the exchange of experts, which hides more of it",
    "--moe-shared-expert-overlap": "computes shared experts beside the exchange, which hides some of it",
}
"""Words that change what hides under what, by their effect; nothing that was measured tells them apart."""
FLAG, EP = "--overlap-moe-expert-parallel-comm", "--expert-model-parallel-size"
_FULL = RECOMPUTES.index("full")


def pairs_passes(facts: Facts) -> bool:
    """Whether any pass runs beside one of another microbatch, as `costmodel.pipeline.pairing` counts them."""
    microbatches = facts["job.global_batch_size"] // (facts["layout.dp"] * facts["layout.microbatch_size"])
    piped = facts["layout.pp"] > 1
    able = facts["layout.ep"] > 1 and (not piped or facts["layout.schedule"] == INTERLEAVED_SCHEDULE)
    return bool(facts["stack.pairs_expert_passes"] and able and microbatches > facts["layout.pp"])


PAIRING = EngineSetting(
    words=(
        Word(name=FLAG, kind="flag", default=False),
        *(Word(name=name, kind="flag", default=False) for name in UNPRICED),
    ),
    fields=("stack.pairs_expert_passes",),
    write=lambda facts: {FLAG: True} if pairs_passes(facts) else {},
    read=lambda given: {"stack.pairs_expert_passes": given[FLAG]},
)


def _recomputed_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    return s.stack.timing.pairs_expert_passes and np.asarray((t.ep > 1) & (t.recompute == _FULL), dtype=bool)


def _recomputed(_: Problem, x: ParallelLayout) -> tuple[str, str]:
    return (
        f"recompute = {x.recompute} at ep = {x.ep}: {FLAG} recomputes no whole layers",
        "set recompute=none",
    )


PAIRED_MODULES = limit(
    name="pairs-with-one-module",
    reads=("ep",),
    broken=lambda s, t: (
        (s.job.mtp_layers > 1 and s.stack.timing.pairs_expert_passes) & np.asarray(t.ep > 1, dtype=bool)
    ),
    says=lambda s, x: (
        f"mtp_layers = {s.job.mtp_layers} at ep = {x.ep}: {FLAG} takes one module of further tokens",
        "set job.mtp_layers=1",
    ),
)
PAIRED_GATHERS = limit(
    name="pairs-without-allgather",
    reads=("ep",),
    broken=lambda s, t: (
        (s.stack.timing.gathers_tokens and s.stack.timing.pairs_expert_passes)
        & np.asarray(t.ep > 1, dtype=bool)
    ),
    says=lambda _, x: (
        f"dispatcher = allgather at ep = {x.ep}: {FLAG} asks for alltoall or flex",
        "set switch.dispatcher=alltoall, or switch.exchange_overlap=off",
    ),
)
PAIRED_RECOMPUTE = limit(
    name="pairs-without-recompute",
    reads=("ep", "recompute"),
    broken=_recomputed_broken,
    says=_recomputed,
)
