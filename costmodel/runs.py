"""Measured training runs: the CSV schema, and what each row says was run.

One row is one measured step: sizes of the model, cluster, engine, layout, seconds per step and often peak
memory. The schema is that of ``training_runs.csv``; optional columns may be missing or empty, and a row
that says too little, or something the model cannot express, is unsupported with its reason.

A model with the sizes of a catalogued one that has experts, latent or windowed attention, or an unusual
head size takes those details from there, whatever its number of layers: published benchmarks often truncate
models to fit a node.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.layout import ParallelLayout, Recompute, Schedule
from costmodel.model import ModelSpec
from costmodel.model_catalog import models
from costmodel.run_table import SURPLUS, Row, read_table, require_columns
from costmodel.stack import SoftwareStack, stack_of_framework
from costmodel.workload import TrainingJob, TrainingPrecision
from topology.builders import default_cluster
from topology.catalog import cluster
from topology.cluster import Cluster
from topology.errors import InputError
from topology.units import GBIT, GIB

PUBLISHED_RUNS = Path(__file__).parent / "data" / "published_runs.csv"

REQUIRED = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "sequence_length",
    "gpu",
    "num_gpus",
    "global_batch_size",
    "step_time_s",
)
DEFAULT_VOCABULARY = 51_200  # GPT-2's vocabulary padded for tensor parallelism, what rows leave out most
NODE_GPUS = 8
MOST_STAGES = 16_384  # no published pipeline comes near; a larger number is a typing error
END_SLOTS = 2  # some recipes count the embedding and the head as pipeline slots
PROCESS_MEMORY_STACKS = ("megatron-deepspeed",)  # BLOOM's logs print nvidia-smi
_SCHEDULES: Mapping[str, Schedule] = {
    "": "1f1b",
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "1f1bi": "interleaved",
    "interleaved": "interleaved",
    "interleaved1f1b": "interleaved",
    "zbh1": "zb-h1",
    "zb1p": "zb-h1",
    "zbh2": "zbv",
    "zbv": "zbv",
    "dualpipe": "dualpipev",
    "dualpipev": "dualpipev",
}
_PRECISIONS: Mapping[str, TrainingPrecision] = {
    "": "bf16",
    "bf16": "bf16",
    "fp16": "fp16",
    "amp": "bf16",
    "fp8": "fp8",
    "mxfp8": "mxfp8",
    "nvfp4": "mxfp8",
    "fp4": "mxfp8",
}


class UnsupportedRunError(Exception):
    """A row that does not say enough, or something the cost model cannot express; the message says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """One measured row, decoded.

    Attributes:
        name: The row's id.
        source: Who published it.
        framework: The engine as the row names it.
        model: What was trained.
        cluster: On what.
        job: How long and how many sequences.
        stack: The profile of the engine, with what the row says of attention and overlap.
        layout: How it was split.
        recomputed_share: Share of the layers recomputed in full.
        step_time_s: Measured seconds per step.
        peak_memory_bytes: Measured peak of a GPU, None where not published.
        process_memory: That peak is of the whole process (``nvidia-smi``), not of the framework's allocator.
        out_of_memory: The run did not fit.
    """

    name: str
    source: str
    framework: str
    model: ModelSpec
    cluster: Cluster
    job: TrainingJob
    stack: SoftwareStack
    layout: ParallelLayout
    recomputed_share: float
    step_time_s: float | None
    peak_memory_bytes: float | None
    process_memory: bool
    out_of_memory: bool


def read_rows(path: Path | str) -> list[Row]:
    """Rows of a CSV of training runs; raises `InputError` when the file holds none."""
    table = read_table(path)
    require_columns(table, REQUIRED[:-1], path, "training")
    return list(table.rows)


def shipped_runs() -> list[Row]:
    """Published runs that the package itself carries, each with its source and address."""
    return read_rows(PUBLISHED_RUNS)


