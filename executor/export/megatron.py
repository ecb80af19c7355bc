"""A plan as Megatron-LM command-line arguments."""

from __future__ import annotations

from costmodel.model import ModelSpec
from costmodel.stack import stack
from executor.export.facts import Exported, is_even, refuse
from executor.export.quoting import shell
from planner.plan import Plan

TARGET = "megatron"
_SCHEDULES = ("1f1b", "interleaved")
_CP = {"ring": "p2p", "ulysses": "a2a", "allgather": "all_gather"}


def arguments(plan: Plan) -> list[str]:
    """Words of the command line that decide parallelism, batch and model shape."""
    layout, job = plan.layout, plan.request.job
    words = [
        "--tensor-model-parallel-size", str(layout.tp),
        "--pipeline-model-parallel-size", str(layout.pp),
        "--context-parallel-size", str(layout.cp),
        "--micro-batch-size", str(layout.microbatch_size),
        "--global-batch-size", str(job.global_batch_size),
        "--seq-length", str(job.sequence_length),
        "--max-position-embeddings", str(max(job.sequence_length, plan.request.model.max_sequence_length)),
    ]  # fmt: skip
    words += _pipeline(plan) + _experts(plan) + _model(plan)
    if layout.sequence_parallel and layout.tp > 1:
        words.append("--sequence-parallel")
    if layout.cp > 1:
        words += ["--cp-comm-type", _CP[layout.cp_kind]]
    if layout.zero_stage:
        words.append("--use-distributed-optimizer")
        words += ["--overlap-grad-reduce", "--overlap-param-gather"] if layout.dp * layout.cp > 1 else []
    if layout.axis_order[0] == "dp":
        words.append("--use-tp-pp-dp-mapping")
    return words + _recompute(plan) + _precision(plan)


def _pipeline(plan: Plan) -> list[str]:
    """Stages: even ones by count, uneven ones by a layout string (E embedding, t layer, L loss)."""
    layout = plan.layout
    if layout.schedule not in _SCHEDULES and layout.pp > 1:
        raise refuse(
            TARGET, f"schedule {layout.schedule}", "it has 1f1b and interleaved", "set layout.schedule"
        )
    if layout.pp == 1:
        return []
    counts = plan.layers_of_stage
    if not is_even(counts):
        stages = ["t" * count for count in counts]
        stages[0], stages[-1] = "E" + stages[0], stages[-1] + "L"
        return ["--pipeline-model-parallel-layout", "|".join(stages)]
    if layout.virtual_stages > 1:
        return ["--num-virtual-stages-per-pipeline-rank", str(layout.virtual_stages)]
    return []


def _experts(plan: Plan) -> list[str]:
    """Experts and how they are split."""
    layout, model = plan.layout, plan.request.model
    if not model.is_moe:
        return []
    words = [
        "--expert-model-parallel-size", str(layout.ep),
        "--expert-tensor-parallel-size", str(layout.expert_tp),
        "--num-experts", str(model.num_experts),
        "--moe-router-topk", str(model.num_experts_per_token),
        "--moe-ffn-hidden-size", str(model.moe_intermediate_size),
        "--moe-token-dispatcher-type", "alltoall",
        "--moe-grouped-gemm",
    ]  # fmt: skip
    if model.num_dense_layers:
        dense, moe = model.num_dense_layers, model.num_layers - model.num_dense_layers
        words += ["--moe-layer-freq", f"([0]*{dense}+[1]*{moe})"]
    if model.shared_expert_size:
        words += ["--moe-shared-expert-intermediate-size", str(model.shared_expert_size)]
    return words


def _model(plan: Plan) -> list[str]:
    """Sizes of the model."""
    model = plan.request.model
    words = [
        "--num-layers", str(model.num_layers),
        "--hidden-size", str(model.hidden_size),
        "--ffn-hidden-size", str(model.intermediate_size),
        "--num-attention-heads", str(model.num_attention_heads),
        "--kv-channels", str(model.head_dim),
    ]  # fmt: skip
    if model.num_key_value_heads != model.num_attention_heads and not model.is_mla:
        words += ["--group-query-attention", "--num-query-groups", str(model.num_key_value_heads)]
    words += ["--swiglu"] if model.gated_mlp else []
    words += ["--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"]
    words += ["--apply-layernorm-1p"] if model.norm == "layernorm1p" else []
    words += ["--qk-layernorm"] if model.qk_norm or model.is_mla else []  # MLA norms its latent vectors
    words += [] if model.learned_positions else ["--position-embedding-type", "rope"]
    words += _biases(model)
    if not stack(plan.request.stack).dropout:
        words += ["--attention-dropout", "0", "--hidden-dropout", "0"]
    words += ["--make-vocab-size-divisible-by", str(vocabulary_multiple(model.vocab_size, plan.layout.tp))]
    if model.is_mla:
        words += ["--multi-latent-attention", "--kv-lora-rank", str(model.kv_lora_rank)]
        words += ["--q-lora-rank", str(model.q_lora_rank)] if model.q_lora_rank else []
        words += ["--qk-head-dim", str(model.qk_nope_head_dim), "--v-head-dim", str(model.v_head_dim)]
        words += ["--qk-pos-emb-head-dim", str(model.qk_rope_head_dim)]
    return words if model.tie_word_embeddings else [*words, "--untie-embeddings-and-output-weights"]


