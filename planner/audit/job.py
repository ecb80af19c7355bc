"""The job of some files as a request: model, cluster, job and layout, with what had to be assumed for it.

What a file does not state is taken from flags, then from what it mentions (a GPU in a comment), then as a
launch script would have it; everything that is not stated is said.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from costmodel.job import MOST_MTP_LAYERS
from costmodel.kernels.precisions import TRAINING
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model, published_model
from costmodel.models.spec import ModelSpec
from costmodel.runs.cells import UnsupportedRunError
from costmodel.runs.model import model_of
from costmodel.stack import stack as find_stack
from costmodel.switches.profile import switches_of
from costmodel.training.estimate import beyond_positions
from planner.audit.adapters import StatedAdapter, stated_adapter
from planner.audit.conclusions import kept_tensors
from planner.audit.contract_reading import (
    engine_reading_of,
    model_as_built,
    recomputed_modules_of,
    unpriced_by,
)
from planner.audit.facts import JobFacts
from planner.audit.file_names import model_of_names
from planner.audit.file_switches import kept_switches
from planner.audit.full_precision import in_full_precision
from planner.audit.given import given_by
from planner.audit.layout import layout_of_files, value_of
from planner.audit.logged_gpu import holding_gpu, shown_figures, shown_gpu
from planner.audit.maxtext import kept_by
from planner.audit.offload import StatedOffload, stated_offload
from planner.audit.published import named_config
from planner.audit.ranks import degrees_of_recipe
from planner.audit.read import Reading
from planner.audit.reinforcement import more_than_training, update_alone
from planner.audit.trainer_switches import OVER_HALF, beside_switches, half_weights
from planner.audit.unsettled import Unsettled, with_leanest
from planner.audit.words import FAMILIES, UNKNOWN
from planner.engines.contract import EngineReading
from planner.engines.megatron_lm.modules import PRICED
from planner.engines.megatron_lm.stage_string import modules_of_string
from planner.formats.settings import whole_or_none
from planner.plan import PlanRequest
from planner.questions.flags import Flags
from planner.questions.training import understand
from topology.base.counts import parse_count
from topology.base.errors import InputError, UnknownNameError
from topology.base.units import format_bytes
from topology.hardware.datasheets import default_gpu, sheet_named

_FILE_END = re.compile(r"\.ya?ml$", re.IGNORECASE)
_BUILT = re.compile(r"^q?lora_")
"""How the name of a function that builds a model beside an adapter begins."""
_BUILDER = re.compile(r"[a-z]\w*(?:\.[a-z]\w*){2,}")
"""A function of a package that builds a model: ``torchtune.models.llama3_1.llama3_1_8b``."""
_TITAN_MODELS: Mapping[str, str] = {"llama3": "llama-3", "qwen3": "qwen3", "gpt_oss": "gpt-oss"}
_TITAN_FLAVORS: Mapping[str, Mapping[str, str]] = {
    "deepseek": {"16b": "deepseek-v2-lite", "236b": "deepseek-v2", "671b": "deepseek-v3"},
}
"""Flavors of another shape than their family is called: torchtitan/models/deepseek_v3/__init__.py."""
_TAKEN = ("planned for", "host memory of")
"""Beginnings of what a question takes for granted that its files leave open, too."""
LARGEST = 10**7


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as far as it is known.

    Attributes:
        request: What the planner is asked; None where something is missing.
        layout: How the files split it; None where a degree is missing or impossible.
        missing: What nobody said, as the flag that says it, or why the job is not priced.
        assumed: What was taken for granted.
        unsettled: What decides memory, is not stated, and no contract knows.
        switches: Switches of the request that its files say, and not who asks.
        part: What of a step is priced, and what is not, where that is a part of it; else empty.
    """

    request: PlanRequest | None = None
    layout: ParallelLayout | None = None
    missing: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    unsettled: tuple[Unsettled, ...] = ()
    switches: frozenset[str] = frozenset()
    part: str = ""

    @property
    def open_fields(self) -> frozenset[str]:
        """Fields that were taken for granted: what hangs on one is not known of the job."""
        return frozenset(gap.field for gap in self.unsettled)

    @property
    def leanest_layout(self) -> ParallelLayout | None:
        """The layout with all that is unsettled at its leanest; None where nothing bounds that."""
        return None if self.layout is None else with_leanest(self.layout, self.unsettled)