def read_run(row: Row, index: int = 0) -> TrainingRun:
    """Decode one row; raises `UnsupportedRunError` with the reason when it cannot be predicted."""
    if row.get(SURPLUS):
        raise UnsupportedRunError("more cells than columns: is a text with a comma unquoted?")
    missing = [name for name in REQUIRED[:-1] if not row.get(name)]
    if missing:
        raise UnsupportedRunError(f"no {', '.join(missing)}")
    layout = _layout(row)
    measured = row.get("step_time_s", "")
    memory = row.get("peak_memory_gib", "")
    out_of_memory = row.get("oom", "") in ("1", "1.0", "true", "True")
    if not measured and not memory and not out_of_memory:
        raise UnsupportedRunError("no step_time_s, peak_memory_gib or oom to compare with")
    stack = _stack(row)
    if not row.get("sequence_parallel") and layout.tp > 1 and stack.sequence_parallel_default:
        layout = replace(layout, sequence_parallel=True)
    return TrainingRun(
        name=row.get("id") or f"row {index + 1}",
        source=row.get("source") or "unnamed",
        framework=row.get("framework", ""),
        model=_model(row, stack),
        cluster=_cluster(row, layout),
        job=_job(row, layout),
        stack=stack,
        layout=layout,
        recomputed_share=_recomputed_share(row, layout),
        step_time_s=_number(row, "step_time_s") if measured else None,
        peak_memory_bytes=_number(row, "peak_memory_gib") * GIB if memory else None,
        process_memory=stack.name in PROCESS_MEMORY_STACKS or "nvidia-smi" in row.get("note", "").lower(),
        out_of_memory=out_of_memory,
    )


def _number(row: Row, name: str, default: float | None = None) -> float:
    """A positive finite number; `default` where the cell is empty."""
    text = row.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf") or (value == 0 and default != 0):
        raise UnsupportedRunError(f"{name} = {text!r} is not a positive number")
    return value


def _count(row: Row, name: str, default: int | None = None) -> int:
    """A positive whole number; `default` where the cell is empty."""
    value = _number(row, name, None if default is None else float(default))
    if value != int(value):
        raise UnsupportedRunError(f"{name} = {row.get(name)} is not a whole number")
    return int(value)


def _flag(row: Row, name: str, *, default: bool) -> bool:
    """A yes or no."""
    text = row.get(name, "").lower()
    return default if not text else text in ("1", "1.0", "true", "yes")


