"""The job of some files as a request: model, cluster, job and layout, with what had to be assumed for it.

What a file does not state is taken from flags, then from what it mentions (a GPU in a comment), then as a
launch script would have it; everything that is not stated is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from costmodel.job import MOST_MTP_LAYERS
from costmodel.kernels.precisions import TRAINING
from costmodel.layout import RECOMPUTES, ParallelLayout, Recompute
from costmodel.models.catalog import listed_model, model
from costmodel.models.spec import ModelSpec
from costmodel.pipeline.schedules import usual_schedule
from costmodel.runs.cells import UnsupportedRunError
from costmodel.runs.model import model_of
from costmodel.stack import stack as find_stack
from planner.audit.facts import Facts
from planner.audit.read import Reading
from planner.audit.told import model_told, splits_sequences, told_modules, unpriced_by
from planner.engines.megatron_lm.modules import PRICED
from planner.engines.megatron_lm.stage_string import modules_of_string
from planner.formats.settings import whole
from planner.plan import PlanRequest
from planner.questions.flags import Flags
from planner.questions.training import DEFAULT_GPU, understand
from topology.base.errors import InputError

_DEGREES = ("tp", "pp", "cp", "ep", "expert_tp", "virtual_stages", "microbatch_size")
_NAME_ENDS = re.compile(
    r"[-_](?:instruct|base|hf|chat|it|fp8|bf16|dequantized|[0-9]{4}|v0\.[0-9]|bnb|nf4)$", re.IGNORECASE
)
_TITAN_MODELS: Mapping[str, str] = {
    "llama3": "llama-3",
    "deepseek_v3": "deepseek",
    "qwen3": "qwen3",
    "gpt_oss": "gpt-oss",
}
LARGEST = 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as far as it is known.

    Attributes:
        request: What the planner is asked; None where something is missing.
        layout: How the files split it; None where a degree is missing or impossible.
        missing: What nobody said, as the flag that says it.
        assumed: What was taken for granted.
    """

    request: PlanRequest | None = None
    layout: ParallelLayout | None = None
    missing: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


@dataclass(slots=True)
class _Notes:
    """What is missing and what was assumed."""

    missing: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)


def job_of(reading: Reading, flags: Flags) -> Job:
    """The job of files, with what flags add.

    Args:
        reading: What the files say.
        flags: Model, GPUs, cluster and settings in the user's words; they hold over the files.
    """
    facts, notes = reading.facts, _Notes()
    notes.assumed.extend(_left_out(reading))
    unpriced = _unpriced(reading)
    if unpriced:
        return Job(missing=(unpriced,))
    found = _model(reading, flags, notes)
    gpus = flags.gpus or _gpus(reading, flags, notes)
    if flags.sequence_length is None and not facts.count("job.sequence_length"):
        notes.missing.append("--sequence-length")
    if found is None or (gpus is None and flags.cluster is None) or notes.missing:
        return Job(missing=tuple(notes.missing), assumed=tuple(notes.assumed))
    asked = replace(
        flags,
        model=found.name,
        gpus=gpus,
        gpu=flags.gpu or (None if flags.cluster else _gpu(reading, notes)),
        stack=flags.stack or _stack(reading, notes),
        sequence_length=flags.sequence_length or str(facts.count("job.sequence_length")),
        precision=flags.precision or _precision(facts, notes),
        global_batch_size=flags.global_batch_size or "1",
        settings=(*flags.settings, *_node_size(facts, flags)),
    )
    understood = understand(asked, model=found)
    request = understood.request
    notes.assumed.extend(text for text in understood.notes if text.startswith("planned for"))
    layout = _layout(reading, request, notes)
    batch = int(flags.global_batch_size or 0) or _batch(facts, layout, request.cluster.num_gpus, notes)
    modules = min(facts.count("job.mtp_layers") or 0, MOST_MTP_LAYERS)
    sequences = max(1, min(batch, LARGEST))
    request = replace(
        request,
        job=replace(request.job, global_batch_size=sequences, mtp_layers=modules or request.job.mtp_layers),
    )
    return Job(request=request, layout=layout, missing=tuple(notes.missing), assumed=tuple(notes.assumed))


def _unpriced(reading: Reading) -> str:
    """Why a job cannot be priced at all; empty where it can."""
    if reading.family.serves:
        return "a training job: this file serves"
    if reading.family.name == "nanotron" and (reading.facts.count("layout.ep") or 1) > 1:
        return "a job whose experts share ranks: those of nanotron have their own, which is not priced"
    if reading.facts.value("said.hybrid"):
        return "a model whose layers are all attention and feed-forward: this one mixes others in"
    adapter = str(reading.facts.value("said.adapter") or "").lower()
    if adapter not in ("", "full", "false", "none") or reading.facts.truth("said.four_bit"):
        return f"a job that trains all weights: {adapter or 'a base in four bits'} is not priced"
    return ""


