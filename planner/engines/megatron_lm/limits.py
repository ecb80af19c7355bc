"""What Megatron-LM cannot run, or runs otherwise than its profile prices.

Read in ``megatron/training/arguments.py`` (`validate_args`) and ``transformer_config.py`` of megatron-core
0.19.2, unless a line says otherwise.
"""

from __future__ import annotations

import numpy as np

from costmodel.kernels.precisions import TRAINING
from costmodel.layout import AXIS_ORDERS, CP_KINDS, LayoutTable, ParallelLayout
from costmodel.models.spec import ModelSpec
from planner.engines.limit import layers_limit, limit
from planner.engines.megatron_lm.layout import DP_FIRST
from planner.engines.megatron_lm.modules import MODULES
from planner.engines.megatron_lm.pairing import PAIRED_GATHERS, PAIRED_MODULES, PAIRED_RECOMPUTE
from planner.engines.megatron_lm.state import STATE_PRECISION
from planner.plan import Problem
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

_ULYSSES, _DP_FIRST = CP_KINDS.index("ulysses"), AXIS_ORDERS.index(DP_FIRST)
SHARED_CONNECTIONS_FROM = (10, 0)
"""Compute capability from which `validate_args` asks no CUDA_DEVICE_MAX_CONNECTIONS=1 of tp and cp."""
FUSED_FROM = (8, 0)
"""Compute capability from which Transformer Engine has a fused attention kernel (flash attention)."""


def orders_kernels_by_queue(gpu: Gpu) -> bool:
    """Whether overlap of tensor parallelism needs one hardware queue."""
    return generation_of(gpu).capability < SHARED_CONNECTIONS_FROM


def _split_sequences_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    needed = s.model.is_moe or s.stack.timing.tp_overlap_share > 0
    return needed and np.asarray((t.tp > 1) & ~t.sequence_parallel, dtype=bool)


