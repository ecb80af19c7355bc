"""What follows from what a file states: chunks from layers, ZeRO from its words, dp from GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from costmodel.kernels.precisions import precision_in
from costmodel.layout import INTERLEAVED_SCHEDULE
from costmodel.pipeline.schedules import schedule_named
from planner.audit.facts import JobFacts
from planner.audit.maxtext import NAMED, kept_by
from planner.audit.ranks import axes_over_slices, global_batch_of, gpus_of_machines, replicas_of_files, world
from planner.audit.sharding import zero
from planner.audit.words import OPTIMIZERS, PARENTS, Family
from planner.formats.settings import truth_of, whole_or_none


def conclude(facts: JobFacts, family: Family) -> None:
    """Add every fact that follows."""
    parent = str(facts.value("said.parent") or "").rpartition("/")[2]
    defaults = {**family.defaults, **PARENTS.get(parent, {})}
    why = f"{parent or family.name} has it where nothing is said"
    if parent in PARENTS:
        facts.notes.append(
            f"{parent} was not given: values as it is published are taken for what is not said here"
        )
    for name, value in defaults.items():
        if name in ("layout.tp", "layout.pp", "layout.cp"):  # dp follows from these
            facts.put(name, value, "default", why)
    for step in _STEPS:
        step(facts, family)
    for name, value in defaults.items():
        facts.put(name, value, "default", why)


def _precision(facts: JobFacts, family: Family) -> None:
    """The format that linear layers multiply in; eight bits over sixteen."""
    words = [
        str(facts.value(name) or "") for name in ("said.fp4", "said.fp8", "said.fp8_recipe", "said.precision")
    ]
    low = words[0] if words[0].lower() not in ("", "false", "0", "no") else ""
    eight = words[1] if words[1].lower() not in ("", "false", "0", "no", "none") else ""
    if low:
        facts.put("job.precision", "nvfp4", "stated", f"fp4 {low}", like="said.fp4")
    elif eight:
        name = "mxfp8" if "mx" in words[2] else "fp8"
        facts.put("job.precision", name, "stated", f"fp8 {eight}", like="said.fp8")
    if family.name == "torchtitan":
        converters = str(facts.value("said.converters") or "").lower()
        if "float8" in converters or "mx" in converters:
            name = "mxfp8" if "mx" in converters else "fp8"
            facts.put("job.precision", name, "stated", f"converters {converters}", like="said.converters")
        if "said.flavor" in facts.by_field and not str(facts.by_field["said.flavor"].source).startswith(
            "model_"
        ):
            facts.put("job.precision", "bf16", "default", "torchtitan trains in bf16 without a converter")
    for name, precision in (("said.bf16", "bf16"), ("said.fp16", "fp16")):
        if facts.truth(name) or str(facts.value(name)) == "auto" or facts.value(name) == "":
            facts.take("job.precision", precision, name)
    text = words[3].lower().rpartition("c=")[2]
    known = precision_in(text)
    if known:
        facts.take("job.precision", known, "said.precision")


def _recompute(facts: JobFacts, family: Family) -> None:
    """What is recomputed."""
    method = {"said.recompute_method", "said.recompute_full"} & facts.by_field.keys()
    if whole_or_none(facts.value("said.recompute_layers")) == 0 and method:
        facts.take("layout.recompute", "none", "said.recompute_layers")
    if family.name == "Megatron-LM" and facts.truth("said.recompute_selective"):  # whatever else it is told
        facts.take("layout.recompute", "selective", "said.recompute_selective")
    _policy(facts, family)
    for name, policy in (("said.recompute_full", "full"), ("said.recompute_selective", "selective")):
        held = facts.truth(name)
        if held is None and facts.value(name) is not None:
            held = True  # a way of doing it: unsloth, offload, …
        if held is not None:
            facts.take("layout.recompute", policy if held else "none", name)
    off = facts.truth("said.recompute_off")
    if off is not None:
        facts.take("layout.recompute", "none" if off else "full", "said.recompute_off")
    of_model = facts.value("said.checkpoints_of_model")
    if of_model is not None and truth_of(of_model) is not False:
        facts.take("layout.recompute", "full", "said.checkpoints_of_model")
    _arguments_of_trl(facts)
    if family.name == "verl":
        _of_verl(facts)
    whole_file = family.name == "Megatron-LM"  # without a granularity it recomputes nothing
    if "said.recompute_method" in facts.by_field:
        facts.take("layout.recompute", "none" if whole_file else "full", "said.recompute_method")
    if "said.recompute_modules" in facts.by_field:
        facts.take("layout.recompute", "none" if whole_file else "selective", "said.recompute_modules")


def _arguments_of_trl(facts: JobFacts) -> None:
    """Defaults of SFTConfig that differ from those of the Trainer's arguments (trl/trainer/sft_config.py)."""
    if facts.value("said.arguments") == "SFTConfig":
        why = "TRL's SFTConfig has it where nothing is said, in releases of 2025 and later"
        facts.put("layout.recompute", "full", "default", why)
        facts.put("job.sequence_length", 1024, "default", why)


