"""A checkpoint of an adapter as PEFT saves one: ``adapter_config.json`` and ``adapter_model.safetensors``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from costmodel.models.spec import ModelSpec
from costmodel.updates.adapters import Adapter
from executor.model.hf_config import published_config
from executor.model.hf_publish import targets
from executor.model.low_rank import add_adapter, is_added
from executor.model.transformer import CausalLM, build_model
from executor.training.checkpoint import WRITING
from executor.training.publish import DTYPES, SavedCheckpoint, load_whole, require_empty
from topology.base.atomic import sync_file, sync_folder, write_atomically
from topology.base.errors import InputError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""What PEFT puts before the names of the model that it wraps."""


def publish_adapter(
    checkpoint: SavedCheckpoint, spec: ModelSpec, adapter: Adapter, to: Path, *, dtype: str
) -> list[Path]:
    """Write what an adapter's run has trained; returns the files.

    Args:
        checkpoint: One step's.
        spec: The model under it.
        adapter: What was trained.
        to: Folder to make; it must not hold anything yet.
        dtype: Number format of the matrices, ``bf16`` or ``fp32``.
    """
    require_empty(to)
    model = add_adapter(build_model(spec), adapter)
    _require_own_names(model, spec)
    shapes = {name: value.shape for name, value in model.named_parameters() if is_added(name)}
    state = {f"model.{name}": torch.empty(shape, dtype=torch.float32) for name, shape in shapes.items()}
    load_whole(state, checkpoint)
    tensors = {f"{PREFIX}{name}": state[f"model.{name}"].to(DTYPES[dtype]).contiguous() for name in shapes}
    writing = to.with_name(f"{WRITING}{to.name}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    save_file(tensors, writing / WEIGHTS, metadata={"format": "pt"})
    sync_file(writing / WEIGHTS)
    write_atomically(writing / CONFIG, json.dumps(_config(model, spec, adapter), indent=2) + "\n")
    if to.exists():
        to.rmdir()
    writing.rename(to)
    sync_folder(to.parent)
    return sorted(to.iterdir())


def _config(model: CausalLM, spec: ModelSpec, adapter: Adapter) -> dict[str, Any]:
    """What PEFT asks of an adapter, under its words."""
    modules = {name.split(".")[-3] for name, _ in model.named_parameters() if is_added(name)}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.name,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha_or_rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(modules),
    }


def _require_own_names(model: CausalLM, spec: ModelSpec) -> None:
    """Refuse a family whose published projections have other names, or hold several of ours in one."""
    family, _ = published_config(spec)
    shapes = dict(build_model(spec).named_parameters())
    beside = {
        name.rpartition(".lora_")[0] + ".weight" for name, _ in model.named_parameters() if is_added(name)
    }
    for target in targets(family, tuple(shapes)):
        if beside.isdisjoint(target.parameters):
            continue
        made = target.publish([shapes[name].to("meta") for name in target.parameters])
        if set(made) != set(target.parameters):
            raise InputError(
                what=f"the adapter of {spec.name} cannot be written for PEFT",
                cause=f"{family} publishes {', '.join(target.parameters)} as {', '.join(made)}",
                fix="go on with the run's own checkpoints",
            )
