"""Files that a browser sent: read with the same doors and messages as files on disk, and never kept.

An upload is written into a temporary folder under a name of ours, read as data, and removed; its own name is
only ever shown.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from app.requests.upload_sizes import MOST_UPLOAD_MIB
from costmodel.accuracy.anchor import Anchor, anchor_of
from costmodel.accuracy.kept_anchors import with_levels
from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_rows
from costmodel.kernels.tables import load_calibration
from costmodel.models.hf.config import read_config
from costmodel.models.spec import ModelSpec
from costmodel.runs.cells import Row
from planner.audit.audit import Audit, audited_texts, stack_level_of_log
from planner.plan import Plan, from_json
from planner.questions.flags import Flags
from planner.search.verified import verified
from topology.base.errors import InputError
from topology.base.units import MIB
from topology.catalog import cluster
from topology.spec import ClusterSpec

T = TypeVar("T")

MOST_BYTES = MOST_UPLOAD_MIB * MIB
MOST_ROWS = 20_000
ANCHOR_TABLE, ANCHOR_LOG = "runs.csv", "measured"
"""What the anchor of an uploaded table, and of an uploaded log, is called in a command."""
_NOT_OF_A_NAME = re.compile(r"[^A-Za-z0-9._-]|^[.]+")


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


def read_texts_upload(files: Sequence[tuple[str, bytes]]) -> dict[str, str]:
    """Texts of uploaded launch files and logs, by a name that is no path; nothing is written to disk."""
    texts: dict[str, str] = {}
    for name, content in files:
        _check_size(name, content)
        plain = _NOT_OF_A_NAME.sub("_", PurePosixPath(name.replace("\\", "/")).name)[-80:] or "file"
        if plain in texts:
            cause, fix = "an audit tells files of one job apart by their names", "rename one of them"
            raise InputError(f"two files are called {plain}", cause, fix)
        texts[plain] = content.decode("utf-8", "replace")
    return texts


def read_runs_upload(name: str, content: bytes) -> list[Row]:
    """Read an uploaded table of runs."""
    rows = _read(name, content, "runs.csv", read_rows)
    if len(rows) > MOST_ROWS:
        cause = f"{len(rows):,} rows, at most {MOST_ROWS:,} here"
        raise InputError(f"{name} has too many rows", cause, "use plan accuracy")
    return rows


def read_anchor_upload(
    files: Sequence[tuple[str, bytes]], rest: Flags, compute: Callable[..., Any] = lambda f, *a: f(*a)
) -> Anchor:
    """What measured steps say of a stack here: those of a table of runs, or of a log and its launch files.

    Args:
        files: Names and contents; one CSV, or files of one job.
        rest: The question, for what a log does not say.
        compute: Where it is computed.
    """
    first, content = files[0]
    if first.lower().endswith(".csv"):
        rows = read_runs_upload(first, content)
        anchor, _ = anchor_of(
            lambda levels: compute(
                partial(predict_rows, by_part=True, levels=levels), rows, load_calibration()
            ),
            name=ANCHOR_TABLE,
        )
        return with_levels(anchor, first)
    audit: Audit = compute(audited_texts, read_texts_upload(files), rest)
    return Anchor(name=ANCHOR_LOG, levels=(stack_level_of_log(audit, ANCHOR_LOG),))


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
