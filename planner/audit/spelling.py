"""Changes of a layout in the words of the file that is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.audit.read import Reading
from planner.engines.contracts import CONTRACTS
from planner.engines.quoting import shell
from planner.formats.settings import spelled

_RECOMPUTE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "megatron": {
        "full": ("recompute_granularity full", "recompute_method uniform", "recompute_num_layers 1"),
        "selective": ("recompute_granularity selective",),
        "none": ("-recompute_granularity",),
    },
    "torchtitan": {
        "full": ("activation_checkpoint.mode full",),
        "selective": ("activation_checkpoint.mode selective",),
        "selective-op": (
            "activation_checkpoint.mode selective",
            "activation_checkpoint.selective_ac_option op",
        ),
        "none": ("activation_checkpoint.mode none",),
    },
    "other": {
        "full": ("gradient_checkpointing true",),
        "selective": ("gradient_checkpointing true",),
        "none": ("gradient_checkpointing false",),
    },
}
_MEGATRON: Mapping[str, str] = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "expert_tp": "expert_tensor_parallel_size",
    "microbatch_size": "micro_batch_size",
    "virtual_stages": "num_virtual_stages_per_pipeline_rank",
}
_TITAN: Mapping[str, str] = {
    "tp": "parallelism.tensor_parallel_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
    "microbatch_size": "training.local_batch_size",
    "schedule": "parallelism.pipeline_parallel_schedule",
    "dp": "parallelism.data_parallel_shard_degree",
}
_OTHERS: Mapping[str, str] = {
    "tp": "tensor_parallel_size",
    "cp": "context_parallel_size",
    "microbatch_size": "per_device_train_batch_size",
    "zero_stage": "zero_optimization.stage",
}
_ZERO: Mapping[str, Mapping[int, tuple[str, ...]]] = {
    "megatron": {
        0: ("-use_distributed_optimizer",),
        1: ("use_distributed_optimizer",),
        2: ("use_megatron_fsdp", "data_parallel_sharding_strategy optim_grads"),
        3: ("use_megatron_fsdp", "data_parallel_sharding_strategy optim_grads_params"),
    },
    "torchtitan": {
        0: (),
        1: (),
        2: ("parallelism.fsdp_reshard_after_forward never",),
        3: ("parallelism.fsdp_reshard_after_forward always",),
    },
}
_SCHEDULES: Mapping[str, str] = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zb-h1": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
}


def spelled_change(reading: Reading, fields: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    """Words to write for new values of fields; what follows from others (dp of Megatron) is left out."""
    return tuple(_styled(reading, word) for name, value in fields for word in _words(reading, name, value))


def spelled_words(
    reading: Reading, engine: str, said: Mapping[str, Any], gone: tuple[str, ...]
) -> tuple[str, ...]:
    """Words of a contract as the file has them: with its own names where it has them, in its own style."""
    known = CONTRACTS[engine].words
    own = {".".join(setting.path): setting.name for setting in reading.settings}
    ends = {path.rpartition(".")[2]: name for path, name in own.items()}
    prefix = next((name.rpartition(".")[0] for name in own.values() if name.endswith("parallel_size")), "")

    def name(word: str) -> str:
        if not word.startswith("--"):
            spellings = (word, *known[word].aliases, f"{word}.mode")
            return next((own[spelling] for spelling in spellings if spelling in own), word)
        plain = word.lstrip("-").replace("-", "_")
        return ends.get(plain, f"{prefix}.{plain}".lstrip("."))

    written = [
        name(word) if value is True else f"{name(word)} {_plain(value)}" for word, value in said.items()
    ]
    return tuple(_styled(reading, word) for word in (*written, *(f"-{name(word)}" for word in gone)))


def _plain(value: Any) -> str:
    """A value as it stands after its word."""
    if value is None:
        return "none"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _kind(reading: Reading) -> str:
    """Whose words are written."""
    if reading.family.name in (
        "Megatron-LM",
        "Megatron-Bridge",
        "Primus",
        "NeMo",
        "Megatron-DeepSpeed",
        "NeMo-RL",
        "verl",
    ):
        return "megatron"
    return "torchtitan" if reading.family.name == "torchtitan" else "other"


def _words(reading: Reading, name: str, value: Any) -> Iterator[str]:
    """Words for one field."""
    kind = _kind(reading)
    if name == "recompute":
        yield from _RECOMPUTE[kind].get(str(value), ())
        return
    if name == "sequence_parallel":
        if kind == "megatron":
            yield "sequence_parallel" if value else "-sequence_parallel"
        return
    if name == "zero_stage" and kind != "other":
        yield from _ZERO[kind][value]
        return
    if name == "dp" and (kind != "torchtitan" or reading.facts.value("said.dp_shard") == -1):
        return
    if name == "schedule" and kind == "torchtitan":
        value = _SCHEDULES.get(str(value), value)
    fact = reading.facts.found.get(f"layout.{name}")
    table = {"megatron": _MEGATRON, "torchtitan": _TITAN, "other": _OTHERS}[kind]
    word = (fact.word if fact is not None else "") or table.get(name, "")
    if word:
        yield f"{word} {value}"


def _styled(reading: Reading, word: str) -> str:
    """A word as the first file would have it: a flag, a line of TOML, YAML or Python."""
    kinds = list(reading.kinds.values())
    kind = kinds[0] if kinds else "shell"
    gone = word.startswith("-")
    name, _, value = word.lstrip("-").partition(" ")
    if kind in ("shell", "page", "log"):
        dashes = _kind(reading) == "megatron" and "." not in name and not name.isupper()
        flag = (
            name
            if name.isupper() or ("." in name and "=" in name)
            else f"--{name.replace('_', '-') if dashes else name}"
        )
        value = shell(value) if re.search(r"[|()*;&<>$]", value) else value
        text = f"{flag} {value}".rstrip() if not name.isupper() else f"{name}={value}"
    elif kind == "python":
        written = (
            repr(value) if value and not re.fullmatch(r"-?[\d.]+|True|False", value) else value or "True"
        )
        text = f"cfg.{name if '.' in name else f'model.{spelled(name)}'} = {written}"
    else:
        written = value or "true"
        if kind == "toml" and not re.fullmatch(r"-?[\d.]+|true|false", written):
            written = f'"{written}"'
        text = f"{name} = {written}" if kind == "toml" else f"{name}: {written}"
    return f"without {text.split(' ')[0].rstrip(':')}" if gone else text