@dataclass(slots=True)
class _Notes:
    """What is missing, what was assumed, and what of it decides memory."""

    missing: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    unsettled: list[Unsettled] = field(default_factory=list)

    def take(self, name: str, value: Any, why: str) -> None:
        """Note a value that is taken for granted, decides memory, and that nothing bounds."""
        self.assumed.append(why)
        self.unsettled.append(Unsettled(field=name, taken=value, leanest=None, why=why))


def audited_job(reading: Reading, flags: Flags) -> Job:
    """The job of files, with what flags add.

    Args:
        reading: What the files say.
        flags: Model, GPUs, cluster and settings in the user's words; they hold over the files.
    """
    reading = given_by(reading, flags)
    facts, notes = reading.facts, _presumed_notes(reading)
    adapter = None if flags.adapter else _adapter_of(reading)  # the user's word holds over the files
    offload = stated_offload(reading)
    notes.assumed.extend(_left_out(reading))
    unpriced = _unpriced(reading, adapter, offload)
    if unpriced:
        return Job(missing=(unpriced,))
    spec = _model(reading, flags, notes)
    for name, written in (("--gpus", flags.gpus), ("--sequence-length", flags.sequence_length)):
        if written:
            parse_count(written, name)
    gpus = flags.gpus or _gpus(reading, flags, notes)
    parsed = engine_reading_of(reading, spec, facts.count("cluster.num_gpus"))
    length = flags.sequence_length or value_of(reading, parsed, "job.sequence_length").value
    if not length:
        notes.missing.append("--sequence-length")
    if spec is None or (gpus is None and flags.cluster is None) or notes.missing:
        return Job(missing=tuple(notes.missing), assumed=tuple(notes.assumed))
    asked = replace(
        flags,
        model=spec.name,
        gpus=gpus,
        gpu=_stated_gpu(reading, flags.gpu, notes) or (None if flags.cluster else _gpu(reading, notes)),
        stack=flags.stack or _stack(reading, notes),
        sequence_length=str(length),
        precision=flags.precision or _precision(reading, parsed, notes),
        global_batch_size=flags.global_batch_size or "1",
        adapter=flags.adapter or _adapter_words(adapter, notes),
        offload=flags.offload or (offload.words if offload else None),
        settings=(*flags.settings, *_node_size(facts, flags)),
    )
    try:
        understood = understand(asked, model=spec)
    except InputError as impossible:
        if adapter is None and offload is None:
            raise
        return Job(missing=(f"a job that is priced: {impossible.what}, {impossible.cause}",))
    request = understood.request
    notes.assumed.extend(text for text in understood.notes if text.startswith(_TAKEN))
    if request.job.sequence_length > request.model.max_sequence_length:
        notes.assumed.append(beyond_positions(request.model, request.job.sequence_length))
    parsed = engine_reading_of(reading, spec, request.cluster.num_gpus)
    stated_layout = layout_of_files(reading, parsed, request)
    notes.assumed.extend(stated_layout.assumed)
    notes.unsettled.extend(stated_layout.unsettled)
    notes.unsettled.extend(_absent_files(facts))
    notes.unsettled.extend(_other_optimizer(facts))
    _take_of_recipe(reading, parsed, stated_layout.layout, notes)
    batch = flags.global_batch_size and request.job.global_batch_size
    batch = batch or _batch(reading, parsed, stated_layout.layout, request.cluster.num_gpus, notes)
    stated = {
        name: value
        for name in ("optimizer", "bucket_bytes", "mtp_layers")
        if (value := value_of(reading, parsed, f"job.{name}").value) is not None
    }
    if "optimizer" in stated or half_weights(reading) is not None:
        stated["optimizer"] = _optimizer(reading, request, stated.get("optimizer"), notes)
    stated["mtp_layers"] = (
        min(whole_or_none(stated.get("mtp_layers")) or 0, MOST_MTP_LAYERS) or request.job.mtp_layers
    )
    try:
        job = replace(request.job, global_batch_size=max(1, min(batch, LARGEST)), **stated)
    except InputError as impossible:
        return Job(missing=(f"a job that is priced: {impossible.what}, {impossible.cause}",))
    request = _with_axes(reading, replace(request, job=job), stated_layout.layout)
    request = _with_modules(reading, request)
    kept = {**_kernels_of_program(reading, request), **kept_switches(reading, request)}
    return Job(
        request=replace(request, switches={**kept, **request.switches}),
        switches=frozenset(kept),
        layout=stated_layout.layout,
        missing=tuple(notes.missing),
        assumed=tuple(notes.assumed),
        unsettled=tuple(notes.unsettled),
        part=_part(reading),
    )