def _split_sequences(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    share = s.stack.timing.tp_overlap_share
    return (
        (
            f"tp = {x.tp} without sequence_parallel: --tp-comm-overlap, which hides {share:.0%} of messages, "
            "and experts need it"
        ),
        "set sequence_parallel=true",
    )


def _half_experts_broken(s: Problem, t: LayoutTable) -> np.ndarray:
    return np.asarray((t.ep > 1) & (TRAINING[s.job.precision].half == "fp16"), dtype=bool)


def _half_experts(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    return f"ep = {x.ep} in {s.job.precision}: experts are not split in fp16", "use --precision bf16, or ep=1"


def _biased_experts_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    return s.model.is_moe and s.model.mlp_bias and np.asarray(t.expert_tp > 1, dtype=bool)


def _biased_experts(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    return (
        f"expert_tp = {x.expert_tp}: experts of {s.model.name} have biases, and such are not split",
        "set expert_tp=1",
    )


def _mapping_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    return s.model.is_moe and np.asarray((t.axis_order == _DP_FIRST) & (t.pp > 1) & (t.dp > 1), dtype=bool)


def _mapping(_: Problem, x: ParallelLayout) -> tuple[str, str]:
    equation = (
        f"axis_order = {'-'.join(x.axis_order)} with experts: --use-tp-pp-dp-mapping wants as many replicas "
        f"of experts as of attention, here {x.expert_dp} and {x.dp}"
    )
    return equation, "set axis_order=pp-dp-cp-tp"


def _unlike_ring(s: Problem) -> str:
    """What attention has that no ring of Transformer Engine computes."""
    if s.model.attention_sinks:
        return "attention sinks"
    window = s.model.sliding_window if s.model.num_sliding_layers else None
    return "windows" if window is not None and window < s.job.sequence_length else ""


def _ring_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    return bool(_unlike_ring(s)) and np.asarray((t.cp > 1) & (t.cp_kind != _ULYSSES), dtype=bool)


def _ring(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    return (
        f"cp = {x.cp} by {x.cp_kind} with {_unlike_ring(s)}, which Transformer Engine splits by a2a only",
        "set cp_kind=ulysses, or cp=1",
    )


def _halves_broken(s: Problem, t: LayoutTable) -> np.ndarray:
    return np.asarray((t.cp > 1) & (s.job.sequence_length % (2 * t.cp) != 0), dtype=bool)


def _halves(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    return (
        f"sequence_length % (2·cp) = {s.job.sequence_length} % {2 * x.cp}, must be 0 for every kind",
        "use a smaller cp",
    )


def _sharded_broken(s: Problem, t: LayoutTable) -> np.ndarray | bool:
    split = (t.tp > 1) | (t.cp > 1)
    return orders_kernels_by_queue(s.cluster.gpu) and np.asarray((t.zero_stage > 1) & split, dtype=bool)


def _sharded(s: Problem, x: ParallelLayout) -> tuple[str, str]:
    equation = (
        f"zero_stage = {x.zero_stage} is --use-megatron-fsdp, which wants more than one queue; "
        f"tp = {x.tp} and cp = {x.cp} want CUDA_DEVICE_MAX_CONNECTIONS=1 on {s.cluster.gpu.architecture}"
    )
    return equation, "set zero_stage=1, or tp=1 and cp=1"


def _group_rank_broken(s: Problem, _: LayoutTable) -> bool:
    routing = s.model.routing
    best = s.model.num_experts_per_token // routing.topk_group
    return routing.n_group > 1 and best != (2 if routing.bias_selects else 1)


def _group_rank(s: Problem, _: ParallelLayout) -> tuple[str, str]:
    routing = s.model.routing
    ours, asked = (2 if routing.bias_selects else 1), s.model.num_experts_per_token
    equation = (
        f"groups of experts of {s.model.name} are ranked by their best {ours}, those of Megatron-LM by their "
        f"best {asked} / {routing.topk_group}"
    )
    return equation, "use another model"


def _attention_broken(s: Problem, _: LayoutTable) -> bool:
    return s.stack.timing.flash_attention and generation_of(s.cluster.gpu).capability < FUSED_FROM


def _attention(s: Problem, _: ParallelLayout) -> tuple[str, str]:
    gpu = s.cluster.gpu
    return (
        f"{s.stack.name} is priced with fused attention, which {gpu.name} ({gpu.architecture}) has not",
        "use --stack megatron-lm-2022, or a GPU from Ampere on",
    )


def _plain_positions(model: ModelSpec) -> bool:
    """Whether its positions are ``--position-embedding-type rope``."""
    scaling = model.rotary.scaling
    stretched = scaling is not None and scaling.kind == "yarn" and not model.kv_lora_rank
    return not model.learned_positions and not stretched


_MODULE_POSITIONS = limit(
    name="further-token-positions",
    reads=(),
    broken=lambda s, _: s.job.mtp_layers > 0 and not _plain_positions(s.model),
    says=lambda s, _: (
        f"mtp_layers = {s.job.mtp_layers}: modules take plain rotary positions, {s.model.name} has others",
        "leave job.mtp_layers out",
    ),
)
LIMITS = (
    layers_limit("Megatron-Core", "megatron"),
    limit(name="expert-groups", reads=(), broken=_group_rank_broken, says=_group_rank),
    limit(name="attention-kernel", reads=(), broken=_attention_broken, says=_attention),
    limit(
        name="sequence-parallel",
        reads=("tp", "sequence_parallel"),
        broken=_split_sequences_broken,
        says=_split_sequences,
    ),
    limit(name="fp16-experts", reads=("ep",), broken=_half_experts_broken, says=_half_experts),
    limit(name="biased-experts", reads=("expert_tp",), broken=_biased_experts_broken, says=_biased_experts),
    limit(name="sequence-halves", reads=("cp",), broken=_halves_broken, says=_halves),
    limit(
        name="order-with-experts",
        reads=("axis_order", "pp", "dp"),
        broken=_mapping_broken,
        says=_mapping,
    ),
    MODULES,
    PAIRED_GATHERS,
    PAIRED_RECOMPUTE,
    PAIRED_MODULES,
    _MODULE_POSITIONS,
    STATE_PRECISION,
    limit(name="context-exchange", reads=("cp", "cp_kind"), broken=_ring_broken, says=_ring),
    limit(
        name="sharding-with-tensors",
        reads=("zero_stage", "tp", "cp"),
        broken=_sharded_broken,
        says=_sharded,
    ),
)
