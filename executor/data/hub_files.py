"""Which files a Hugging Face dataset may be: those of its folder, or those of the hub.

A dataset's README says by which patterns its splits find their files, and the library takes any: paths of
this machine, addresses of others. What somebody else wrote there must not decide what is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from topology.base.errors import InputError
from topology.base.files import read_text

ON_HUB = "hf://"
README, STANDALONE = "README.md", ".huggingface.yaml"
SNAPSHOTS, BLOBS = "snapshots", "blobs"  # of the hub's own cache, whose files are links to those beside them


def require_dataset(path: str) -> None:
    """Refuse a reader of the library's own: without files it reads the working directory, by pickle too."""
    if path.isidentifier() and find_spec(f"datasets.packaged_modules.{path}") is not None:
        raise InputError(
            what=f"hf:{path} is no dataset",
            cause=f"{path} is how the datasets library calls one of its readers",
            fix="give the folder that has the files: hf:FOLDER, or --data FILE",
        )


def require_no_address(path: str) -> None:
    """Refuse a folder whose description names an address, before the library asks there."""
    readme, standalone = Path(path) / README, Path(path) / STANDALONE
    values = [text for text in _texts(_configs(readme), set()) if "://" in text] if readme.is_file() else []
    if standalone.is_file():  # its YAML is not read here, so an escape in it could hide an address
        lines = read_text(standalone).splitlines()
        values += [line.strip() for line in lines if "://" in line or "\\" in line]
    if values:
        raise _elsewhere(path, values[0], "an address, or what may hide one")


def require_inside(path: str, files: Iterable[str]) -> None:
    """Refuse a file outside of its folder, and one of the hub's datasets that is not on the hub."""
    folder = Path(path)
    if not folder.is_dir():
        for file in files:
            if not file.startswith(ON_HUB):
                raise _elsewhere(path, file, "it is not on the hub")
        return
    inside = [folder.resolve()]
    if inside[0].parent.name == SNAPSHOTS:
        inside.append(inside[0].parent.parent / BLOBS)
    for file in files:
        if "://" in file or not any(Path(file).resolve().is_relative_to(place) for place in inside):
            raise _elsewhere(path, file, "it lies outside of the folder")


def _configs(readme: Path) -> Any:
    """What a README says of the files of its configurations."""
    from huggingface_hub import DatasetCard

    return DatasetCard(read_text(readme)).data.to_dict().get("configs")


def _texts(value: Any, seen: set[int]) -> Iterator[str]:
    """All texts inside of what YAML holds, which may hold itself."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item, seen)


def _elsewhere(path: str, file: str, why: str) -> InputError:
    """Build the error for a file that is not the dataset's own."""
    return InputError(
        what=f"{path} names a file that is not its own",
        cause=f"{file[:200]}: {why}",
        fix="put the files into the folder, or name the dataset that has them",
    )
