"""Measured training runs: the CSV schema, and what each row says was run.

One row is one measured step: sizes of the model, cluster, engine, layout, seconds per step and often peak
memory. The schema is that of ``training_runs_v2.csv``; optional columns may be missing or empty, and a row
that says too little, or something the model cannot express, is unsupported with its reason.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.accuracy.csv_table import RunTable, read_table, require_columns
from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING, TrainingPrecision
from costmodel.kernels.tables import Calibration
from costmodel.layout import ParallelLayout
from costmodel.models.spec import ModelSpec
from costmodel.ops.op import FLOAT_BYTES
from costmodel.runs.cells import (
    Row,
    UnsupportedRunError,
    count,
    number_cell,
    require_cells,
    row_refusal,
    yes_no_cell,
)
from costmodel.runs.documents import document_tokens_of
from costmodel.runs.engine_recipes import with_recipes
from costmodel.runs.layout import chunk_layers_of, layout_of_row, recomputed_share
from costmodel.runs.limits import refuse_faster_than_peak, refuse_larger_than_memory
from costmodel.runs.model import STATED, model_of, with_sizes
from costmodel.runs.mtp import mtp_layers_of
from costmodel.runs.notes import stated
from costmodel.runs.recipe import RunRecipe, not_priced, recipe_of, with_recipe
from costmodel.stack import SoftwareStack, is_known, plausible_stacks, stack_of_framework, stacks
from costmodel.switches.profile import with_switches
from costmodel.switches.switch import switches
from costmodel.updates.adapters import EXAMPLE, parse_adapter
from costmodel.updates.offload import Offload, parse_offload
from topology.base.errors import InputError, shown
from topology.base.units import GB, GBIT, GIB, format_bytes
from topology.builders import default_cluster
from topology.catalog import cluster, machine_cluster
from topology.cluster import Cluster
from topology.hardware.datasheets import machines, reference_machine, sheet_named
from topology.hardware.gpu import Gpu

PUBLISHED_RUNS = Path(__file__).parents[1] / "data" / "published_runs.csv"

REQUIRED_TRAINING_COLUMNS = (
    *STATED,
    "sequence_length",
    "gpu",
    "num_gpus",
    "global_batch_size",
    "step_time_s",
)
NODE_GPUS = 8
PEAK_UNITS: Mapping[str, float] = {"GiB": GIB, "GB": GB}
"""Bytes of the units in which publishers print peaks of memory, both often called GB."""
PROCESS_MEMORY_STACKS = ("megatron-deepspeed", "megatron-deepspeed-bigscience")  # logs print nvidia-smi
_PRECISIONS: Mapping[str, TrainingPrecision] = {
    word: name for name, record in TRAINING.items() for word in record.run_names
}


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
        stack: The profile of the engine, with what the row says of its switches.
        stand_ins: Of an engine that no profile describes, the profiles that it may be like, with the same.
        networks: Where the row states none and nodes send to each other, the cluster with each network that
            machines of its GPU have, and how many have it; the reference machine's first.
        layout: How it was split.
        leanest: The same, with what the row does not state as it needs least memory.
        recomputed_share: Share of the layers recomputed in full.
        chunk_layers: Layers of every chunk in model order, where the row states them.
        recipe: What else the row states of how it ran.
        not_priced: What of that no term of the cost model answers to.
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
    stand_ins: tuple[SoftwareStack, ...]
    networks: tuple[tuple[int, Cluster], ...]
    layout: ParallelLayout
    leanest: ParallelLayout
    recomputed_share: float
    chunk_layers: tuple[int, ...]
    recipe: RunRecipe
    not_priced: tuple[str, ...]
    step_time_s: float | None
    peak_memory_bytes: float | None
    process_memory: bool
    out_of_memory: bool

    def case(self, cal: Calibration) -> Case:
        """What its layout is judged against, by these tables."""
        return Case(model=self.model, cluster=self.cluster, job=self.job, stack=self.stack, cal=cal)


def read_rows(path: Path | str) -> list[Row]:
    """Rows of a CSV of training runs; raises `InputError` when the file holds none."""
    return training_rows(read_table(path), path)


def training_rows(table: RunTable, path: Path | str) -> list[Row]:
    """Rows of a table of training runs.

    Where rows name their models, columns of sizes may be missing; the engine's may be called ``engine``.

    Raises:
        InputError: The table lacks a column that every run needs.
    """
    named = "model" in table.columns
    needed = tuple(name for name in REQUIRED_TRAINING_COLUMNS[:-1] if not (named and name in STATED))
    require_columns(table, needed, path, "training")
    if "engine" not in table.columns or "framework" in table.columns:
        return list(table.rows)
    return [{**row, "framework": row["engine"]} for row in table.rows]


def shipped_runs() -> list[Row]:
    """Published runs that the package itself carries, each with its source and address."""
    return read_rows(PUBLISHED_RUNS)


def read_run(row: Row, index: int = 0, *, trust_paths: bool = False) -> TrainingRun:
    """Decode one row; raises `UnsupportedRunError` with the reason when it cannot be predicted.

    Args:
        row: Cells by column.
        index: Its place in the table, its name where it has no id.
        trust_paths: Whether its `cluster` may name a file, which is then read.
    """
    row = with_sizes(row)
    require_cells(row, REQUIRED_TRAINING_COLUMNS[:-1])
    row = with_recipes(row)
    unsaid = "" if row.get("adapter") else _adapter(row)
    if unsaid:
        raise UnsupportedRunError(
            f"{unsaid} trains small matrices beside frozen weights: the column adapter says which ({EXAMPLE})"
        )
    layout = layout_of_row(row)
    measured = row.get("step_time_s", "")
    memory = row.get("peak_memory_gib", "")
    out_of_memory = yes_no_cell(row, "oom", default=False)
    if not measured and not memory and not out_of_memory:
        raise UnsupportedRunError("no step_time_s, peak_memory_gib or oom to compare with")
    recipe, note = recipe_of(row), row.get("note", "")
    stand_ins = _stand_ins(row, recipe, layout)
    stack = stand_ins[0] if stand_ins else _stack(row, recipe)
    if not row.get("sequence_parallel") and layout.tp > 1 and stack.supports.sequence_parallel_default:
        layout = replace(layout, sequence_parallel=True)
    if layout.cp_kind not in stack.supports.cp_kinds and stack.supports.cp_kinds:
        layout = replace(layout, cp_kind=stack.supports.cp_kinds[0])
    model, cluster, job = (
        model_of(row, stack),
        _cluster(row, layout, trust_paths=trust_paths),
        _job(row, layout),
    )
    work = Workload(model=model, job=job, stack=stack)
    if not out_of_memory:
        refuse_larger_than_memory(work, cluster.gpu, layout)
    if measured:
        refuse_faster_than_peak(work, cluster.gpu, layout, number_cell(row, "step_time_s"))
    return TrainingRun(
        name=row.get("id") or f"row {index + 1}",
        source=row.get("source") or "unnamed",
        framework=row.get("framework", ""),
        model=model,
        cluster=cluster,
        job=job,
        stack=stack,
        stand_ins=stand_ins,
        networks=_networks(row, layout, cluster),
        layout=layout,
        leanest=_leanest(row, layout, stack),
        recomputed_share=recomputed_share(row, layout),
        chunk_layers=chunk_layers_of(row, layout),
        recipe=recipe,
        not_priced=not_priced(recipe),
        step_time_s=number_cell(row, "step_time_s") if measured else None,
        peak_memory_bytes=_peak_bytes(row, cluster.gpu) if memory else None,
        process_memory=stack.name in PROCESS_MEMORY_STACKS or stated(note, "memory of processes") is True,
        out_of_memory=out_of_memory,
    )


def _peak_bytes(row: Row, gpu: Gpu) -> float:
    """The measured peak, bytes; a row may say that its ``peak_memory_gib`` are decimal gigabytes.

    Raises:
        UnsupportedRunError: For a unit that is neither, and for more than the GPU has.
    """
    unit = row.get("peak_memory_unit", "") or "GiB"
    if unit not in PEAK_UNITS:
        raise UnsupportedRunError(f"peak_memory_unit = {shown(unit)} is none of {', '.join(PEAK_UNITS)}")
    peak = number_cell(row, "peak_memory_gib") * PEAK_UNITS[unit]
    if peak > gpu.memory_bytes:
        raise UnsupportedRunError(
            f"peak_memory_gib = {row['peak_memory_gib']} in {unit}, yet a GPU has "
            f"{format_bytes(gpu.memory_bytes)}: is it GB, or the sum of several?"
        )
    return peak


def _leanest(row: Row, layout: ParallelLayout, stack: SoftwareStack) -> ParallelLayout:
    """A layout with its recomputation and sharding leanest where the row states none."""
    can = stack.supports
    stages = can.zero_stages_with_pipeline if layout.pp > 1 else can.zero_stages
    unstated: dict[str, Any] = {
        "recompute": "full" if "full" in can.recomputes else layout.recompute,
        "zero_stage": max(stages, default=layout.zero_stage),
        "sequence_parallel": layout.tp > 1,
    }
    if recipe_of(row).repeats:
        del unstated["recompute"]
    return replace(layout, **{name: value for name, value in unstated.items() if not row.get(name)})


def _adapter(row: Row) -> str:
    """The kind of adapter that a row's model, engine or note says it trains, if any."""
    words = "; ".join(row.get(name, "") for name in ("model", "framework", "note"))
    return next((kind.lower() for kind in ("QLoRA", "LoRA", "DoRA") if stated(words, kind)), "")


