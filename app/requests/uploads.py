"""Files that a browser sent: read with the same doors and messages as files on disk, and never kept.

An upload is written into a temporary folder under a name of ours, read as data, and removed; its own name is
only ever shown.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from costmodel.models.hf_config import read_config
from costmodel.models.spec import ModelSpec
from planner.plan import Plan, from_json
from planner.search.verified import verified
from topology.base.errors import InputError
from topology.base.units import MIB
from topology.catalog import cluster
from topology.spec import ClusterSpec

T = TypeVar("T")

MOST_BYTES = 2 * MIB


def read_model_upload(name: str, content: bytes) -> ModelSpec:
    """Read an uploaded config.json."""
    return _read(name, content, "config.json", lambda path: replace(read_config(path), name="uploaded-model"))


def read_cluster_upload(name: str, content: bytes) -> ClusterSpec:
    """Read an uploaded cluster file."""
    return _read(name, content, "cluster.toml", lambda path: cluster(path).spec)


def read_plan_upload(
    name: str, content: bytes, *, accept_changes: bool = False, say: Callable[[str], None] = lambda _: None
) -> Plan:
    """Read an uploaded plan; see `planner.search.verified.verified` for what is refused."""
    _check_size(name, content)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            what=f"{name} is not a text file",
            cause=f"byte {error.start} is not UTF-8",
            fix="upload a plan.json",
        ) from None
    return verified(from_json(text, name), name, accept_changes=accept_changes, say=say)


def _read(name: str, content: bytes, safe_name: str, read: Callable[[Path], T]) -> T:
    """Read an upload through a temporary file; messages name the upload, not the file."""
    _check_size(name, content)
    with tempfile.TemporaryDirectory(prefix="meshplan-") as folder:
        path = Path(folder) / safe_name
        path.write_bytes(content)
        try:
            return read(path)
        except InputError as error:
            shown = [text.replace(str(path), name) for text in (error.what, error.cause, error.fix)]
            raise InputError(*shown) from None


def _check_size(name: str, content: bytes) -> None:
    """Refuse what is too large to be a description."""
    if len(content) > MOST_BYTES:
        raise InputError(
            what=f"{name} is too large",
            cause=f"it has {len(content):,} bytes, at most {MOST_BYTES:,} are read",
            fix="upload the file that describes it",
        )  # fmt: skip