def _of_verl(facts: JobFacts) -> None:
    """What verl's FSDP workers recompute without a word (verl/trainer/config/model/hf_model.yaml).

    Its Megatron workers do not read that word: they recompute what their transformer configuration says.
    """
    strategy = str(facts.value("said.strategy") or "fsdp").lower()
    if "fsdp" in strategy and not (facts.stated("layout.tp") or facts.stated("layout.pp")):
        why = "verl has it where nothing is said, in releases with model/hf_model.yaml"
        facts.put("layout.recompute", "full", "default", why)


_OPTION_UNTOLD = (
    "selective_ac_option is not stated: per-op is taken, as later releases of torchtitan have it; "
    "earlier ones recompute every second layer"
)


def layer_period(facts: JobFacts) -> int | None:
    """Of how many layers torchtitan recomputes one whole (distributed/activation_checkpoint.py).

    None where files name no number of layers.
    """
    return whole_or_none(facts.value("said.recompute_option"))


def _policy(facts: JobFacts, family: Family) -> None:
    """The policy of recomputation that a word names; of one that is not known here nothing is concluded."""
    if family.name == "MaxText":
        _policy_of_maxtext(facts)
        return
    word = str(facts.value("said.recompute") or "").lower().partition("ac.config")[0]
    option = str(facts.value("said.recompute_option") or "")
    if word in ("full", "none"):
        facts.take("layout.recompute", word, "said.recompute")
    elif word in ("selective", "sel") and layer_period(facts) is not None:
        period = layer_period(facts)
        facts.take("layout.recompute", "full", "said.recompute_option")
        if period and period > 1:
            source = facts.by_field["said.recompute_option"].source
            facts.notes.append(f"{source}: 1 of {period} layers is recomputed whole, the others keep all")
    elif word in ("selective", "sel"):
        if family.name == "torchtitan" and not option and family.engine:
            facts.notes.append(_OPTION_UNTOLD)
        titan = "said.flavor" in facts.by_field or (family.name == "torchtitan" and not option)
        layers = option == "op" or titan
        facts.take("layout.recompute", "selective-op" if layers else "selective", "said.recompute")
    elif word:
        facts.unknown.add("layout.recompute")  # nobody here knows how much it drops


def _policy_of_maxtext(facts: JobFacts) -> None:
    """What a policy of MaxText keeps and makes again."""
    word = str(facts.value("said.recompute") or "").lower()
    if "said.recompute" not in facts.by_field:  # configs/base.yml
        why = "MaxText has remat_policy full where nothing is said"
        facts.put("layout.recompute", "full", "default", why)
    elif word == "none":
        facts.take("layout.recompute", word, "said.recompute")
    elif word and (kept := kept_by(word, kept_tensors(facts))) is not None:
        facts.take("layout.recompute", kept.recompute, "said.recompute")
        facts.notes.extend(filter(None, (kept.note,)))
    elif word:
        facts.unknown.add("layout.recompute")


def kept_tensors(facts: JobFacts) -> dict[str, str]:
    """Where MaxText's custom policy keeps each tensor that files name."""
    return {
        name: str(facts.value(f"said.kept_{name}")).lower()
        for name in NAMED
        if facts.value(f"said.kept_{name}") is not None
    }


def _optimizer(facts: JobFacts, _: Family) -> None:
    """The optimizer that a word of the Trainer names; one that is not known is AdamW, and said to be."""
    word = str(facts.value("said.trainer_optimizer") or "").lower().replace("-", "_").rpartition(".")[2]
    if not word:
        return
    if word in OPTIMIZERS:
        facts.take("job.optimizer", OPTIMIZERS[word], "said.trainer_optimizer")
    else:
        facts.notes.append(f"{facts.by_field['said.trainer_optimizer'].source} is priced as AdamW")


