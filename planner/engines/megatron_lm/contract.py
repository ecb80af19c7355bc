"""Megatron-LM with megatron-core: its contract."""

from __future__ import annotations

from typing import Any

from costmodel.layout import LayoutTable
from planner.engines.contract import Contract
from planner.engines.even_layers import divided
from planner.engines.fields import Facts
from planner.engines.limit import (
    Variable,
    adapter_limit,
    compression_limit,
    limit,
    model_limit,
    offload_limit,
    optimizer_limit,
)
from planner.engines.megatron_lm.buckets import BUCKETS, BUCKETS_CUT
from planner.engines.megatron_lm.kernels import (
    KERNEL_LIMITS,
    KERNEL_REFUSALS,
    KERNEL_WORDS,
    KERNELS,
    UNPRICED_KERNELS,
    captures_modules,
)
from planner.engines.megatron_lm.layout import LAYOUT_SETTINGS, OPTIMIZERS
from planner.engines.megatron_lm.limits import LIMITS, orders_kernels_by_queue
from planner.engines.megatron_lm.model import MODEL_SETTINGS
from planner.engines.megatron_lm.pairing import UNPRICED, pairs_passes
from planner.engines.megatron_lm.refused_experts import EXPERT_REFUSALS, EXPERT_WORDS
from planner.engines.megatron_lm.refused_layout import LAYOUT_REFUSALS, LAYOUT_WORDS
from planner.engines.megatron_lm.refused_state import STATE_REFUSALS, STATE_WORDS
from planner.engines.megatron_lm.state import ALL_OFFLOADED
from planner.engines.setting import value
from topology.hardware.datasheets import generation_of
from topology.hardware.gpu import Gpu

OTHER_WORDS = (LAYOUT_WORDS, STATE_WORDS, EXPERT_WORDS, KERNEL_WORDS)
SAVING = value(
    "--save-interval",
    "campaign.save_interval_steps",
    aliases=("--persistent-save-interval",),
    when=lambda facts: facts.get("campaign.save_interval_steps") is not None,  # a job that is read has none
)
SETTINGS = (*LAYOUT_SETTINGS, *KERNELS, *MODEL_SETTINGS, *OTHER_WORDS, BUCKETS, SAVING)


def _many_queues(facts: Facts, gpu: Gpu) -> bool:
    """Whether two microbatches compute and send at once, on a GPU whose queues are counted by CUDA."""
    return pairs_passes(facts) and _runs_cuda(facts, gpu)


def _runs_cuda(_: Facts, gpu: Gpu) -> bool:
    """Whether CUDA runs it, and not HIP."""
    return generation_of(gpu).maker == "nvidia"


def _ordered_queue(facts: Facts, gpu: Gpu) -> bool:
    """Whether kernels must start in the order in which they were queued, as messages beside them rely on."""
    if pairs_passes(facts):
        return False
    split = facts["layout.tp"] > 1 or facts["layout.cp"] > 1
    return bool(split and facts["layout.zero_stage"] < 2 and orders_kernels_by_queue(gpu))


ENVIRONMENT = (
    Variable(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        value="1",
        why="messages run beside tensor and context parallelism only if kernels start in order",
        needed=lambda facts, gpu: _ordered_queue(facts, gpu) and _runs_cuda(facts, gpu),
    ),
    Variable(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        value="1",
        why="HIP does not read it, but Megatron-LM stops without it on any GPU of compute capability 9",
        needed=lambda facts, gpu: _ordered_queue(facts, gpu) and not _runs_cuda(facts, gpu),
    ),
    Variable(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        value="32",
        why="two microbatches compute and exchange tokens at once",
        needed=_many_queues,
    ),
    Variable(
        name="PYTORCH_CUDA_ALLOC_CONF",
        value="expandable_segments:True",
        why="less of the memory is lost to fragments",
        needed=_runs_cuda,
    ),
    Variable(
        name="NCCL_GRAPH_REGISTER",
        value="0",
        why="graphs of modules and segments that expand do not share registered memory",
        needed=lambda facts, gpu: captures_modules(facts) and _runs_cuda(facts, gpu),
    ),
    Variable(
        name="TORCH_NCCL_AVOID_RECORD_STREAMS",
        value="1",
        why="buffers of messages are freed when they arrive",
    ),
)

BUILT_IN = {
    "flash_attention": "--attention-backend is auto, which takes a fused kernel wherever there is one",
    "fused_elementwise": "bias, activation, dropout, norm and rotary fusions are on by default",
    "vocab_parallel_loss": "the loss is always computed on shards of the vocabulary",
    "gathers_key_heads": "from 0.16 on q, k and v are gathered where tp ranks outnumber key-value heads",
    "cp_overlap": "Transformer Engine's ring sends beside attention",
    "p2p_sharded": "with --sequence-parallel stages send shards",
}

RUNS = {
    "kv-heads": "megatron-core gathers queries, keys and values over tp from 0.16 on",
    "vocabulary": "Megatron-LM pads it",
    "expert-tensor": "an expert may be cut otherwise than its layer, which is not priced",
    "node-alignment": "such groups run, slowly",
    "equal-chunks": "such chunks run, and wait for each other",
    "megatron-sharding-with-tensors": "it warns, and messages of one of both wait",
    "pipeline-fill": "fewer microbatches run, and leave stages idle",
}


def _shards_a_part(t: LayoutTable) -> Any:
    """Where only some of the replicas share the state."""
    return (t.zero_stage > 0) & (t.shard_degree < t.replicas)


_WHOLE_MATRICES = limit(
    name="optimizer-sharding",
    reads=("zero_stage", "shard_degree", "dp", "cp"),
    broken=lambda s, t: (s.job.optimizer == "muon") & ((t.zero_stage > 1) | _shards_a_part(t)),
    says=lambda _, x: (
        f"zero_stage = {x.zero_stage}, {x.effective_shard_degree} of {x.replicas}: muon takes whole matrices",
        "set zero_stage=1, and leave out shard_degree",
    ),
)
"""Megatron-FSDP takes no such optimizer: "emerging optimizer check" of arguments.py."""

MEGATRON = Contract(
    engine="megatron",
    title="Megatron-LM",
    package="megatron-core",
    releases=("0.15", "0.19"),
    stacks=(
        "megatron-core",
        "megatron-core-noov",
        "megatron-bridge",
        "megatron-bridge-modules",
        "megatron-bridge-overlap",
        "megatron-core-bf16-state",
    ),
    settings=SETTINGS,
    limits=(
        model_limit("Megatron-LM", SETTINGS),
        adapter_limit("Megatron-LM"),
        compression_limit("Megatron-LM", fields=("bucket_bytes",)),
        BUCKETS_CUT,
        offload_limit("Megatron-LM", (ALL_OFFLOADED,)),
        optimizer_limit("Megatron-LM", tuple(OPTIMIZERS.values())),
        _WHOLE_MATRICES,
        *LIMITS,
        *KERNEL_LIMITS,
    ),
    refusals=LAYOUT_REFUSALS + STATE_REFUSALS + EXPERT_REFUSALS + KERNEL_REFUSALS,
    sizes=("--num-layers", "--hidden-size", "--num-attention-heads"),
    runs=RUNS,
    recomputes="per-chunk",
    even_layers=divided,
    environment=ENVIRONMENT,
    built_in=BUILT_IN,
    unpriced={**UNPRICED, **UNPRICED_KERNELS},
    source="megatron/training/arguments.py of the megatron-core 0.19.2 wheel",
)