def _biases(model: ModelSpec) -> list[str]:
    """Biases: in every linear layer by default, else in none but those of q, k and v."""
    if _biased_everywhere(model):
        return []
    return ["--disable-bias-linear", *(["--add-qkv-bias"] if model.qkv_bias else [])]


def _biased_everywhere(model: ModelSpec) -> bool:
    """Whether every linear layer of attention and feed-forward has a bias."""
    return model.qkv_bias and model.attention_output_bias and model.mlp_bias


def vocabulary_multiple(vocab_size: int, tp: int) -> int:
    """The factor that, times tp, Megatron pads a tokenizer's vocabulary to a multiple of.

    One multiple is the model's whole vocabulary, which families pad by rules of their own.

    >>> vocabulary_multiple(128256, 8), vocabulary_multiple(50257, 2)
    (16032, 25129)
    """
    return -(-vocab_size // tp)


def _recompute(plan: Plan) -> list[str]:
    """Recomputation; Megatron takes one count for all stages, the plan's largest."""
    layout = plan.layout
    if layout.recompute in ("selective", "selective-op"):
        return ["--recompute-granularity", "selective"]
    most = max(plan.recompute_of_stage, default=0)
    if layout.recompute == "none" or not most:
        return []
    per_chunk = -(-most // layout.virtual_stages)
    words = ["--recompute-granularity", "full", "--recompute-method", "block"]
    return [*words, "--recompute-num-layers", str(per_chunk)]


def _precision(plan: Plan) -> list[str]:
    """Number format."""
    precision = plan.request.job.precision
    if precision == "fp16":
        return ["--fp16"]
    recipe = {
        "fp8": ["--fp8-format", "hybrid"],
        "mxfp8": ["--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"],
        "nvfp4": ["--fp4-format", "e2m1", "--fp4-recipe", "nvfp4"],
    }
    return ["--bf16", *recipe.get(precision, [])]


def export(plan: Plan) -> Exported:
    """Write the arguments as a shell array to source."""
    words = arguments(plan)
    lines, line = [], ""
    for word in words:
        if word.startswith("--") and line:
            lines.append(line)
            line = ""
        line = f"{line} {shell(word)}".strip()
    body = "\n".join(f"  {text}" for text in [*lines, line])
    head = '# Megatron-LM arguments: source this file, then pass "${MEGATRON_ARGS[@]}" to pretrain_gpt.py'
    text = f"{head}\nMEGATRON_ARGS=(\n{body}\n)\n"
    return Exported(
        target=TARGET,
        file_name="megatron_args.sh",
        text=text,
        notes=(*_notes_on_layout(plan), *_notes_on_model(plan.request.model)),
    )


def _notes_on_layout(plan: Plan) -> list[str]:
    """What Megatron does otherwise than the plan."""
    notes = []
    if plan.layout.zero_stage > 1:
        notes.append(f"ZeRO-{plan.layout.zero_stage} becomes the distributed optimizer (ZeRO-1)")
    if plan.layout.recompute == "full" and len(set(plan.recompute_of_stage)) > 1:
        notes.append("recomputed layers differ by stage in the plan; Megatron takes the largest for all")
    if plan.layout.recompute == "selective-op":
        notes.append("selective-op becomes Megatron's selective recomputation of the attention core")
    if plan.request.model.is_moe and plan.layout.shard_degree:
        notes.append("partial sharding (shard_degree) is not exported")
    return notes


def _notes_on_model(model: ModelSpec) -> list[str]:
    """What a plan does not know of its model, and what of it Megatron's arguments here do not say."""
    rotary = [] if model.learned_positions else ["--rotary-base (rope_theta)", "rope scaling"]
    unknown = ", ".join(["--norm-epsilon", *rotary])
    missing = {
        "biases of attention's output or the feed-forward alone": not _biased_everywhere(model)
        and (model.attention_output_bias or model.mlp_bias),
        "four norms per layer": model.norms_per_layer > 2,
        "windowed attention": model.num_sliding_layers > 0,
        "attention sinks": model.attention_sinks,
        "the router's bias": model.router_bias,
    }
    notes = [
        f"a plan holds sizes only: set {unknown} from the model's config.json",
        f"choose the tokenizer: its vocabulary, at most {model.vocab_size:,}, is padded to the model's",
    ]
    lost = [name for name, has in missing.items() if has]
    return notes + ([f"not exported, the model differs: {', '.join(lost)}"] if lost else [])