def _stack(row: Row, recipe: RunRecipe) -> SoftwareStack:
    """The profile of the row's engine, with the row's switches."""
    return _switched(
        _version(stack_of_framework(row.get("framework", ""), row.get("url", "")), row), row, recipe
    )


def _stand_ins(row: Row, recipe: RunRecipe, layout: ParallelLayout) -> tuple[SoftwareStack, ...]:
    """Profiles that the row's engine may be like, where none describes it.

    Nor does one that cannot split as the run did: an engine is not the library that its name mentions.
    """
    name = row.get("framework", "")
    if is_known(name) and splits(stack_of_framework(name, row.get("url", "")), layout):
        return ()
    able = [profile for profile in plausible_stacks() if splits(profile, layout)]
    return tuple(
        _switched(with_switches(profile, values), row, recipe)
        for profile in able or plausible_stacks()
        for values in ({}, PLAIN, PAINSTAKING)[: 3 if count(row, "num_experts", 0) else 2]
    )


def splits(stack: SoftwareStack, layout: ParallelLayout) -> bool:
    """Whether an engine splits along every axis of a layout.

    >>> plain = stacks()["pytorch"]
    >>> splits(plain, ParallelLayout(dp=8)), splits(plain, ParallelLayout(dp=8, ep=4))
    (True, False)
    """
    can = stack.supports
    axes = (
        (layout.ep, can.expert_parallel),
        (layout.tp, can.tensor_parallel),
        (layout.cp, can.context_parallel),
        (layout.pp, can.pipeline_parallel),
    )
    return all(degree == 1 or able for degree, able in axes)


