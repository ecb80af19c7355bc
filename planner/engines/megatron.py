"""A plan as Megatron-LM command-line arguments."""

from __future__ import annotations

from costmodel.kernels.precisions import TRAINING
from costmodel.models.spec import ModelSpec
from costmodel.stack import stack
from planner.engines.facts import Exported, is_even, refuse_axes, schedule_name
from planner.engines.megatron_model import expert_arguments, model_arguments, not_said
from planner.engines.quoting import shell
from planner.plan import Plan

TARGET = "megatron"
_CP = {"ring": "p2p", "ulysses": "a2a", "allgather": "all_gather"}


def arguments(plan: Plan) -> list[str]:
    """Words of the command line that decide parallelism, batch and model shape."""
    layout, job = plan.layout, plan.request.job
    refuse_axes(TARGET, layout, ("tp", "cp", "pp", "dp", "ep", "expert_tp"))
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
        words += ["--overlap-grad-reduce", "--overlap-param-gather"] if layout.replicas > 1 else []
    if layout.axis_order[0] == "dp":
        words.append("--use-tp-pp-dp-mapping")
    return words + _recompute(plan) + _precision(plan)


def _pipeline(plan: Plan) -> list[str]:
    """Stages: even ones by count, uneven ones by a layout string (E embedding, t layer, L loss)."""
    layout = plan.layout
    if layout.pp == 1:
        return []
    schedule_name(TARGET, layout)  # the words below say which: several virtual stages are interleaved
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
        "--moe-token-dispatcher-type", "alltoall",
        "--moe-grouped-gemm",
    ]  # fmt: skip
    return words + expert_arguments(model)


def _model(plan: Plan) -> list[str]:
    """The model, its padded vocabulary, and no dropout where the stack has none."""
    model = plan.request.model
    words = model_arguments(model)
    words += ["--make-vocab-size-divisible-by", str(vocabulary_multiple(model.vocab_size, plan.layout.tp))]
    if not stack(plan.request.stack).timing.dropout:
        words += ["--attention-dropout", "0", "--hidden-dropout", "0"]
    return words


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
    record = TRAINING[plan.request.job.precision]
    return [f"--{record.half}", *record.engine_words.get(TARGET, ())]


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
    """What is left to the user, and what of the model Megatron's arguments do not say."""
    lost = not_said(model)
    tokenizer = (
        f"choose the tokenizer: its vocabulary, at most {model.vocab_size:,}, is padded to the model's"
    )
    return [tokenizer] + ([f"not exported, the model differs: {', '.join(lost)}"] if lost else [])