def _pipeline(facts: JobFacts, _: Family) -> None:
    """Chunks of a rank, and the schedule that they mean."""
    each, layers, pp = (
        whole_or_none(facts.value("said.layers_per_virtual_stage")),
        facts.count("model.num_layers"),
        facts.count("layout.pp"),
    )
    if each and each > 0 and layers and pp and layers % (each * pp) == 0:
        facts.put(
            "layout.virtual_stages",
            layers // (each * pp),
            "derived",
            f"{layers} layers, {pp} stages, {each} layers a chunk",
            like="said.layers_per_virtual_stage",
        )
    each = facts.count("said.pipeline_microbatch")
    if each and (pp or 1) > 1:  # what a rank holds at once is a part of its batch
        facts.by_field.pop("layout.microbatch_size", None)
        facts.take("layout.microbatch_size", each, "said.pipeline_microbatch")
    schedule = schedule_named(str(facts.value("layout.schedule") or ""))
    if "layout.schedule" in facts.by_field:
        fact = facts.by_field.pop("layout.schedule")
        if schedule is not None:
            facts.put("layout.schedule", schedule, fact.how, fact.source)
            _place(facts, "layout.schedule", fact.line, fact.file)
    if (facts.count("layout.virtual_stages") or 1) > 1:
        facts.put(
            "layout.schedule",
            INTERLEAVED_SCHEDULE,
            "derived",
            "several chunks a rank",
            like="layout.virtual_stages",
        )


def _place(facts: JobFacts, name: str, line: int, file: str) -> None:
    """Give a fact the place of the word that it came from."""
    from dataclasses import replace

    facts.by_field[name] = replace(facts.by_field[name], line=line, file=file)


_SEQUENCES = re.compile(r"(\d{1,9}) \* \w*sequence_length")
"""Tokens of so many sequences, whatever their length."""


def _sequence_parallel(facts: JobFacts, _: Family) -> None:
    """Nanotron's modes of tensor parallelism."""
    mode = facts.value("said.tp_mode")
    if mode is not None:
        facts.take("layout.sequence_parallel", str(mode).upper() == "REDUCE_SCATTER", "said.tp_mode")


