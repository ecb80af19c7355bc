"""Hugging Face state dicts: read, checked to be of the very model, and looked up by parameter.

Files are mapped, not read: a rank's private memory holds the parts that it takes, and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import torch

from costmodel.models.hf.config import read_config
from costmodel.models.spec import ModelSpec, decoder_of
from executor.comm.cuts import Cuts
from executor.model.hf_names import source_of
from topology.base.errors import InputError, shortened
from topology.base.files import require_regular

_QUANTISED = (".weight_scale_inv", ".weight_scale", "_blocks", "_scales", ".qweight", ".absmax")
_BUFFERS = r"rotary_emb\.inv_freq$|^transformer\.h\.\d+\.attn\.(masked_)?bias$"  # older versions wrote them
_OTHER_PARTS = r"(^|\.)(vision_tower|multi_modal_projector)\."  # of a model whose text part this is


def published_part(
    state: Mapping[str, torch.Tensor], name: str, shape: torch.Size, cuts: Cuts, spec: ModelSpec
) -> torch.Tensor:
    """Take what cuts leave of a parameter from a state dict of plain names; its shape must be the model's."""
    source = source_of(name, spec, state)
    if source is None:
        raise InputError(
            what=f"the state dict has no {name}",
            cause=f"{len(state)} tensors, first {next(iter(state), 'none')!r}",
            fix="load a state dict of the same model family, with its full Hugging Face names",
        )
    other = source.shapes(state) - {shape}
    if other:
        raise InputError(
            what=f"{name} does not fit the model",
            cause=f"shape {tuple(min(other))}, the model needs {tuple(shape)}",
            fix="load the state dict of this very model",
        )
    return source.part(state, cuts)


def check_used(state: Mapping[str, torch.Tensor], spec: ModelSpec, names: Iterable[str]) -> None:
    """Refuse a state dict with tensors that the model would leave out, or that are not plain numbers.

    Args:
        state: Tensors by plain name.
        spec: The whole model.
        names: All its parameters.
    """
    packed = [name for name in state if name.endswith(_QUANTISED)]
    if packed:
        raise InputError(
            what="the state dict is quantised",
            cause=f"{len(packed)} tensors of scales or packed numbers, first {packed[0]!r}",
            fix="convert it to bf16 with the tool of its publisher and load that",
        )
    sources = [source_of(name, spec, state) for name in names]
    used = {part for source in sources if source is not None for part in source.names}
    left = [name for name in state if name not in used and not _may_be_left(name, spec, state)]
    if left:
        raise InputError(
            what=f"the state dict holds more than {spec.name} computes with",
            cause=f"{len(left)} tensors have no place in it, first {left[0]!r}",
            fix="plan with the config.json that was published with these weights",
        )


def _may_be_left(name: str, spec: ModelSpec, state: Mapping[str, torch.Tensor]) -> bool:
    """Whether a tensor does not belong to the language model proper: buffers, images, tokens ahead."""
    if re.search(_BUFFERS, name) or re.search(_OTHER_PARTS, name):
        return True
    if name == "lm_head.weight":
        return spec.tie_word_embeddings
    layer = re.match(r"model\.layers\.(\d+)\.", name)
    ahead = layer is not None and int(layer[1]) >= spec.num_layers
    return ahead and f"{layer[0]}eh_proj.weight" in state if layer else False


def pretrained_state(path: Path, spec: ModelSpec) -> Mapping[str, torch.Tensor]:
    """Read a state dict for a model; a config.json beside it must describe the very same one."""
    config = (path if path.is_dir() else path.parent) / "config.json"
    if config.is_file():
        differences = differing(spec, decoder_of(read_config(config)))
        if differences:
            raise InputError(
                what=f"the pretrained weights are not those of {spec.name}",
                cause=f"{config} differs in {'; '.join(differences)}",
                fix=f"plan again with --model {config}",
            )
    return read_state_dict(path)


_NOT_COMPUTED = {"name", "source", "as_of", "max_sequence_length", "router_aux_loss_coef", "left_out"}


def differing(planned: object, published: object, prefix: str = "") -> list[str]:
    """Settings in which two models compute differently, each with the planned and the published value.

    >>> from costmodel.models.catalog import model
    >>> differing(model("llama-3-8b"), model("llama-2-7b"))[-1]
    'rotary.theta (planned 500000.0, published 10000.0)'
    """
    result: list[str] = []
    for field in fields(planned):  # type: ignore[arg-type]
        mine, theirs = getattr(planned, field.name), getattr(published, field.name)
        if field.name in _NOT_COMPUTED or mine == theirs:
            continue
        if is_dataclass(mine) and type(mine) is type(theirs):
            result += differing(mine, theirs, f"{prefix}{field.name}.")
        else:
            result.append(f"{prefix}{field.name} (planned {mine!r}, published {theirs!r})")
    return result


def read_state_dict(path: Path) -> Mapping[str, torch.Tensor]:
    """Read a ``.safetensors`` file, a folder of them, or a file written by ``torch.save``."""
    try:
        if path.is_dir():
            files = sorted(path.glob("*.safetensors"))
            return {name: tensor for file in files for name, tensor in _read_safetensors(file).items()}
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        require_regular(path)
        state: object = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except InputError:
        raise
    except Exception as error:  # of what is damaged torch raises whatever it meets
        raise InputError(
            what=f"pretrained weights {path} cannot be read",
            cause=next(iter(str(error).splitlines()), "") or type(error).__name__,
            fix="give a .safetensors file, a folder of them, or a state dict saved by torch.save",
        ) from error
    return _state_dict(state, path)


def _state_dict(state: object, path: Path) -> dict[str, torch.Tensor]:
    """What `torch.save` was given, where it is tensors by name; it saves anything else as well.

    >>> _state_dict({"a": torch.ones(1)}, Path("a.bin"))
    {'a': tensor([1.])}
    """
    if not isinstance(state, Mapping):
        cause = f"it holds a {type(state).__name__}"
    elif odd := [name for name, value in state.items() if not _is_named_tensor(name, value)]:
        cause = f"{shortened(repr(odd[0]), 80)} in it is a {type(state[odd[0]]).__name__}"
    else:
        return dict(state)
    raise InputError(
        what=f"pretrained weights {path} are no state dict",
        cause=cause,
        fix="save the tensors alone, by their names: torch.save(model.state_dict(), FILE)",
    )


def _is_named_tensor(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, torch.Tensor)


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a safetensors file, each a view of the mapped file."""
    from safetensors import safe_open

    with safe_open(require_regular(path), framework="pt") as file:
        safetensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    for name, tensor in safetensors.items():
        if tensor.is_floating_point() and tensor.element_size() == 1:
            raise ValueError(f"{name} has numbers of type {tensor.dtype}: convert them to bf16")
    return safetensors
