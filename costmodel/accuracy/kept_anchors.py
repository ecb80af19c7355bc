"""Anchors on disk: levels of a user's stacks, remembered under a name or read from a table of their runs."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
from functools import partial
from pathlib import Path

from costmodel.accuracy.anchor import Anchor, anchor_of
from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import read_rows
from costmodel.kernels.tables import Calibration
from topology.base.atomic import write_atomically
from topology.base.decode import read_json, structure, unstructure
from topology.base.errors import InputError
from topology.base.names import suggest
from topology.base.user_folder import require_user_data_folder, user_data_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def anchor_folder() -> Path:
    """Where anchors are kept: `MESHPLAN_DATA`, or the user's data folder."""
    chosen = os.environ.get("MESHPLAN_DATA")
    return (Path(chosen) if chosen else require_user_data_folder()) / "anchors"


def names_a_file(text: str) -> bool:
    """Whether an anchor is given as a table of runs, not by its name."""
    return text.lower().endswith(".csv") or os.sep in text


def kept_anchors() -> tuple[str, ...]:
    """Names of the anchors that are kept, in order."""
    if not os.environ.get("MESHPLAN_DATA") and user_data_folder() is None:
        return ()
    try:
        return tuple(sorted(file.stem for file in anchor_folder().glob("*.json")))
    except OSError:  # MESHPLAN_DATA names no possible folder
        return ()


def find_anchor(text: str, cal: Calibration, *, trust_paths: bool = False) -> Anchor:
    """The anchor of this name, or of the runs in this file; see `predict_rows` for the paths in it."""
    if not names_a_file(text):
        return kept_anchor(text)
    predict = partial(predict_rows, read_rows(text), cal, trust_paths=trust_paths, by_part=True)
    anchor, _ = anchor_of(lambda levels: predict(levels=levels), name=text)
    return with_levels(anchor, text)


def with_levels(anchor: Anchor, path: str) -> Anchor:
    """The anchor, if any run gave it a level."""
    if not anchor.levels:
        raise InputError(
            what=f"{path} anchors nothing",
            cause="none of its rows has a step_time_s that could be compared with a prediction",
            fix=f"see `plan accuracy {path}` for the reason of every row",
        )
    return anchor


def kept_anchor(name: str) -> Anchor:
    """An anchor that was kept under a name."""
    path = _path(name)
    if name not in (known := kept_anchors()):
        close = suggest(name, known, count=2) or known[:5]
        kept = f"did you mean {' or '.join(close)}? " if close else ""
        raise InputError(
            what=f"no anchor is called {name}",
            cause=f"{anchor_folder()} holds {', '.join(known) or 'none'}",
            fix=f"{kept}keep one with `plan accuracy --anchor RUNS.csv --name {name}`",
        )
    try:
        return structure(read_json(path), Anchor, str(path))
    except InputError as damaged:
        raise InputError(
            what=f"the anchor {name} is damaged",
            cause=f"{damaged.what}: {damaged.cause}",
            fix=f"keep it again with `plan accuracy --anchor RUNS.csv --name {name}`, or remove {path}",
        ) from None


def remember(anchor: Anchor, name: str) -> Path:
    """Keep an anchor under a name; returns the file.

    It replaces what had the name, but for levels of the other kind: one name may have those of training and
    those of serving.
    """
    path = _path(name)
    today = dt.datetime.now(tz=dt.UTC).date()
    former = kept_anchor(name) if name in kept_anchors() else anchor
    kept = Anchor(
        name=name,
        levels=anchor.levels or former.levels,
        when=today.isoformat(),
        serving=anchor.serving or former.serving,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(unstructure(kept), indent=2) + "\n")
    except OSError as failure:
        raise InputError(
            what=f"the anchor {name} cannot be kept",
            cause=f"{path}: {failure.strerror or failure}",
            fix="set MESHPLAN_DATA to a folder you may write",
        ) from failure
    return path


def _path(name: str) -> Path:
    """File of an anchor; its name must be a plain word."""
    if not _NAME.fullmatch(name):
        raise InputError(
            what=f"{name!r} cannot name an anchor",
            cause="a name has letters, digits, dots, dashes and underscores, at most 64",
            fix="use for example --name my-cluster",
        )
    return anchor_folder() / f"{name}.json"
