"""Software stacks: what a training engine overlaps, fuses, keeps in memory and allows.

The same layout runs differently under Megatron-LM of 2021 and torchtitan of 2025. Each field of the groups
of a `SoftwareStack` has a physical meaning; its values are data (``data/stacks.toml``) with their source.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from costmodel.kernels.level import StackLevel
from costmodel.layout import PLAIN_SCHEDULE, CpKind, Recompute, Schedule
from costmodel.switches.profile import with_switches
from topology.base.errors import InputError

STACKS_FILE = Path(__file__).parent / "data" / "stacks.toml"


def constant(value: float, unit: str, meaning: str) -> float:
    """Field whose number no source states: listed in this unit with the constants of the cost model."""
    described: Any = field(default=value, metadata={"unit": unit, "meaning": meaning})
    return described  # type: ignore[no-any-return]  # what a dataclass takes in the place of a default


@dataclass(frozen=True, slots=True, kw_only=True)
class StackTiming:
    """What runs on a GPU and its host, what hides under what, and how fast.

    A `constant` carries its own meaning.

    Attributes:
        recomputed_modules: What the policy ``selective`` repeats, in Megatron-Core's words: ``core_attn``,
            ``mla_up_proj`` (queries, keys, values of latent attention), ``layernorm`` (norms before experts
            and before latent attention, which stand alone), ``moe_act`` (the activation of experts), ``mlp``,
            ``moe``, ``shared_experts`` and ``gdn`` (a whole block from its input, with its messages; the last
            is that of a recurrence). MaxText's policies repeat two parts more: ``mlp_act``, the activation of
            dense blocks, and ``norm_outputs``, what norms hand to the products behind them.
        messages_per_unit: Collectives in which ZeRO-2 and 3 send what belongs to one layer.
        flash_attention: Attention is fused: the S² scores are neither stored nor passed over.
        attention_slowdown: Time of that kernel over the tables', on GPUs without asynchronous matrix units.
        attention_slowdown_hopper: The same on GPUs with them.
        attention_slowdown_blackwell: The same on GPUs whose matrix units have a memory of their own.
        fused_elementwise: Norm, bias, activation and residual run as fused kernels (compile or hand-written).
        casts_apart: Linear layers of fewer than sixteen bits quantise input, weight and gradient by kernels
            of their own, anew for each of the three products (torchao); otherwise the kernel before a
            product writes eight bits and their transpose (Transformer Engine).
        scales_rows: Such operands have a scale for every row; otherwise one each.
        chained_modules: Root-mean-square norms, rotary positions and the loss are chains of kernels as
            transformers writes them, each of which reads and writes memory; layer norms are one of torch's.
        fused_norms: Norms and rotary positions are one kernel each where layers are not compiled (Liger,
            Unsloth, fms-acceleration), in the place of such chains.
        casts_adapters: An adapter's weights are in fp32 beside frozen ones in sixteen bits, and its input is
            cast to fp32 for them and back for the product under torch.autocast (peft); not where the
            frozen weights are quantised.
        autocast: Weights, norms, residual stream and loss are in fp32; operands are cast to sixteen bits
            before a product reads them (torch.autocast over fp32 weights).
        foreach_update: AdamW is a chain of kernels over all parameters, torch's where nothing is said,
            each of which reads and writes memory, with a temporary of one moment; otherwise one kernel.
        dispatches_weights: Routing weights travel to the experts in a message of their own.
        dispatches_once_per_node: A token is sent once to every node that holds some of its experts and copied
            there (DeepEP, HybridEP); otherwise every expert is sent its own copy.
        gathers_tokens: Every rank of an expert block gets all of its tokens and takes those of its experts
            (all-gather), and outputs are summed back to where they came from (reduce-scatter).
        fused_permutation: The kernels that send tokens count and order them too, and the host is not asked
            before (HybridEP).
        pairs_expert_passes: A forward runs beside another microbatch's backward, so that one computes while
            the other exchanges tokens, where the schedule has such pairs.
        dispatches_in_eight_bits: Tokens to experts, and gradients, go out in eight bits if the job is narrow.
        drops_tokens: Experts take a fixed number of tokens and drop the rest, so that shapes are known.
        launches_experts_singly: Every expert's products are launched on their own (Transformer Engine's
            grouped linear layers, a loop over cuBLAS), not those of all in one kernel (torch's grouped_mm).
        static_experts_blackwell: On Blackwell products read on the GPU how many tokens an expert gets.
        gathers_before_latent: With sequence parallelism the replicated down-projections of latent attention
            run on the whole sequence, not on each rank's part.
        gathers_key_heads: Where more tensor ranks than heads of keys and values cut a layer, they cut its
            queries, keys and values as one product, and gather them whole before each takes its heads.
        pads_value_heads: Attention runs with values padded to the size of queries and keys, where they are
            smaller (latent attention), as kernels with one head size need.
        narrow_head: The head multiplies in eight bits where layers do (``fp8_output_proj``).
        pads_vocabulary: The vocabulary is padded until a row of logits is a multiple of 16 bytes.
        dropout: Training drops activations out and stores the masks.
        vocab_parallel_loss: The loss is computed on vocabulary shards instead of gathered logits.
        score_bytes: Read and written per score of unfused attention by the kernels between its two products,
            forward and without dropout: 4 by one fused kernel.
        loss_forward_bytes: Read and written per logit by the kernels of the loss.
        loss_backward_bytes: The same backward; 0 if nobody counted them: 1.4 of those forward.
        gradient_overlap: Gradient reduction runs under the backward pass.
        parameter_overlap: The all-gather of updated parameters runs under the forward pass.
        fsdp_prefetch: The next layer's all-gather runs under this layer's compute.
        copies_sharded: At ZeRO-3 parameters are copied out of a collective's buffer, and gradients into one.
        regathers_recomputed: At ZeRO-3 the backward of a layer computed again gathers it once more.
        cp_overlap: Context-parallel exchanges hide under attention of the previous block.
        p2p_overlap: Pipeline sends hide under compute when interleaved.
        early_stop_recompute: Full recomputation ends before the last matrix product, which nobody needs.
        accumulation_fused: Weight-gradient products accumulate into the gradient buffer themselves.
        p2p_sharded: Tensor-parallel ranks send a shard each to the next stage and gather there.
        cuda_graphs: All kernels of a step come from captured graphs.
        graphed_modules: Modules of a layer whose kernels do, where not all: ``attn``, ``mlp``, ``moe``,
            ``moe_router``, ``moe_preprocess`` (Megatron-Core's words).
        launch_blocking: The host waits for each kernel before the next one (CUDA_LAUNCH_BLOCKING=1).
        overlaps_gradient_sum: The input gradient is summed over tp under the product for the weights'.
    """

    recomputed_modules: tuple[str, ...] = ("core_attn",)
    messages_per_unit: float = 1.0
    flash_attention: bool = True
    attention_slowdown: float = 1.0
    attention_slowdown_hopper: float = 1.0
    attention_slowdown_blackwell: float = 1.0
    fused_elementwise: bool = True
    casts_apart: bool = False
    scales_rows: bool = False
    chained_modules: bool = False
    fused_norms: bool = False
    casts_adapters: bool = False
    autocast: bool = False
    foreach_update: bool = False
    dispatches_weights: bool = False
    dispatches_once_per_node: bool = False
    gathers_tokens: bool = False
    fused_permutation: bool = False
    pairs_expert_passes: bool = False
    dispatches_in_eight_bits: bool = False
    drops_tokens: bool = False
    launches_experts_singly: bool = False
    static_experts_blackwell: bool = False
    gathers_before_latent: bool = False
    gathers_key_heads: bool = False
    pads_value_heads: bool = False
    narrow_head: bool = False
    pads_vocabulary: bool = True
    dropout: bool = False
    vocab_parallel_loss: bool = True
    score_bytes: float = 4.0
    loss_forward_bytes: float = 10.0
    loss_backward_bytes: float = 0.0
    gradient_overlap: bool = True
    parameter_overlap: bool = True
    fsdp_prefetch: bool = True
    copies_sharded: bool = False
    regathers_recomputed: bool = False
    cp_overlap: bool = True
    p2p_overlap: bool = True
    early_stop_recompute: bool = False
    accumulation_fused: bool = True
    p2p_sharded: bool = True
    cuda_graphs: bool = False
    graphed_modules: tuple[str, ...] = ()
    launch_blocking: bool = False
    overlaps_gradient_sum: bool = False
    product_time_ratio: float = constant(1.0, "ratio", "matrix products of this stack over the tables'")
    tp_slowdown: float = constant(1.0, "ratio", "tensor-parallel collectives over nccl-tests of today")
    tp_overlap_share: float = constant(0.0, "share", "tensor-parallel transfers hidden under their product")
    expert_overlap_share: float = constant(0.0, "share", "expert all-to-all hidden under compute")
    # late prefetch
    fsdp_exposed_share: float = constant(
        0.08, "share", "shorter of compute and ZeRO-3 traffic that still shows"
    )
    host_s_per_layer: float = constant(0.0, "s", "host time to launch one layer's forward")
    host_s_per_collective: float = constant(0.0, "s", "host time of a blocking tensor-parallel collective")
    host_s_per_microbatch: float = constant(0.0, "s", "host time of a microbatch outside its layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackMemory:
    """What an engine keeps on a GPU: bytes of a parameter's state, activations, and the runtime's own.

    A `constant` carries its own meaning.

    Attributes:
        reduces_by_unit: Layers, embedding and head are units of their own: the whole gradient of a unit
            exists until its backward ends, and with sharded gradients in the reduction's precision until the
            next unit's does; the head's buffers are gone when the layers' are needed.
        keeps_activated_gate: Where elementwise kernels are not fused, the activated gate is kept beside the
            gate (autograd's own product rule); False where a hand-written backward computes it again.
        keeps_partial_sums: ``selective-op`` keeps what a message carried too: the product of a row-parallel
            projection beside its reduced part, and the rows that experts exchange.
        keeps_gathered_keys: All-gathered context parallelism keeps the keys and values of all ranks from
            forward to backward; otherwise they are gathered again.
        keeps_wide_norms: A norm is a chain of operations in fp32 (eager Hugging Face): it keeps its input in
            fp32 and, where its weight is trained, the normed values in sixteen bits.
        frees_in_backward: The backward of a layer runs operation by operation, and what the later ones kept
            is free before the earlier ones need room (eager autograd).
        ends_in_root_unit: Embedding and head are one unit, gathered all the step; the head's gradient waits
            in it, in the gather precision, until the end.
        holds_frozen_inputs: At ZeRO-3 the hook that reshards a unit of frozen weights holds what its backward
            made of the unit's input beside the input, until the end of the backward (FSDP1).
        sums_context_in_fp32: All-gathered context parallelism goes through the gathered keys block by block
            and sums gradients in fp32, those of keys and values on their way from rank to rank (torch).
        keeps_expert_outputs: Routing weights multiply what experts give back, which is kept for their
            gradient; otherwise they are applied at the activation.
        weighs_experts_wide: The same in fp32: what experts give back is kept as a wide copy.
        keeps_wide_inputs: Linear layers of fewer than sixteen bits keep their input in sixteen (torchao).
        keeps_narrow_gates: In eight-bit jobs the input of a feed-forward's activation is kept in eight bits.
        keeps_odd_products: ``selective-op`` counts products and keeps the odd ones; none of experts.
        frees_loss: What the loss holds is free before the layers' backward, and gradients that no earlier
            microbatch left do not exist at it: the peak is the largest of these moments (torch's autograd).
        gradients_on_demand: A gradient exists from its first microbatch's backward on, not all the step.
        offloads_gradients: A gradient goes to host memory as soon as it is reduced, where the optimizer's
            state is there; otherwise it stays (Megatron-Core's hybrid optimizer).
        updates_in_backward: A parameter is updated in its own backward, and its gradient goes: those of one
            layer or of the head exist at once (torchtune's `optimizer_in_bwd`).
        pages_moments: Moments lie in pages that the driver moves to the host where memory is short, beside
            what the allocator has (bitsandbytes' paged optimizers).
        second_shard: Ranks that share a second copy of what ZeRO-3 gathers, for the backward (hpZ of ZeRO++).
        kept_score_bytes: Bytes per score of unfused attention that its backward needs, without dropout.
        weight_bytes: Bytes per parameter of the weights that compute reads.
        frozen_weight_bytes: Bytes per parameter of weights beside adapters, where these are not quantised.
        gradient_bytes: Bytes per parameter of the stored gradient.
        bf16_sum_bytes: Bytes per parameter of the sum beside gradients in bf16 (fp32 ``grad_accum_dtype``).
        optimizer_bytes: Bytes per parameter of master weights and moments, and of what is sharded with them.
        moment_bytes: Those of AdamW's moments among them; other optimizers have their own instead.
        gradient_reduce_bytes: Bytes per parameter of gradient communication.
        parameter_gather_bytes: Bytes per parameter of parameter all-gathers.
        gathers_from_master: At ZeRO-3 the low-precision weights exist only while gathered.
        fp8_weight_copies: Eight-bit copies of a weight kept per parameter in fp8 training, in bytes.
        loss_chunks: Chunks in which the loss goes through the logits, each with its gradient: 1 keeps all
            logits, 0 takes as many chunks as the vocabulary has hidden sizes.
        bucket_bytes: Buffers that gradients are put into to be reduced, there whether replicas are or not
            (DeepSpeed's `reduce_bucket_size`, twice with `overlap_comm`); a job's are of replicas alone.
        gradient_scratch_bytes: Bytes per parameter of one matrix of each shape that fused weight-gradient
            accumulation keeps as a placeholder gradient.
    """

    reduces_by_unit: bool = False
    keeps_activated_gate: bool = True
    keeps_partial_sums: bool = False
    keeps_gathered_keys: bool = False
    keeps_wide_norms: bool = False
    frees_in_backward: bool = False
    ends_in_root_unit: bool = False
    holds_frozen_inputs: bool = False
    sums_context_in_fp32: bool = False
    keeps_expert_outputs: bool = False
    weighs_experts_wide: bool = False
    keeps_wide_inputs: bool = False
    keeps_narrow_gates: bool = False
    keeps_odd_products: bool = False
    frees_loss: bool = False
    gradients_on_demand: bool = False
    offloads_gradients: bool = False
    updates_in_backward: bool = False
    pages_moments: bool = False
    second_shard: int = 0
    kept_score_bytes: float = 2.0
    weight_bytes: float = 2.0
    frozen_weight_bytes: float = 2.0
    gradient_bytes: float = 4.0
    bf16_sum_bytes: float = 0.0
    optimizer_bytes: float = 12.0
    moment_bytes: float = 8.0
    gradient_reduce_bytes: float = 4.0
    parameter_gather_bytes: float = 2.0
    gathers_from_master: bool = False
    fp8_weight_copies: float = 0.0
    loss_chunks: int = 1
    bucket_bytes: float = 0.0
    gradient_scratch_bytes: float = 0.0
    fragmentation: float = constant(1.0, "ratio", "reserved over allocated memory of the caching allocator")
    context_bytes: float = constant(0.0, "GiB", "CUDA context and libraries on a GPU, outside the allocator")
    communicator_bytes: float = constant(0.0, "GiB", "buffers of one collective communicator")
    loss_bytes_per_logit: float = constant(10.0, "bytes", "alive per logit at the peak of the loss")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSupport:
    """What an engine can do, and what it does where nobody says.

    Attributes:
        schedules: Pipeline schedules it has.
        recomputes: Recompute policies it has.
        cp_kinds: Context-parallel exchanges it has.
        axis_orders: Rank orders it can place, slowest axis first; empty means any.
        zero_stages: ZeRO stages it has.
        zero_stages_with_pipeline: ZeRO stages it allows when pp > 1.
        zero_stages_with_split_backward: ZeRO stages it allows with zero-bubble schedules, which finish weight
            gradients after the backward pass.
        partial_zero_stages: ZeRO stages whose state it can shard over a part of the replicas (HSDP).
        experts_need_sequence_parallel: With tp > 1, experts take tokens split over tp only.
        expert_parallel: It can split experts.
        tensor_parallel: It can split matrices.
        context_parallel: It can split sequences.
        pipeline_parallel: It can split the model into stages.
        replicates_alone: Replicas that share no state (DDP) combine with no other axis.
        microbatches_at_least_stages: A pipeline needs at least pp microbatches.
        interleaved_multiple_of_stages: Interleaving needs microbatches divisible by pp.
        interleaves_by_default: Recipes cut a pipeline into as many chunks as layers divide into, where a run
            does not say.
        uneven_stages: Stages may have different numbers of layers.
        empty_end_chunks: Interleaved, the first chunk may hold only the embedding, the last only the head.
        sequence_parallel_default: Sequence parallelism is on whenever tp > 1 unless a run says otherwise.
        further_tokens: It trains modules that predict further tokens (multi-token prediction).
        recurrent_context: Context ranks exchange heads for tokens around a recurrence, whose state goes
            through a sequence in order; without it such sequences are whole.
    """

    schedules: tuple[Schedule, ...] = (PLAIN_SCHEDULE,)
    recomputes: tuple[Recompute, ...] = ("none", "selective", "full")
    cp_kinds: tuple[CpKind, ...] = ("ring",)
    axis_orders: tuple[tuple[str, ...], ...] = ()
    zero_stages: tuple[int, ...] = (0, 1)
    zero_stages_with_pipeline: tuple[int, ...] = (0, 1)
    zero_stages_with_split_backward: tuple[int, ...] = (0, 1, 2, 3)
    partial_zero_stages: tuple[int, ...] = ()
    experts_need_sequence_parallel: bool = False
    expert_parallel: bool = True
    tensor_parallel: bool = True
    context_parallel: bool = True
    pipeline_parallel: bool = True
    replicates_alone: bool = False
    microbatches_at_least_stages: bool = False
    interleaved_multiple_of_stages: bool = True
    interleaves_by_default: bool = False
    uneven_stages: bool = True
    empty_end_chunks: bool = False
    sequence_parallel_default: bool = True
    further_tokens: bool = False
    recurrent_context: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOrigin:
    """Which measured runs a profile describes, and where its values come from.

    Attributes:
        frameworks: Beginnings of the `framework` column of measured runs that this profile describes.
        repositories: Parts of the `url` column that name whose own copy of that engine ran, with the settings
            of their launch scripts.
        successor: Profile of the same engine some versions later; a run that uses what this one lacks (fused
            attention, a recompute policy) is one of it. Empty if there is none.
        calibrated: Measured runs of it determined its constants.
        plausible: An engine that nobody knows may be like it: one of those that people train with today.
        source: Where the values come from.
        as_of: Date of that source.
    """

    frameworks: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    successor: str = ""
    calibrated: bool = True
    plausible: bool = False
    source: str = ""
    as_of: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareStack:
    """One training engine as the cost model sees it.

    Attributes:
        name: The name users give to ``--stack``.
        description: What it is, in one line.
        timing: What it runs and overlaps, and how fast.
        memory: What it keeps on a GPU.
        supports: What it can do.
        origin: Runs it describes, and sources.
        measured: Level of the user's own runs of it; None before any was measured.
    """

    name: str
    description: str
    timing: StackTiming = StackTiming()
    memory: StackMemory = StackMemory()
    supports: StackSupport = StackSupport()
    origin: StackOrigin = StackOrigin()
    measured: StackLevel | None = None

    @property
    def level(self) -> float:
        """Factor of the user's own runs on every time of a step, 1 before any was measured."""
        return 1.0 if self.measured is None else self.measured.level


@functools.cache
def stacks() -> Mapping[str, SoftwareStack]:
    """Every shipped profile by name."""
    from topology.base.decode import structure

    profiles = {}
    for name, entry in resolve_bases(_table()).items():
        groups = {key: value for key, value in entry.items() if key != "switches"}
        profile = structure({"name": name, **groups}, SoftwareStack, f"{STACKS_FILE.name}: {name}")
        profiles[name] = with_switches(profile, entry.get("switches", {}))
    return profiles


@functools.cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    """The file of profiles as it is."""
    from topology.base.decode import read_toml

    return read_toml(STACKS_FILE)


def stated_fields() -> Mapping[str, frozenset[str]]:
    """Fields that each shipped profile states itself, by profile; the others are those of its base."""
    return {name: frozenset(_flat(entry)) for name, entry in _table().items()}


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a profile without their groups; no two groups have a field of one name."""
    groups = [value for value in entry.values() if isinstance(value, Mapping)]
    return {name: value for group in groups for name, value in group.items()}


def bases() -> Mapping[str, str]:
    """Base of every shipped profile that has one."""
    return {name: entry["base"] for name, entry in _table().items() if "base" in entry}


def resolve_bases(table: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Give every profile the entries of its ``base`` where it has none of its own.

    >>> resolve_bases({"a": {"timing": {"x": 1, "y": 2}}, "b": {"base": "a", "timing": {"y": 3}}})["b"]
    {'timing': {'x': 1, 'y': 3}}
    """
    return {name: _with_base(table, name, ()) for name in table}


def _with_base(table: Mapping[str, Mapping[str, Any]], name: str, above: tuple[str, ...]) -> dict[str, Any]:
    """Entries of a profile over those of its base, and of the base's own."""
    base = table[name].get("base")
    if base is None:
        return dict(table[name])
    line = (*above, name, str(base))
    if base not in table or base in line[:-1]:
        raise InputError(
            f"profile {name} has no usable base",
            f"{' is based on '.join(line)}, which " + ("is missing" if base not in table else "comes back"),
            f"name one of {', '.join(table)} that does not lead back",
        )
    with_base = _with_base(table, base, (*above, name))
    for key, value in table[name].items():
        with_base[key] = {**with_base.get(key, {}), **value} if isinstance(value, Mapping) else value
    return {key: value for key, value in with_base.items() if key != "base"}


def stack(name: str) -> SoftwareStack:
    """Give the profile of this name, leniently spelled.

    >>> stack("torchtitan").timing.flash_attention
    True
    """
    from topology.base.names import resolve

    profiles = stacks()
    return profiles[resolve(name, tuple(profiles), "stack")]


def plausible_stacks() -> tuple[SoftwareStack, ...]:
    """Profiles that an engine which nobody knows may be like, the usual one first."""
    named = {name for name, stated in stated_fields().items() if "plausible" in stated}
    return tuple(profile for name, profile in stacks().items() if name in named)


def is_known(framework: str) -> bool:
    """Whether a profile describes a `framework` column.

    >>> is_known("Megatron-LM v3.0"), is_known("Axon")
    (True, False)
    """
    lowered = framework.lower()
    return any(start.lower() in lowered for s in stacks().values() for start in s.origin.frameworks)


def stack_of_framework(framework: str, repository: str = "") -> SoftwareStack:
    """Give the profile that describes a `framework` column; the longest matching beginning wins.

    Of an engine that none describes (`is_known`), the first of the `plausible_stacks`. A copy of that engine
    kept in `repository` (the `url` column) has a profile of its own where its launch scripts are known to
    differ.

    >>> stack_of_framework("Megatron-LM (zero-bubble fork)").name
    'megatron-lm-2022'
    """
    profiles = stacks()
    lowered = framework.lower()
    matches = [
        (len(start), name)
        for name, s in profiles.items()
        for start in s.origin.frameworks
        if start.lower() in lowered
    ]
    name = max(matches)[1] if matches else plausible_stacks()[0].name
    copies = (
        copy
        for copy, base in bases().items()
        if base == name and any(part in repository.lower() for part in profiles[copy].origin.repositories)
    )
    return profiles[next(copies, name)]