def _left_out(reading: Reading) -> Iterator[str]:
    """What a job does that is not in its price."""
    facts = reading.facts
    for name, what in (("said.offload_optimizer", "optimizer states"), ("said.offload_param", "parameters")):
        value = str(facts.value(name) or "").lower()
        if value not in ("", "false", "none", "0"):
            yield f"{what} are priced as kept on the GPU, not offloaded"
    if facts.count("said.offload_layers"):
        yield "activations are priced as kept on the GPU, not offloaded"
    modules = [name for name in told_modules(reading) if name not in PRICED]
    if facts.value("layout.recompute") == "selective" and modules:
        yield f"recomputed modules {', '.join(modules)} are priced as kept"
    yield from unpriced_by(reading)
    yield from _of_modules(facts)
    if reading.family.name in ("NeMo-RL", "verl"):
        yield "only the training of a reinforcement-learning step is priced, not its answers"


def _of_modules(facts: Facts) -> Iterator[str]:
    """What of modules that predict further tokens is priced otherwise than it runs."""
    if not facts.count("job.mtp_layers"):
        return
    try:
        *others, _ = modules_of_string(str(facts.value("said.stage_layout") or ""))
    except ValueError:
        others = []
    if any(others):
        yield "modules that predict further tokens (MTP) are priced on the last stage"
    if str(facts.value("said.recompute_method") or "").lower() == "uniform":
        yield "modules that predict further tokens (MTP) are priced as kept, not recomputed"


def _model(reading: Reading, flags: Flags, notes: _Notes) -> ModelSpec | None:
    """The model: as asked, of the sizes in the files, or by its name there."""
    facts = reading.facts
    if flags.model:
        return model(flags.model)
    sizes = {
        name: facts.count(f"model.{name}") for name in ("num_layers", "hidden_size", "num_attention_heads")
    }
    if all(sizes.values()):
        sized = _sized(facts, notes)
        return None if sized is None else model_told(reading, sized)
    name = _named(facts)
    if name is None:
        notes.missing.append("--model")
        return None
    if facts.value("said.model") or facts.value("said.flavor"):
        notes.assumed.append(f"the model is {name.name}, by its name in the file")
    return name


def _sized(facts: Facts, notes: _Notes) -> ModelSpec | None:
    """A model of stated sizes."""
    row: dict[str, str] = {"sequence_length": str(facts.count("job.sequence_length") or 2048)}
    for fact in facts.found.values():
        if fact.name.startswith("model.") and isinstance(fact.value, int) and 0 < fact.value < LARGEST:
            row[fact.name.removeprefix("model.")] = str(int(fact.value))
    swiglu = facts.truth("model.gated_mlp")
    gated = bool(swiglu) if swiglu is not None else "model.num_key_value_heads" in facts.found
    row |= {"gated_mlp": "1" if gated else "0"}
    if facts.count("model.num_experts") == 1:
        row.pop("num_experts")
    if facts.count("model.num_experts") and "num_experts_per_token" not in row:
        row["num_experts_per_token"] = "1" if facts.value("said.deepspeed") else "2"
        notes.assumed.append(f"{row['num_experts_per_token']} experts a token")
    tied = facts.truth("model.tie_word_embeddings")
    if tied is not None:
        row["tie_word_embeddings"] = "1" if tied else "0"
    if "vocab_size" not in row:
        notes.assumed.append("a vocabulary as usual for such sizes: the file does not state it")
    if row.get("moe_intermediate_size"):
        row["intermediate_size"] = row["moe_intermediate_size"]
    try:
        return model_of(row, find_stack("megatron-core"))
    except UnsupportedRunError as impossible:
        notes.missing.append(f"--model (the sizes in the file are no model's: {impossible})")
        return None


def _named(facts: Facts) -> ModelSpec | None:
    """A catalogued model by the name that a file gives it."""
    flavor, kind = (
        str(facts.value("said.flavor") or ""),
        str(facts.value("said.model_family") or facts.value("said.model_path") or ""),
    )
    names = [str(facts.value("said.model") or "").rstrip("/").rpartition("/")[2]]
    for start, meant in _TITAN_MODELS.items():
        if flavor and start in kind.lower().replace("-", "_"):
            names.append(f"{meant}-{flavor.lower()}")
    if flavor and kind:
        names.append(f"{kind}-{flavor}")
    for name in names:
        text = name[:80]
        while text:
            try:
                return listed_model(text)
            except InputError:
                cut = _NAME_ENDS.sub("", text)
                text = cut if cut != text else ""
    return None