def _tokens(facts: JobFacts, family: Family) -> None:
    """Sequences of a microbatch and of a step, where files count them in tokens."""
    usual: Any = family.defaults.get("job.sequence_length")
    length = facts.count("job.sequence_length") or whole_or_none(usual)
    counted = (
        ("said.microbatch_tokens", "layout.microbatch_size"),
        ("said.batch_tokens", "job.global_batch_size"),
    )
    for word, name in counted:
        value = facts.value(word)
        sequences = _SEQUENCES.fullmatch(str(value))
        tokens = whole_or_none(value)
        if sequences:
            facts.put(name, int(sequences[1]), "derived", f"{value} tokens", like=word)
        elif tokens and length and tokens % length == 0:
            facts.put(name, tokens // length, "derived", f"{tokens} tokens of {length}", like=word)


_OVERRIDES: Mapping[str, str] = {
    "n_embd": "model.hidden_size",
    "n_head": "model.num_attention_heads",
    "n_layer": "model.num_layers",
    "n_positions": "job.sequence_length",
    "hidden_size": "model.hidden_size",
    "num_hidden_layers": "model.num_layers",
    "num_attention_heads": "model.num_attention_heads",
}


def _overrides(facts: JobFacts, _: Family) -> None:
    """Sizes in the text of ``--config_overrides``."""
    for part in str(facts.value("said.overrides") or "").split(",")[:40]:
        name, text = part.partition("=")[::2]
        count = whole_or_none(text)
        if name.strip() in _OVERRIDES and count and count > 0:
            facts.put(
                _OVERRIDES[name.strip()],
                count,
                "stated",
                f"config_overrides {part.strip()}",
                like="said.overrides",
            )


def _microbatch_of_tokens(facts: JobFacts, _: Family) -> None:
    """Answers of a microbatch that verl fills up to a number of tokens, at their longest, as many as divide.

    Ranks that share a sequence share its tokens (verl/workers/actor/dp_actor.py, `update_policy`).
    """
    tokens, length = facts.count("said.answer_tokens"), facts.count("job.sequence_length")
    batch, dp = facts.count("job.global_batch_size"), facts.count("layout.dp")
    if not facts.truth("said.dynamic_batch") or not (tokens and length and batch and dp):
        return
    most = max(tokens * (facts.count("layout.cp") or 1) // length, 1)
    each = max(batch // dp, 1)
    size = max(size for size in range(1, min(most, each, MOST_IN_MICROBATCH) + 1) if each % size == 0)
    facts.by_field.pop("layout.microbatch_size", None)
    source = f"{tokens:,} tokens of a GPU hold {most} answers of {length:,}"
    facts.put("layout.microbatch_size", size, "derived", source, like="said.answer_tokens")


MOST_IN_MICROBATCH = 4096
"""Answers of a microbatch that are tried as a divisor."""


def _lengths(facts: JobFacts, _: Family) -> None:
    """Tokens of a sample whose question and answer are counted apart, and truth of yes-or-no fields."""
    prompt, answer = (
        whole_or_none(facts.value("said.prompt_length")),
        whole_or_none(facts.value("said.response_length")),
    )
    if prompt and answer:
        facts.put(
            "job.sequence_length",
            prompt + answer,
            "derived",
            "prompt and response",
            like="said.response_length",
        )
    prompts, answers = facts.count("said.update_prompts"), facts.count("said.answers")
    if prompts and answers:  # an update is told in prompts, each with all its answers
        source = f"{prompts} prompts of {answers} answers"
        facts.put("job.global_batch_size", prompts * answers, "derived", source, like="said.update_prompts")
    if facts.value("said.expert_parallel") is not None and truth_of(facts.value("said.expert_parallel")):
        degree = (facts.count("layout.tp") or 1) * (facts.count("layout.dp") or 1)
        facts.put(
            "layout.ep", degree, "derived", "experts over all GPUs of a stage", like="said.expert_parallel"
        )


def _batch_of_arguments(facts: JobFacts, family: Family) -> None:
    """Samples of a device where no word states them, of the class that holds a trainer's arguments.

    Unsloth makes a class of its own of each that TRL has. Where nothing shows the class, it stays unknown:
    a program that only `accelerate` starts may have arguments and defaults of its own.
    """
    shown = str(facts.value("said.arguments") or "")
    if family.name == "Unsloth" and shown in _MADE_BY_UNSLOTH:
        size, steps = BATCH_OF_UNSLOTH
        why = f"the {shown} that Unsloth makes of TRL's has it where nothing is said"
        facts.put("layout.microbatch_size", size, "default", why)
        facts.put("said.accumulation", steps, "default", why)
        if "said.trainer_optimizer" not in facts.by_field:
            facts.put("job.optimizer", OPTIMIZER_OF_UNSLOTH, "default", why)
    elif family.name == "LLaMA-Factory" or (
        (family.name == "HF Trainer" and (shown or "said.only_of_trainer" in facts.by_field))
        or (family.name == "Unsloth" and shown in CLASSES_OF_TRAINER)
    ):
        why = "TrainingArguments of transformers has it where nothing is said"
        facts.put("layout.microbatch_size", BATCH_OF_ARGUMENTS, "default", why)


BATCH_BY_CLASS = ("HF Trainer", "Unsloth")
"""Families whose batch without a word is that of the class of arguments, which files may not show."""
BATCH_OF_ARGUMENTS = 8
"""per_device_train_batch_size (transformers/training_args.py)."""
BATCH_OF_UNSLOTH = (4, 2)
"""per_device_train_batch_size and gradient_accumulation_steps of its classes (unsloth/models/rl.py)."""
OPTIMIZER_OF_UNSLOTH = OPTIMIZERS["adamw_8bit"]
"""optim of its classes, whatever class of TRL they are made of."""
CLASSES_OF_TRAINER = ("TrainingArguments", "Seq2SeqTrainingArguments")
_MADE_BY_UNSLOTH = ("SFTConfig", "DPOConfig", "KTOConfig", "ORPOConfig", "CPOConfig", "RewardConfig")
"""Of TRL's; not those whose batch Unsloth rounds to the answers of a prompt."""
CLASSES_OF_ARGUMENTS = (*_MADE_BY_UNSLOTH, "GRPOConfig", "RLOOConfig", "GKDConfig", *CLASSES_OF_TRAINER)
"""Classes with `BATCH_OF_ARGUMENTS` where Unsloth makes no other: TRL's extend the Trainer's."""

_STEPS: tuple[Callable[[JobFacts, Family], None], ...] = (
    _overrides,
    axes_over_slices,
    gpus_of_machines,
    _precision,
    _recompute,
    _optimizer,
    zero,
    _pipeline,
    _lengths,
    _sequence_parallel,
    _tokens,
    _batch_of_arguments,
    replicas_of_files,
    world,
    global_batch_of,
    _microbatch_of_tokens,
)
