"""Reads a checkpoint without running anything that is in it.

torch keeps the places of tensors as a pickle, and a pickle is a program. Here it is read by an interpreter in
which every name stands for an empty record that does nothing; what it was made of is then checked and
copied, number by number, into torch's own classes. Tensors are read by torch with ``weights_only``; values
that are no tensors, which torch would unpickle, are refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from executor.torch_internals.files import stored_place
from executor.training.manifest import Manifest
from topology.base.errors import InputError
from topology.base.files import open_regular

METADATA = ".metadata"
_OF_TORCH = "torch.distributed.checkpoint"
_CLASSES = frozenset(
    {
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        (f"{_OF_TORCH}.filesystem", "_StorageInfo"),
        (f"{_OF_TORCH}.metadata", "Metadata"),
        (f"{_OF_TORCH}.metadata", "TensorStorageMetadata"),
        (f"{_OF_TORCH}.metadata", "TensorProperties"),
        (f"{_OF_TORCH}.metadata", "ChunkStorageMetadata"),
        (f"{_OF_TORCH}.metadata", "MetadataIndex"),
        (f"{_OF_TORCH}.metadata", "StorageMeta"),
        (f"{_OF_TORCH}.metadata", "_MEM_FORMAT_ENCODING"),
        ("builtins", "getattr"),  # how Python up to 3.11.3 names a member of an enumeration; a record too
    }
)


class _Record:
    """Stands for whatever a pickle names: it keeps what it is given and does nothing."""

    arguments: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *arguments: Any) -> Self:
        record = super().__new__(cls)
        record.arguments = arguments
        return record

    def __setstate__(self, state: Any) -> None:
        """Keep the state."""
        self.state = state


class _Inert(pickle.Unpickler):
    """Unpickles to records of this one reading, so that not even a class can be changed."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)
        self.classes: dict[tuple[str, str], type[_Record]] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Give a record's class for a name of a checkpoint, and a number format for its own."""
        if module == "torch" and isinstance(var := vars(torch).get(name), torch.dtype):
            return var
        if (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return self.classes.setdefault((module, name), type(name, (_Record,), {}))


def open_checkpoint(folder: Path, manifest: Manifest) -> Reader:
    """Open a checkpoint for torch to load; what its manifest does not list is not opened."""
    files = {stored.name: stored.size_bytes for stored in manifest.files}
    try:
        with open_regular(folder / METADATA) as stream:
            metadata = _metadata(_Inert(stream).load(), files)
    except Exception as error:
        raise InputError(
            what=f"{folder} is not a checkpoint of ours: nothing of it was loaded or run",
            cause=f"{METADATA}: {error or type(error).__name__}",
            fix="give another --run-dir, or remove that folder to go on from an older checkpoint",
        ) from error
    return Reader(folder, metadata)


class Reader(FileSystemReader):  # type: ignore[misc, unused-ignore]
    """torch's reader with metadata that were read before."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self.metadata = metadata

    def read_metadata(self, *_arguments: Any, **_options: Any) -> Metadata:
        """Give what was read."""
        self.metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return self.metadata


def _metadata(value: Any, files: Mapping[str, int]) -> Metadata:
    """Copy the metadata of tensors."""
    state = value.state
    return Metadata(
        state_dict_metadata={
            _text(name): _tensor(record) for name, record in state["state_dict_metadata"].items()
        },
        storage_data={
            _index(key.state): _place(record.state, files) for key, record in state["storage_data"].items()
        },
        version=state.get("version"),
    )


def _tensor(record: Any) -> TensorStorageMetadata:
    """Copy what is known of one tensor."""
    number_format = record.state["properties"].state[0]
    if not isinstance(number_format, torch.dtype):
        raise TypeError("a tensor has no number format")
    chunks = [
        ChunkStorageMetadata(offsets=_size(chunk.state["offsets"]), sizes=_size(chunk.state["sizes"]))
        for chunk in record.state["chunks"]
    ]
    properties = TensorProperties(dtype=number_format)
    return TensorStorageMetadata(properties=properties, size=_size(record.state["size"]), chunks=chunks)


def _index(state: Any) -> MetadataIndex:
    """Copy the name of a stored part of a tensor."""
    index = state["index"]
    return MetadataIndex(
        _text(state["fqn"]), _size(state["offset"]), None if index is None else _whole(index)
    )


def _place(state: Any, files: Mapping[str, int]) -> Any:
    """Copy where a part lies: within a file of the manifest, as it is."""
    name, offset, length = state["relative_path"], _whole(state["offset"]), _whole(state["length"])
    if name not in files or state.get("transform_descriptors"):
        raise ValueError(f"a tensor lies in {name!r}, which the manifest does not list")
    if offset + length > files[name]:
        raise ValueError(f"a tensor ends at byte {offset + length:,} of {name!r}, which has {files[name]:,}")
    return stored_place(name, offset, length)


def _size(record: Any) -> torch.Size:
    """Copy a shape."""
    return torch.Size(_whole(extent) for extent in record.arguments[0])


def _whole(value: Any) -> int:
    """A whole number of zero or more, and nothing that merely acts like one."""
    if type(value) is not int or value < 0:
        raise TypeError("a size is no whole number")
    return value


def _text(value: Any) -> str:
    """A text."""
    if type(value) is not str:
        raise TypeError("a name is no text")
    return value