def _gpus(reading: Reading, flags: Flags, notes: _Notes) -> str | None:
    """The number of GPUs."""
    found = reading.facts.count("cluster.num_gpus")
    if found:
        return str(found)
    if reading.mentioned_gpus and not flags.cluster:
        notes.assumed.append(f"{reading.mentioned_gpus} GPUs, as a comment of the file says")
        return str(reading.mentioned_gpus)
    if not flags.cluster:
        notes.missing.append("--gpus")
    return None


def _gpu(reading: Reading, notes: _Notes) -> str:
    """The kind of GPU that the files mention, or the usual one."""
    if len(reading.gpus) == 1:
        notes.assumed.append(f"GPUs are {reading.gpus[0]}, which the file mentions")
        return reading.gpus[0]
    notes.assumed.append(f"GPUs are {DEFAULT_GPU}: the file does not say, so give --gpu")
    return DEFAULT_GPU


def _stack(reading: Reading, notes: _Notes) -> str:
    """The profile that prices the engine of the files."""
    name = reading.family.stack or "megatron-core"
    if not reading.family.stack:
        notes.assumed.append(f"{reading.family.name} is priced as {name}")
    return name


def _precision(facts: Facts, notes: _Notes) -> str:
    """The format that is trained in."""
    name = facts.value("job.precision")
    if name in TRAINING:
        return str(name)
    notes.assumed.append("bf16: the file does not state a precision")
    return "bf16"


def _node_size(facts: Facts, flags: Flags) -> tuple[str, ...]:
    """GPUs of a node, where the files state less or more than the reference machine has."""
    each, total = facts.count("said.gpus_per_node"), facts.count("cluster.num_gpus")
    if flags.cluster or flags.gpus or not each or not total or total % each or total == each:
        return ()
    return (f"cluster.gpus_per_node={each}", f"cluster.count={total // each}")


def _layout(reading: Reading, request: PlanRequest, notes: _Notes) -> ParallelLayout | None:
    """How the files split the job; degrees that are not stated are one."""
    facts, gpus = reading.facts, request.cluster.num_gpus
    fields: dict[str, Any] = {name: min(facts.count(f"layout.{name}") or 1, LARGEST) for name in _DEGREES}
    others = fields["tp"] * fields["pp"] * fields["cp"]
    dp = facts.count("layout.dp")
    if dp is None or dp * others != gpus:
        if gpus % others:
            return None
        dp = gpus // others
    stage = whole(facts.value("layout.zero_stage"))
    if stage is None and reading.family.recipes and dp * fields["cp"] > 1:
        stage = 1
        notes.assumed.append("a distributed optimizer, as the recipes that such files change have it")
    schedule = facts.value("layout.schedule") or usual_schedule(fields["virtual_stages"])
    recompute: Recompute = next(
        (known for known in RECOMPUTES if known == facts.value("layout.recompute")), "none"
    )
    shard = facts.count("layout.shard_degree")
    if not request.model.is_moe:
        fields["expert_tp"] = 1  # what engines print of dense models too
    if fields["pp"] == 1:
        fields["virtual_stages"], schedule = 1, usual_schedule(1)
    if schedule == "interleaved" and fields["virtual_stages"] == 1:
        fields["virtual_stages"] = 2
        notes.assumed.append("2 chunks a rank, the least that an interleaved schedule has")
    if fields["pp"] > 1 and reading.family.name == "torchtitan":  # its local batch is cut further
        fields["microbatch_size"] = facts.count("said.pipeline_microbatch") or 1
    return ParallelLayout(
        **fields,
        dp=dp,
        zero_stage=stage if stage is not None else 0,
        shard_degree=shard
        if shard and shard < dp * fields["cp"] and (dp * fields["cp"]) % shard == 0
        else None,
        recompute=recompute,
        schedule=schedule,
        sequence_parallel=fields["tp"] > 1 and _splits(reading),
    )


def _splits(reading: Reading) -> bool:
    """Whether sequences are split with tensors."""
    stated = reading.facts.truth("layout.sequence_parallel")
    return splits_sequences(reading) if stated is None else stated


def _batch(facts: Facts, layout: ParallelLayout | None, gpus: int, notes: _Notes) -> int:
    """The global batch, or one microbatch of every replica."""
    found = facts.count("job.global_batch_size")
    if found:
        return found
    replicas = layout.dp if layout else gpus
    size = facts.count("layout.microbatch_size") or 1
    steps = whole(facts.value("said.accumulation")) or 1
    batch = replicas * size * max(1, steps)
    notes.assumed.append(f"a global batch of {batch}: dp {replicas} · {size} samples · {steps} accumulated")
    return batch