def _take_of_recipe(
    reading: Reading, parsed: EngineReading | None, layout: ParallelLayout | None, notes: _Notes
) -> None:
    """Note what a recipe that is not shown decides of context parallelism."""
    facts = reading.facts
    if not of_recipe(reading) or reading.published:
        return
    if "layout.cp" not in facts.by_field:
        notes.take("layout.cp", 1, "context parallelism is the recipe's, which is not shown: 1 is taken")
    if layout is not None and layout.cp > 1 and _untold_exchange(parsed):
        why = "how ranks of context exchange keys is the recipe's, which is not shown"
        notes.unsettled.append(
            Unsettled(field="layout.cp_kind", taken=layout.cp_kind, leanest=layout.cp_kind, why=why)
        )


def _untold_exchange(parsed: EngineReading | None) -> bool:
    """Whether no word says how ranks of context exchange keys."""
    return parsed is None or "layout.cp_kind" not in parsed.stated


def of_recipe(reading: Reading) -> bool:
    """Whether files change a recipe that they name and do not show.

    Recipes are of Megatron-Bridge and NeMo 2.0; a whole configuration of NeMo 1 names none.
    """
    facts = reading.facts
    names_recipe = facts.value("said.recipe") or any(
        setting.path[-1] in _OF_RECIPES for setting in reading.settings
    )
    changes_recipe = (model := facts.by_field.get("said.model")) is not None and model.how == "derived"
    return bool(reading.family.recipes and (names_recipe or changes_recipe))


_OF_RECIPES = ("recipe", "model_recipe_name")
"""Words by which scripts of Megatron-Bridge are told a recipe."""


def _part(reading: Reading) -> str:
    """What of a step is priced where that is not all of it."""
    beside = more_than_training(reading)
    return f"{update_alone(reading)}: {beside}, which has no price here" if beside else ""


def _presumed_notes(reading: Reading) -> _Notes:
    """Notes that begin with the counts that no file states."""
    notes = _Notes()
    for name, why in reading.presumed.items():
        notes.take(name, None, why)
    return notes


def _unpriced(reading: Reading, adapter: StatedAdapter | None, offload: StatedOffload | None) -> str:
    """Why a job cannot be priced at all; empty where it can."""
    return _of_engine(reading) or _of_parts(reading, adapter, offload) or _untold(reading)


def _of_engine(reading: Reading) -> str:
    """Why what starts a job has no price."""
    facts = reading.facts
    if reading.family.serves:
        return "a training job: this file serves"
    if (beside := more_than_training(reading)) and not update_alone(reading):
        return f"a step that is training alone: {beside}, which is not priced"
    if reading.slice_profile:
        return f"a job on whole GPUs: the files speak of slices of one, {reading.slice_profile}, not priced"
    if reading.family.name == UNKNOWN.name and any(name not in facts.by_field for name in _DECIDED):
        if reading.variables:  # commands of a manifest are handed what is not here
            return f"a job of an engine that is known: {_named_files(reading)}"
        return f"{OF_NONE}{_mounted(reading)}"
    if _is_bare_script(reading):
        return f"a job of an engine that is known: {_named_files(reading)}"
    if reading.family.name == "nanotron" and (facts.count("layout.ep") or 1) > 1:
        return "a job whose experts share ranks: those of nanotron have their own, which is not priced"
    return ""


def _of_parts(reading: Reading, adapter: StatedAdapter | None, offload: StatedOffload | None) -> str:
    """Why what is trained has no price."""
    facts = reading.facts
    if facts.value("said.hybrid"):
        return "a model whose layers are all attention and feed-forward: this one mixes others in"
    if facts.value("said.decoder"):
        return "a model with a decoder alone: this one has an encoder beside it"
    if adapter is not None and adapter.why:
        return f"an adapter that is priced: {adapter.why}"
    if offload is not None and offload.why:
        return f"an offload that is priced: {offload.why}"
    return ""


