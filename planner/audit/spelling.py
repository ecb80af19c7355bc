"""Changes of a layout in the words of the file that is changed."""

from __future__ import annotations

import json
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
_OTHERS: Mapping[str, str] = {
    "tp": "tensor_parallel_size",
    "cp": "context_parallel_size",
    "microbatch_size": "per_device_train_batch_size",
    "zero_stage": "zero_optimization.stage",
}
_ZERO: Mapping[int, tuple[str, ...]] = {
    0: ("-use_distributed_optimizer",),
    1: ("use_distributed_optimizer",),
    2: ("zero_stage 2",),
    3: ("zero_stage 3",),
}


_HF = ("Axolotl", "Accelerate", "LLaMA-Factory", "HF Trainer")


def spelled_change(reading: Reading, fields: tuple[tuple[str, Any], ...]) -> tuple[str, ...]:
    """Words to write for new values of fields; what follows from others (dp of Megatron) is left out."""
    return tuple(_styled(reading, word) for name, value in fields for word in _words(reading, name, value))


def spelled_words(reading: Reading, said: Mapping[str, Any], gone: tuple[str, ...]) -> tuple[str, ...]:
    """Words of a contract as the file has them: with its own names where it has them, in its own style."""
    known = CONTRACTS[reading.family.engine].words
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
    if isinstance(value, list | tuple) and any(isinstance(part, list | tuple) for part in value):
        return json.dumps(value)
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _kind(reading: Reading) -> str:
    """Whose words are written."""
    megatron = "tensor_model_parallel_size" in reading.family.words
    return "megatron" if megatron and reading.family.name not in _HF else "other"


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
    if name == "zero_stage" and kind == "megatron":
        yield from _ZERO[value]
        return
    if name == "dp":  # follows from the others and the GPUs
        return
    fact = reading.facts.found.get(f"layout.{name}")
    table = {"megatron": _MEGATRON, "other": _OTHERS}[kind]
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
        if kind == "toml" and not re.fullmatch(r"-?[\d.]+|true|false|\[.*\]", written):
            written = f'"{written}"'
        text = f"{name} = {written}" if kind == "toml" else f"{name}: {written}"
    return f"without {text.split(' ')[0].rstrip(':')}" if gone else text