PLAIN: Mapping[str, str] = {"attention_kernel": "fa2", "compile": "off", "tp_overlap": "off"}
"""Switches of an engine that does not take pains: each plausible profile is also tried with these."""
PAINSTAKING: Mapping[str, str] = {"exchange_overlap": "on", "expert_counts": "device"}
"""Switches of an engine made for experts: with experts each plausible profile is tried with these, too."""


def _switched(stack: SoftwareStack, row: Row, recipe: RunRecipe) -> SoftwareStack:
    """A profile with the switches that a row states in columns or in its note."""
    note = row.get("note", "")
    values = {name: value for word, (name, value) in _NOTED.items() if stated(note, word)}
    if row.get("flash_attention") and not yes_no_cell(row, "flash_attention", default=True):
        values["attention_kernel"] = "unfused"
    elif row.get("flash_attention"):
        stack = replace(stack, timing=replace(stack.timing, flash_attention=True))
    values |= recipe.switches
    stack = with_switches(stack, {name: values[name] for name in switches() if name in values})
    timing = with_recipe(stack.timing, recipe)
    if stated(note, "blocking launches"):
        timing = replace(timing, launch_blocking=True)
    narrow = bool(stated(note, "FP8 activations"))
    memory = replace(stack.memory, keeps_narrow_gates=stack.memory.keeps_narrow_gates or narrow)
    if row.get("bucket_bytes"):
        memory = replace(memory, bucket_bytes=number_cell(row, "bucket_bytes"))
    if row.get("logits_dtype", "") == "model":
        memory = replace(memory, loss_bytes_per_logit=min(UNCAST_LOGIT_BYTES, memory.loss_bytes_per_logit))
    if stated(note, "FP32 gradients"):
        memory = replace(memory, bf16_sum_bytes=FLOAT_BYTES)
    return replace(stack, timing=timing, memory=memory)


UNCAST_LOGIT_BYTES = 8.0
"""Of a loss over logits in sixteen bits: they, their log-softmax and the gradients of both."""
_NOTED: Mapping[str, tuple[str, str]] = {
    "async tensor parallelism": ("tp_overlap", "on"),
    # DeepEP drops none; HybridEP can, and is stated where it is used (Megatron-LM pull request 2176)
    "dropped tokens": ("token_dropping", "capacity"),
    "CUDA graphs": ("cuda_graph_scope", "full_iteration"),
    "flash_attention_2": ("attention_kernel", "fa2"),
    "flash_attention_3": ("attention_kernel", "fa3"),
    "flash_attention_4": ("attention_kernel", "fa4"),
    "fused lm head": ("loss", "fused_linear"),
    "lm head in chunks": ("loss", "chunked_logprobs"),
    "dropout": ("dropout", "on"),
}
"""Switches that words of a note state, where no column does."""