def _untold(reading: Reading) -> str:
    """What a price hangs on and no file tells."""
    facts = reading.facts
    if untold := degrees_of_recipe(facts, reading.family):
        words = " and ".join(name.rpartition(".")[2] for name in untold)
        return f"{words}, which only the recipe states that these files change: name its file too"
    config = named_config(reading.settings, reading.family.name)
    stated = reading.stated.by_field.keys()
    if config and not reading.published and not _is_given(config, reading) and stated.isdisjoint(_OF_LAYOUT):
        return f"what {config} states, which was not given: name its file too"
    hidden = [name for name in _DECIDING if name in facts.unknown and name not in facts.by_field]
    if hidden:
        words = ", ".join(name.rpartition(".")[2] for name in hidden)
        return f"{words}, which only a run knows: give the variables of the script by --env NAME=VALUE"
    return ""


def _is_bare_script(reading: Reading) -> bool:
    """Whether files are scripts that start no engine and say nothing of how a job is split."""
    is_script = reading.family.name == FAMILIES[-1].name and "log" not in reading.kinds.values()
    return is_script and reading.stated.by_field.keys().isdisjoint(_OF_LAYOUT)


def _is_given(config: str, reading: Reading) -> bool:
    """Whether a configuration that a launch names stands among the files."""
    return Path(config).stem in {Path(file).stem for file in reading.kinds}


OF_NONE = "a job of an engine that is known: no entry point and no keys of its own name one"
"""Why files of an unknown engine have no price."""


def _mounted(reading: Reading) -> str:
    """The configurations that values of a chart name, where they are nothing but their machines."""
    files = [
        str(setting.value)
        for setting in reading.settings
        if setting.path[-1] in _NAMES_FILE and _CONFIG_FILE.fullmatch(str(setting.value))
    ]
    return f"; name {', '.join([*dict.fromkeys(files)][:MOST_NAMED])} too" if files else ""


def _named_files(reading: Reading) -> str:
    """What a script without an engine's words leaves to other files, as far as it names them."""
    named = {
        word: None
        for text in reading.variables.values()
        for word in _CONFIG_FILE.findall(str(text.value))[:MOST_NAMED]
    }
    files = ", ".join([*named][:MOST_NAMED])
    return f"name {files} too" if files else "no word of one is here; name the job's configuration too"


_CONFIG_FILE = re.compile(r"[\w./-]{1,80}\.(?:toml|ya?ml|json|sh)\b")
_NAMES_FILE = ("config_file", "config_name", "config_path", "recipe", "recipe_file")
MOST_NAMED = 3
"""Files that a sentence names."""
_OF_LAYOUT = frozenset(
    (
        *(f"layout.{name}" for name in ("tp", "pp", "cp", "ep", "dp", "microbatch_size", "zero_stage")),
        *(f"said.{name}" for name in ("zero_stage", "dp_shard", "dp_replicate", "sharding", "fsdp")),
        *(f"said.{name}" for name in ("recompute", "recompute_full", "data_parallel", "strategy")),
        "said.distributed_type",
        "layout.recompute", "said.deepspeed", "said.launcher_config", "job.global_batch_size",
    )
)  # fmt: skip
"""What states a part of how a job is split and run: without one, a script says nothing of it."""
_DECIDED = (
    *(f"layout.{name}" for name in ("tp", "pp", "dp", "microbatch_size", "zero_stage", "recompute")),
    "job.global_batch_size", "job.sequence_length", "job.precision",
)  # fmt: skip
"""What a file of an unknown engine must state to be priced."""
_DECIDING = (
    *(f"layout.{name}" for name in ("tp", "pp", "cp", "ep", "expert_tp", "virtual_stages")),
    "layout.microbatch_size", "layout.dp", "said.zero_stage", "said.dp_shard", "said.recompute",
    "said.recompute_full", "said.sharding", "said.training_gpus",
)  # fmt: skip
"""What a job's price hangs on: with a value that only a run knows there is none."""


_IN_FILES: Mapping[str, tuple[str, ...]] = {
    "said.deepspeed": ("said.zero_stage",),
    "said.launcher_config": ("said.distributed_type", "said.fsdp", "said.sharding", "said.zero_stage"),
}
"""Facts that name a file, and those of which it states one at least."""


def _absent_files(facts: JobFacts) -> Iterator[Unsettled]:
    """Files that are named and were not given: sharding, offload and recomputation may stand there."""
    for name, stated in _IN_FILES.items():
        file = str(facts.value(name) or "")
        if file.lower().endswith((".json", ".yaml", ".yml")) and not facts.by_field.keys() & set(stated):
            yield Unsettled(
                field="job.offload", taken=None, leanest=None,
                why=f"what {file.rpartition('/')[2]} shards, offloads and recomputes, which was not given",
            )  # fmt: skip


