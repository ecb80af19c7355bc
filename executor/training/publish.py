"""A checkpoint as Hugging Face publishes models: config.json, sharded safetensors and their index.

One file's tensors are in memory at a time. The folder appears whole, under its name, or not at all.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.api import CheckpointException

from costmodel.models.spec import ModelSpec
from executor.model.hf_config import published_config
from executor.model.hf_publish import Target, targets
from executor.model.transformer import build_model
from executor.training.checkpoint import WRITING, unloadable
from executor.training.checkpoint_reader import open_checkpoint
from executor.training.manifest import (
    Manifest,
    folder_of_step,
    intact,
    read_manifest,
    require_signed,
    steps_on_disk,
)
from topology.base.atomic import sync_file, sync_folder, write_atomically
from topology.base.errors import InputError

LARGEST_FILE_BYTES = 5_000_000_000  # as huggingface_hub cuts
INDEX = "model.safetensors.index.json"
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class SavedCheckpoint(NamedTuple):
    """A checkpoint that is as it was written."""

    folder: Path
    manifest: Manifest


def find_checkpoint(root: Path, key: bytes | None, step: int | None = None) -> SavedCheckpoint:
    """The newest checkpoint of a run that is whole, or the one after a step."""
    steps = steps_on_disk(root)
    for number in steps if step is None else [step]:
        folder = folder_of_step(root, number)
        manifest = read_manifest(folder)
        if manifest is not None and intact(folder, manifest.files):
            require_signed(manifest, key, folder)
            return SavedCheckpoint(folder, manifest)
    raise InputError(
        what=f"{root} holds no such checkpoint that is whole",
        cause=f"steps {', '.join(map(str, steps)) or 'none'}" + ("" if step is None else f", asked {step}"),
        fix="give the folder of a run that has written a checkpoint, and one of its steps",
    )


def require_empty(to: Path) -> None:
    """Refuse a place that holds something."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise InputError(
            what=f"{to} is there already",
            cause="published weights go into a folder of their own",
            fix="give a folder that does not exist yet",
        )


def publish(
    checkpoint: SavedCheckpoint,
    spec: ModelSpec,
    to: Path,
    *,
    dtype: str,
    largest_bytes: int = LARGEST_FILE_BYTES,
) -> list[Path]:
    """Write a checkpoint's parameters for transformers; returns the files.

    Args:
        checkpoint: One step's.
        spec: The whole model.
        to: Folder to make; it must not hold anything yet.
        dtype: Number format of the matrices, ``bf16`` or ``fp32``. What only routes stays in fp32.
        largest_bytes: Of one file; a tensor is never cut.
    """
    require_empty(to)
    family, config = published_config(spec)
    shapes = {name: value.to("meta") for name, value in build_model(spec).named_parameters()}
    files = list(_files(targets(family, tuple(shapes)), shapes, DTYPES[dtype], largest_bytes))
    writing = to.with_name(f"{WRITING}{to.name}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    places: dict[str, str] = {}
    total = 0
    for number, made in enumerate(files, start=1):
        tensors = _tensors(made, checkpoint, shapes, DTYPES[dtype])
        part = f"-{number:05d}-of-{len(files):05d}" if len(files) > 1 else ""
        name = f"model{part}.safetensors"
        save_file(tensors, writing / name, metadata={"format": "pt"})
        sync_file(writing / name)
        places |= dict.fromkeys(tensors, name)
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        write_atomically(writing / INDEX, json.dumps(index, indent=2) + "\n")
    text = json.dumps({**config, "torch_dtype": str(DTYPES[dtype]).removeprefix("torch.")}, indent=2)
    write_atomically(writing / "config.json", text + "\n")
    if to.exists():
        to.rmdir()
    writing.rename(to)
    sync_folder(to.parent)
    return sorted(to.iterdir())


def _files(
    values: Iterator[Target], shapes: Mapping[str, torch.Tensor], dtype: torch.dtype, largest_bytes: int
) -> Iterator[list[Target]]:
    """Put targets into files, in order, none larger than asked if it holds more than one."""
    file: list[Target] = []
    filled = 0
    for target in values:
        size = sum(shapes[name].numel() * dtype.itemsize for name in target.parameters)
        if file and filled + size > largest_bytes:
            yield file
            file, filled = [], 0
        file.append(target)
        filled += size
    yield file


def load_whole(state: dict[str, torch.Tensor], checkpoint: SavedCheckpoint) -> None:
    """Fill whole tensors from a checkpoint in one process; refuses one that lacks any of them."""
    reader = open_checkpoint(*checkpoint)
    missing = sorted(state.keys() - reader.metadata.state_dict_metadata.keys())
    if missing:
        raise InputError(
            what=f"{checkpoint.folder} does not hold all of the model",
            cause=f"{len(missing)} of {len(state)} tensors are missing, such as {missing[0]}",
            fix="go on with the run for a step, which writes them, or give the folder of a run of this plan",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(state, storage_reader=reader, no_dist=True)
    except CheckpointException as error:  # no `Exception`
        raise unloadable(checkpoint.folder, error) from error


def _tensors(
    made: list[Target], checkpoint: SavedCheckpoint, shapes: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Read the parameters of one file and turn them into its tensors."""
    names = [name for target in made for name in target.parameters]
    state = {f"model.{name}": torch.empty(shapes[name].shape, dtype=torch.float32) for name in names}
    load_whole(state, checkpoint)
    tensors: dict[str, torch.Tensor] = {}
    for target in made:
        for name, tensor in target.publish([state[f"model.{ours}"] for ours in target.parameters]).items():
            kept = tensor.dtype if name.endswith("e_score_correction_bias") else dtype
            tensors[name] = tensor.to(kept).contiguous()
    return tensors