def _layout(row: Row) -> ParallelLayout:
    """How the row split its GPUs; degrees that are not stated are one, dp is what remains."""
    tp, pp, cp, ep = (_count(row, name, 1) for name in ("tp", "pp", "cp", "ep"))
    gpus = _count(row, "num_gpus")
    dp = _count(row, "dp", max(1, gpus // (tp * pp * cp)))
    if dp * tp * pp * cp != gpus:
        raise UnsupportedRunError(f"dp·cp·tp·pp = {dp}·{cp}·{tp}·{pp} = {dp * cp * tp * pp}, not {gpus} GPUs")
    if (dp * cp * tp) % ep:
        raise UnsupportedRunError(f"ep = {ep} does not divide dp·cp·tp = {dp * cp * tp}")
    virtual = _count(row, "virtual_stages", _usual_chunks(row, pp))
    if pp * virtual > min(_count(row, "num_layers") + END_SLOTS, MOST_STAGES):
        raise UnsupportedRunError(f"pp·virtual_stages = {pp}·{virtual} stages for {row['num_layers']} layers")
    zero_stage = int(_number(row, "zero_stage", 0.0))
    shards = _count(row, "shard_degree", dp * cp)
    if zero_stage > 3 or (dp * cp) % min(shards, dp * cp):
        raise UnsupportedRunError(f"zero_stage {zero_stage} over {shards} of {dp * cp} replicas")
    return ParallelLayout(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        expert_tp=_count(row, "expert_tp", 1),
        virtual_stages=_virtual_stages(row, pp, virtual),
        microbatch_size=_count(row, "microbatch_size", 1),
        schedule=_schedule(row, pp, virtual),
        zero_stage=zero_stage,
        shard_degree=None if shards >= dp * cp else shards,
        recompute=_recompute(row)[0],
        sequence_parallel=_flag(row, "sequence_parallel", default=False) and tp > 1,
    )


def _usual_chunks(row: Row, pp: int) -> int:
    """Chunks per rank where a row does not say: Megatron-Core recipes interleave layer by layer."""
    layers, stack = _count(row, "num_layers"), stack_of_framework(row.get("framework", ""))
    interleaves = stack.name == "megatron-core" and not row.get("schedule") and layers % pp == 0
    return layers // pp if interleaves and pp > 1 else 1


def _schedule(row: Row, pp: int, virtual: int) -> Schedule:
    """The pipeline schedule a row names; several chunks per rank mean interleaving by default."""
    name = "".join(letter for letter in row.get("schedule", "").lower() if letter.isalnum())
    if name not in _SCHEDULES:
        raise UnsupportedRunError(f"unknown schedule {row['schedule']!r}")
    schedule = _SCHEDULES[name]
    if pp == 1:
        return "1f1b"
    if schedule in ("1f1b", "interleaved"):
        return "interleaved" if virtual > 1 else "1f1b"
    return schedule


def _virtual_stages(row: Row, pp: int, virtual: int) -> int:
    """Chunks per rank; the V-shaped schedules have two whatever the row says."""
    if pp == 1:
        return 1
    return 2 if _schedule(row, pp, virtual) in ("zbv", "dualpipev") else virtual


def _recompute(row: Row) -> tuple[Recompute, float]:
    """Recompute policy, and how many layers of a rank it names (infinite: all, or a share below one)."""
    text = row.get("recompute", "").lower()
    if text.startswith("full:"):
        if not text[5:].isdigit():
            raise UnsupportedRunError(f"recompute = {text!r} names no number of layers")
        return "full", float(text[5:])
    table: Mapping[str, tuple[Recompute, float]] = {
        "": ("none", 0.0),
        "none": ("none", 0.0),
        "selective": ("selective", 0.0),
        "selective-op": ("selective-op", 0.0),
        "selective-layer": ("full", 0.5),
        "full": ("full", float("inf")),
        "block": ("full", float("inf")),
        "uniform": ("full", float("inf")),
    }
    if text not in table:
        raise UnsupportedRunError(f"unknown recompute policy {text!r}")
    return table[text]


def _recomputed_share(row: Row, layout: ParallelLayout) -> float:
    """Share of the layers recomputed in full: ``full:N`` names N layers of every pipeline rank."""
    policy, layers = _recompute(row)
    if policy != "full":
        return 0.0
    if layers < 1:
        return layers
    return min(1.0, layers * layout.pp / _count(row, "num_layers"))


def _stack(row: Row) -> SoftwareStack:
    """The profile of the row's engine, with what the row says of its attention, overlap and graphs."""
    stack = stack_of_framework(row.get("framework", ""))
    note = row.get("note", "").lower()
    if row.get("flash_attention"):
        stack = replace(stack, flash_attention=_flag(row, "flash_attention", default=True))
    if "async tp" in note:
        stack = replace(stack, tp_overlap_share=max(stack.tp_overlap_share, ASYNC_TP_SHARE))
    if any(script in row.get("url", "") for script in BLOCKING_SCRIPTS):
        stack = replace(stack, blocking_launches=True)
    if "_cg" in note or "cuda graph" in note:
        stack = replace(stack, cuda_graphs=True)
    return stack


BLOCKING_SCRIPTS = ("bigscience-workshop/bigscience",)
"""Publishers whose launch scripts set CUDA_LAUNCH_BLOCKING=1 (train/tr11-176B-ml/tr11-176B-ml.slurm)."""

ASYNC_TP_SHARE = 0.5  # of tensor-parallel transfers that torch's asynchronous TP hides


def _model(row: Row, stack: SoftwareStack) -> ModelSpec:
    """The row's model: details of a catalogued one of these sizes, or a plain GPT or Llama of them."""
    try:
        return _sized_model(
            tuple(sorted((name, row.get(name, "")) for name in _SIZES)), stack.flash_attention
        )
    except InputError as impossible:
        raise UnsupportedRunError(f"{impossible.what}: {impossible.cause}") from impossible


_SIZES = (
    "model",
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "gated_mlp",
    "tie_word_embeddings",
    "num_experts",
    "num_experts_per_token",
    "sequence_length",
)


@functools.lru_cache(maxsize=4096)
def _sized_model(sizes: tuple[tuple[str, str], ...], modern: bool) -> ModelSpec:
    """Build a model from the size columns of a row."""
    row = dict(sizes)
    heads, hidden = _count(row, "num_attention_heads"), _count(row, "hidden_size")
    experts = int(_number(row, "num_experts", 0.0))
    width = _count(row, "intermediate_size", 4 * hidden)
    gated = _flag(row, "gated_mlp", default=modern)
    known = _catalogued(hidden, heads, width, experts, gated=gated)
    layers = _count(row, "num_layers")
    vocabulary = _count(row, "vocab_size", known.vocab_size if known else DEFAULT_VOCABULARY)
    tied = _flag(row, "tie_word_embeddings", default=known.tie_word_embeddings if known else not gated)
    if known:
        truncated = layers < known.num_layers
        dense = min(known.num_dense_layers, 1) if truncated else known.num_dense_layers
        sliding = known.num_sliding_layers * layers // known.num_layers
        return replace(
            known,
            name=row["model"] or known.name,
            num_layers=layers,
            num_key_value_heads=_count(row, "num_key_value_heads", known.num_key_value_heads),
            vocab_size=vocabulary,
            tie_word_embeddings=tied,
            num_dense_layers=min(dense, layers),
            num_sliding_layers=sliding,
        )
    return ModelSpec(
        name=row["model"] or "unnamed",
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=width,
        num_attention_heads=heads,
        num_key_value_heads=_count(row, "num_key_value_heads", heads),
        head_dim=_count(row, "head_dim", max(1, hidden // heads)),
        vocab_size=vocabulary,
        max_sequence_length=_count(row, "sequence_length"),
        tie_word_embeddings=tied,
        gated_mlp=gated,
        norm="rmsnorm" if gated else "layernorm",
        learned_positions=0 if gated else _count(row, "sequence_length"),
        qkv_bias=not gated,
        attention_output_bias=not gated,
        mlp_bias=not gated,
        num_experts=experts,
        num_experts_per_token=int(_number(row, "num_experts_per_token", 0.0)),
        moe_intermediate_size=width if experts else 0,
    )


def _catalogued(hidden: int, heads: int, width: int, experts: int, *, gated: bool) -> ModelSpec | None:
    """The first catalogued model of these sizes whose details sizes do not tell, if any."""
    for known in models().values():
        plain = known.head_dim * known.num_attention_heads == known.hidden_size and not known.sliding_window
        if plain and not known.is_moe:
            continue
        inner = known.moe_intermediate_size if known.is_moe else known.intermediate_size
        same = (known.hidden_size, known.num_attention_heads, inner, known.num_experts, known.gated_mlp)
        if same == (hidden, heads, width, experts, gated):
            return known
    return None


def _job(row: Row, layout: ParallelLayout) -> TrainingJob:
    """Sequence length, batch and precision."""
    batch = _count(row, "global_batch_size")
    if batch < layout.dp * layout.microbatch_size:
        raise UnsupportedRunError(
            f"global_batch_size {batch} < dp·microbatch_size = {layout.dp}·{layout.microbatch_size}"
        )
    name = row.get("precision", "").lower()
    if name not in _PRECISIONS:
        raise UnsupportedRunError(f"unknown precision {name!r}")
    return TrainingJob(
        sequence_length=_count(row, "sequence_length"), global_batch_size=batch, precision=_PRECISIONS[name]
    )


def _cluster(row: Row, layout: ParallelLayout) -> Cluster:
    """Where it ran: as a cluster file describes it, or the GPU's reference machine with the row's NICs."""
    per_node = count(row, "gpus_per_node", NODE_GPUS)
    nic = number(row, "nic_gbit_per_s_per_gpu", 0.0)
    try:
        if row.get("cluster"):
            return cluster(row["cluster"], layout.num_gpus)
        return _built(row["gpu"], layout.num_gpus, per_node, nic * GBIT or None)
    except InputError as unknown:
        raise UnsupportedRunError(f"{unknown.what}: {unknown.cause}") from unknown


@functools.lru_cache(maxsize=512)
def _built(gpu: str, gpus: int, per_node: int, nic_bytes_per_s: float | None) -> Cluster:
    """A cluster, built once per kind."""
    return default_cluster(gpu, gpus, gpus_per_node=per_node, nic_bandwidth_bytes_per_s=nic_bytes_per_s)


def read_runs(rows: Sequence[Row]) -> list[TrainingRun | UnsupportedRunError]:
    """Decode all rows, in order; those that cannot be predicted give their reason."""
    decoded: list[TrainingRun | UnsupportedRunError] = []
    for index, row in enumerate(rows):
        try:
            decoded.append(read_run(row, index))
        except UnsupportedRunError as reason:
            decoded.append(reason)
    return decoded