def _other_optimizer(facts: JobFacts) -> Iterator[Unsettled]:
    """An optimizer that is priced as AdamW: it may keep less."""
    named = facts.by_field.get("said.trainer_optimizer")
    if named is not None and named.value and "job.optimizer" not in facts.by_field:
        why = f"{named.source} is priced as AdamW"
        yield Unsettled(field="job.optimizer", taken=None, leanest=None, why=why)


def _adapter_of(reading: Reading) -> StatedAdapter | None:
    """The adapter that files state; None where they train a whole model."""
    return stated_adapter(reading.settings, rank_decides=reading.family.rank_decides)


def _adapter_words(adapter: StatedAdapter | None, notes: _Notes) -> str | None:
    """An adapter that is priced, as a flag says it."""
    if adapter is None or adapter.adapter is None:
        return None
    notes.assumed.extend(adapter.assumed)
    return adapter.adapter.words


def _left_out(reading: Reading) -> Iterator[str]:
    """What a job does that is not in its price."""
    facts = reading.facts
    modules = [name for name in recomputed_modules_of(reading) if name not in PRICED]
    if facts.value("layout.recompute") == "selective" and modules:
        yield f"recomputed modules {', '.join(modules)} are priced as kept"
    yield from unpriced_by(reading)
    yield from beside_switches(reading)
    yield from _of_modules(facts)
    if tower := facts.value("said.tower"):
        yield f"{tower} beside the language model, its samples and their tokens are not priced"


def _of_modules(facts: JobFacts) -> Iterator[str]:
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
        return None if sized is None else model_as_built(reading, sized)
    name = _named(facts)
    recipe = str(facts.value("said.recipe") or "").replace("/", "-")  # llama3_1/8B_full
    by_file = None if name or _names_model(facts) else model_of_names([f"{recipe}.", *reading.kinds])
    if by_file is not None:
        notes.assumed.append(
            f"the model is {by_file[0].name}, by the name of {by_file[1]}: --model gives another"
        )
        return by_file[0]
    if name is None:
        notes.missing.append("--model")
        notes.assumed.extend(_unnamed(facts))
        return None
    if facts.value("said.model") or facts.value("said.flavor"):
        notes.assumed.append(f"the model is {name.name}, by its name in the file")
    return name


def _names_model(facts: JobFacts) -> bool:
    """Whether files name a model, known here or not; a sentence in its place names none."""
    named = (str(facts.value(f"said.{name}") or "") for name in _OF_MODEL)
    return any(name and not _SENTENCE.search(name) for name in named)


_OF_MODEL = ("model", "flavor", "model_family", "model_path")
_SENTENCE = re.compile(r"\w\s+\w+\s+\w")
"""Three words beside each other."""


def _sized(facts: JobFacts, notes: _Notes) -> ModelSpec | None:
    """A model of stated sizes."""
    row: dict[str, str] = {"sequence_length": str(facts.count("job.sequence_length") or 2048)}
    for fact in facts.by_field.values():
        if fact.name.startswith("model.") and isinstance(fact.value, int) and 0 < fact.value < LARGEST:
            row[fact.name.removeprefix("model.")] = str(int(fact.value))
    swiglu = facts.truth("model.gated_mlp")
    gated = bool(swiglu) if swiglu is not None else "model.num_key_value_heads" in facts.by_field
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
        why = "a vocabulary as usual for such sizes: the file does not state it"
        notes.take("model.vocab_size", None, why)
    if row.get("moe_intermediate_size"):
        row["intermediate_size"] = row["moe_intermediate_size"]
    try:
        return model_of(row, find_stack("megatron-core"))
    except UnsupportedRunError as impossible:
        notes.missing.append(f"--model (the sizes in the file are no model's: {impossible})")
        return None