def _version(stack: SoftwareStack, row: Row) -> SoftwareStack:
    """The first version of an engine, from this profile on, that has what the row uses."""
    wants_fused = bool(row.get("flash_attention")) and yes_no_cell(row, "flash_attention", default=True)
    wants_selective = row.get("recompute") == "selective"
    lacks = (wants_fused > stack.timing.flash_attention) or (
        wants_selective > ("selective" in stack.supports.recomputes)
    )
    return _version(stacks()[stack.origin.successor], row) if lacks and stack.origin.successor else stack


def _job(row: Row, layout: ParallelLayout) -> TrainingJob:
    """Sequence length, batch and precision."""
    batch = count(row, "global_batch_size")
    if batch < layout.dp * layout.microbatch_size:
        raise UnsupportedRunError(
            f"global_batch_size {batch} < dp·microbatch_size = {layout.dp}·{layout.microbatch_size}"
        )
    name = row.get("precision", "").lower()
    if name not in _PRECISIONS:
        raise UnsupportedRunError(f"unknown precision {shown(name)}")
    return TrainingJob(
        sequence_length=count(row, "sequence_length"),
        global_batch_size=batch,
        precision=_PRECISIONS[name],
        adapter=parse_adapter(row["adapter"]) if row.get("adapter") else None,
        offload=_offload(row),
        mtp_layers=mtp_layers_of(row),
        document_tokens=document_tokens_of(row),
    )


def _offload(row: Row) -> Offload | None:
    """What waits in host memory: by its column as on a command line, or by the words of the note."""
    offload = row.get("offload", "")
    if not offload and stated(row.get("note", ""), "activation offload"):
        offload = "activations"
    return parse_offload(offload)[0] if offload else None


def _cluster(row: Row, layout: ParallelLayout, *, trust_paths: bool) -> Cluster:
    """Where it ran: a machine by name, or the GPU's reference machine with the row's NICs.

    A table may come from anywhere, so only who vouches for it lets its rows name files.
    """
    per_node = count(row, "gpus_per_node", NODE_GPUS)
    nic = number_cell(row, "nic_gbit_per_s_per_gpu", 0.0)
    try:
        if row.get("cluster"):
            if trust_paths:
                return cluster(row["cluster"], layout.num_gpus)
            if "/" in row["cluster"] or row["cluster"].endswith(".toml"):
                raise UnsupportedRunError(
                    f"cluster = {shown(row['cluster'])} is a path, which is opened only with --trust-paths"
                )
            return machine_cluster(row["cluster"], layout.num_gpus)
        return _built(row["gpu"], layout.num_gpus, per_node, nic * GBIT or None)
    except InputError as unknown:
        raise row_refusal(unknown) from unknown


def _networks(row: Row, layout: ParallelLayout, reference: Cluster) -> tuple[tuple[int, Cluster], ...]:
    """Networks of the machines that have the row's GPU, with how many have each; none where it is stated.

    Nor where nodes send nothing to each other, or all machines agree. The first is the reference machine's.
    """
    per_node = count(row, "gpus_per_node", NODE_GPUS)
    if row.get("cluster") or number_cell(row, "nic_gbit_per_s_per_gpu", 0.0) or layout.num_gpus <= per_node:
        return ()
    sheet = sheet_named(row["gpu"])
    usual = reference_machine(sheet)
    having = Counter(
        machine.nic_gbit_per_s_per_gpu
        for machine in machines().values()
        if machine.gpu == sheet.name and machine.gpus_per_node == usual.gpus_per_node
    )
    rates = [rate for rate in sorted(having) if rate not in (0, usual.nic_gbit_per_s_per_gpu)]
    others = ((having[rate], _built(row["gpu"], layout.num_gpus, per_node, rate * GBIT)) for rate in rates)
    return ((having[usual.nic_gbit_per_s_per_gpu], reference), *others) if rates else ()


@functools.lru_cache(maxsize=512)
def _built(gpu: str, gpus: int, per_node: int, nic_bytes_per_s: float | None) -> Cluster:
    """A cluster, built once per kind."""
    return default_cluster(gpu, gpus, gpus_per_node=per_node, nic_bandwidth_bytes_per_s=nic_bytes_per_s)


def read_runs(rows: Sequence[Row], *, trust_paths: bool = False) -> list[TrainingRun | UnsupportedRunError]:
    """Decode all rows, in order; those that cannot be predicted give their reason."""
    decoded: list[TrainingRun | UnsupportedRunError] = []
    for index, row in enumerate(rows):
        try:
            decoded.append(read_run(row, index, trust_paths=trust_paths))
        except Exception as failure:  # noqa: BLE001 - one row of a user's table must not cost them the others
            decoded.append(row_refusal(failure))
    return decoded
