"""Hugging Face state dicts: whole parameters found under the names that published families use.

Names are the same except for experts, which are published one by one (`mlp.experts.7.up_proj.weight`, Mixtral
`block_sparse_moe.experts.7.w3.weight`) and are stacked here.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path

import torch

from topology.errors import InputError

_MIXTRAL = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def whole_parameter(state: Mapping[str, torch.Tensor], name: str, shape: torch.Size) -> torch.Tensor:
    """Find the value of one parameter in a state dict, stacking experts; its shape must be the model's."""
    found = state.get(name)
    if found is None:
        found = _stacked_experts(state, name) if ".mlp.experts." in name else _renamed(state, name)
    if found is None:
        raise InputError(
            what=f"the state dict has no {name}",
            cause=f"{len(state)} tensors, first {next(iter(state), 'none')!r}",
            fix="load a state dict of the same model family, with its full Hugging Face names",
        )
    if found.shape != shape:
        raise InputError(
            what=f"{name} does not fit the model",
            cause=f"shape {tuple(found.shape)}, the model needs {tuple(shape)}",
            fix="load the state dict of this very model",
        )
    return found


def _renamed(state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    """Routers and shared experts under their other published names."""
    for ours, theirs in ((".mlp.gate.", ".block_sparse_moe.gate."), (".shared_experts.", ".shared_expert.")):
        if ours in name and name.replace(ours, theirs) in state:
            return state[name.replace(ours, theirs)]
    return None


def _stacked_experts(state: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    """Stack the experts of a layer from `….mlp.experts.{e}.up_proj.weight` or Mixtral's names."""
    prefix, projection = name.rsplit(".", 1)
    kind = "bias" if projection.endswith("_bias") else "weight"
    projection = projection.removesuffix("_bias")
    layer = prefix.removesuffix(".mlp.experts")
    for pattern in (
        f"{prefix}.{{}}.{projection}.{kind}",
        f"{layer}.block_sparse_moe.experts.{{}}.{_MIXTRAL[projection]}.{kind}",
    ):
        tensors: list[torch.Tensor] = []
        while pattern.format(len(tensors)) in state:
            tensors.append(state[pattern.format(len(tensors))])
        if tensors:
            return torch.stack(tensors)
    return None


def read_state_dict(path: Path) -> Mapping[str, torch.Tensor]:
    """Read a ``.safetensors`` file, a folder of them, or a file written by ``torch.save``."""
    try:
        if path.is_dir():
            files = sorted(path.glob("*.safetensors"))
            return {name: tensor for file in files for name, tensor in _read_safetensors(file).items()}
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        state: Mapping[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
        raise InputError(
            what=f"pretrained weights {path} cannot be read",
            cause=str(error).splitlines()[0],
            fix="give a .safetensors file, a folder of them, or a state dict saved by torch.save",
        ) from error
    return state


_SAFETENSORS_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Map the tensors of a safetensors file: 8 bytes of header length, a JSON header, then the data."""
    with path.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    raw = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: raw[slice(*entry["data_offsets"])]
        .clone()
        .view(_SAFETENSORS_TYPES[entry["dtype"]])
        .view(entry["shape"])
        for name, entry in header.items()
    }