def _named(facts: JobFacts) -> ModelSpec | None:
    """A catalogued model by the name that a file gives it."""
    flavor, kind = (
        str(facts.value("said.flavor") or ""),
        str(facts.value("said.model_family") or facts.value("said.model_path") or ""),
    )
    names = [str(facts.value("said.model") or "").rstrip("/").rpartition("/")[2]]
    names = [_BUILT.sub("", name.rpartition(".")[2]) if _BUILDER.fullmatch(name) else name for name in names]
    of_family = kind.lower().replace("-", "_")
    for start, flavors in _TITAN_FLAVORS.items():
        if start in of_family and flavor.lower() in flavors:
            names.append(flavors[flavor.lower()])
    for start, meant in _TITAN_MODELS.items():
        if flavor and re.search(rf"{start}(?!_vl)", of_family):
            names.append(f"{meant}-{flavor.lower()}")
    if flavor and kind:
        names.append(f"{kind}-{flavor}")
    for name in names:
        with contextlib.suppress(InputError):
            return published_model(_FILE_END.sub("", name[:80]))
    return None


def _unnamed(facts: JobFacts) -> Iterator[str]:
    """Why a name that files give a model names none here, with the flag that does."""
    name_in_file = str(facts.value("said.model") or "")
    name = "" if _SENTENCE.search(name_in_file) else name_in_file.rstrip("/").rpartition("/")[2]
    if not name:
        yield "no file names the model, or only a run knows it: give --model NAME, or its config.json"
    else:
        try:
            published_model(name[:80])
        except InputError as unknown:
            close = unknown.suggestions[:1] if isinstance(unknown, UnknownNameError) else ()
            such = f" such as {close[0]}" if close else ""
            yield f"no model here is called {name[:80]}: give --model NAME{such}, or its config.json"


def _gpus(reading: Reading, flags: Flags, notes: _Notes) -> str | None:
    """The number of GPUs."""
    gpus = reading.facts.count("cluster.num_gpus")
    if gpus:
        return str(gpus)
    split = math.prod(reading.facts.count(f"layout.{name}") or 1 for name in ("tp", "pp", "cp"))
    if reading.mentioned_gpus and reading.mentioned_gpus % split == 0 and not flags.cluster:
        notes.assumed.append(f"{reading.mentioned_gpus} GPUs, as a comment of the file says")
        return str(reading.mentioned_gpus)
    if not flags.cluster:
        notes.missing.append("--gpus")
    return None


def _stated_gpu(reading: Reading, gpu: str | None, notes: _Notes) -> str | None:
    """The GPU of the user's words, and that the files mention another."""
    others = [name for name in reading.gpus if gpu and sheet_named(gpu).name != name]
    if others and len(others) == len(reading.gpus):
        notes.assumed.append(f"GPUs are {gpu}, as --gpu says; the file mentions {' and '.join(others)}")
    return gpu


def _gpu(reading: Reading, notes: _Notes) -> str:
    """The kind of GPU that the files mention, or the usual one."""
    log = reading.measured
    if len(reading.gpus) == 1:
        name = reading.gpus[0]
        shown = shown_gpu(log, name)
        if log is not None and shown and shown != name:
            notes.assumed.append(f"GPUs are {shown}: the log is of {shown_figures(log)}, not of a {name}")
            return shown
        others = " or ".join(reading.other_memories.get(name, ()))
        doubt = f" without its memory: --gpu {others} is the other" if others else ""
        notes.assumed.append(f"GPUs are {name}, which the file mentions{doubt}")
        return name
    if log is not None and (shown := shown_gpu(log, default_gpu())):
        why = f"GPUs are {shown}: the log is of {shown_figures(log)}"
        if shown == default_gpu() or log.gpu_peak_flop_per_s:
            notes.assumed.append(why)
        else:  # several have as much memory
            notes.take("cluster.gpu", shown, f"{why}, so give --gpu")
        return shown
    taken, why = default_gpu(), "the file does not say, so give --gpu"
    peak = log.peak_memory_bytes if log is not None else None
    if peak and (larger := holding_gpu(peak, taken)) not in ("", taken):
        taken, why = larger, f"the log prints a peak of {format_bytes(peak)}, more than a {taken} has (--gpu)"
    notes.take("cluster.gpu", taken, f"GPUs are {taken}: {why}")
    return taken


_OF_DATA, _OF_AXES = "pytorch", "torchtitan"
"""The profile of programs over FSDP, and that of the engine which has more axes beside FSDP."""
ZERO_OF_FSDP = 3


def _kernels_of_program(reading: Reading, request: PlanRequest) -> dict[str, str]:
    """How a program over FSDP runs its layers, where another engine lends it the price of its axes."""
    if request.stack != _OF_AXES or _profile_of_family(reading) != _OF_DATA or not _axes_beside_data(reading):
        return {}
    lender, program = switches_of(find_stack(_OF_AXES)), switches_of(find_stack(_OF_DATA))
    return {"compile": program["compile"]} if program["compile"] != lender["compile"] else {}


def _profile_of_family(reading: Reading) -> str:
    """The profile of the family of the files; verl runs over Megatron or over FSDP."""
    over_fsdp = reading.family.name == "verl" and reading.facts.value("layout.zero_stage") == ZERO_OF_FSDP
    return reading.family.stack or (_OF_DATA if over_fsdp else "megatron-core")


def _axes_beside_data(reading: Reading) -> list[str]:
    """Axes of sequences and experts that the files split."""
    return [axis for axis in ("cp", "ep") if (reading.facts.count(f"layout.{axis}") or 1) > 1]


def _stack(reading: Reading, notes: _Notes) -> str:
    """The profile that prices the engine of the files."""
    name, split = _profile_of_family(reading), _axes_beside_data(reading)
    if name == _OF_DATA and split:
        lacking = f"{name} has no price of {' and '.join(split)}"
        why = f"{reading.family.name} is priced as {_OF_AXES}, since {lacking}"
        notes.take("stack", _OF_AXES, why)
        return _OF_AXES
    if not reading.family.stack or reading.family.likened:
        taken = None if reading.family.likened else name
        notes.take("stack", taken, f"{reading.family.name} is priced as {name}")
    return name


def _precision(reading: Reading, parsed: EngineReading | None, notes: _Notes) -> str:
    """The format that is trained in."""
    name = value_of(reading, parsed, "job.precision").value
    if name in TRAINING:
        return str(name)
    if why := in_full_precision(reading):
        notes.take("job.precision", None, f"fp32 is priced as bf16 ({why})")
        return "bf16"
    notes.assumed.append("bf16: the file does not state a precision")
    return "bf16"


def _node_size(facts: JobFacts, flags: Flags) -> tuple[str, ...]:
    """GPUs of a node, where the files state less or more than the reference machine has."""
    each, total = facts.count("said.gpus_per_node"), facts.count("cluster.num_gpus")
    if flags.cluster or flags.gpus or not each or not total or total % each or total == each:
        return ()
    return (f"cluster.gpus_per_node={each}", f"cluster.count={total // each}")


def _with_axes(reading: Reading, request: PlanRequest, layout: ParallelLayout | None) -> PlanRequest:
    """The request with the axes pinned that the programs of its files cannot split a job over."""
    if layout is None or not reading.family.only_data:
        return request
    axes = {name: getattr(layout, name) for name in ("tp", "pp", "cp", "ep")}
    return replace(request, pins={**axes, **request.pins})


def _with_modules(reading: Reading, request: PlanRequest) -> PlanRequest:
    """The request with the modules that a policy of MaxText makes again."""
    policy = str(reading.facts.value("said.recompute") or "").lower()
    kept = kept_by(policy, kept_tensors(reading.facts)) if reading.family.name == "MaxText" else None
    if kept is None or not kept.modules or request.recompute_modules:
        return request
    return replace(request, recompute_modules=kept.modules)


def _optimizer(reading: Reading, request: PlanRequest, name: Any, notes: _Notes) -> str:
    """The optimizer of a whole model: that which files name, over weights as they are kept."""
    named = str(name or request.job.optimizer)
    offload = request.job.offload
    if request.job.adapter is not None or (offload is not None and offload.updated):
        if named != request.job.optimizer:
            notes.assumed.append(
                f"{named} beside an adapter or an offload is priced as {request.job.optimizer}"
            )
        return request.job.optimizer
    return OVER_HALF.get(named, named) if half_weights(reading) is not None else named


def _batch(
    reading: Reading,
    parsed: EngineReading | None,
    layout: ParallelLayout | None,
    gpus: int,
    notes: _Notes,
) -> int:
    """The global batch, or one microbatch of every replica."""
    stated = value_of(reading, parsed, "job.global_batch_size").value
    if stated:
        return int(stated)
    replicas = layout.dp if layout else gpus
    size = layout.microbatch_size if layout else reading.facts.count("layout.microbatch_size") or 1
    steps = whole_or_none(reading.facts.value("said.accumulation")) or 1
    batch = replicas * size * max(1, steps)
    notes.assumed.append(f"a global batch of {batch}: dp {replicas} · {size} samples · {steps} accumulated")
    return batch
