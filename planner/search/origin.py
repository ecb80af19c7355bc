"""What a plan was made with, as digests: two plans of one origin have the same numbers.

Digests are of what is said, not of how it is written: fields that have their default are left out, so a
field that a later version adds changes none.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

from costmodel.evidence.table import EVIDENCE_FILE
from costmodel.kernels.clocks import CONSTANTS_FILE
from costmodel.kernels.tables import Calibration
from costmodel.stack import STACKS_FILE
from costmodel.training.bands import BANDS_FILE
from costmodel.updates.optimizers import OPTIMIZERS_FILE
from planner.plan import Origin, PlanRequest
from topology.base.version import VERSION
from topology.builders import build

DIGITS = 16
"""Hex digits of a digest: enough to tell versions apart, which is all it is for."""


def origin_of(request: PlanRequest, cal: Calibration) -> Origin:
    """What a plan for this request is made with, here and now."""
    cluster = build(request.cluster)
    return Origin(
        version=VERSION,
        request=digest(request),
        cluster=digest((cluster.spec, cluster.gpu)),
        tables=_digest_of_files(tuple(sorted(cal.directory.iterdir()))),
        constants=_digest_of_files((CONSTANTS_FILE, BANDS_FILE, EVIDENCE_FILE, STACKS_FILE, OPTIMIZERS_FILE)),
        measurements=digest(cal.measurements) if cal.measurements else "",
    )


def digest(value: object) -> str:
    """Hex digits that two values share only when they say the same.

    >>> digest({"tp": 8, "pp": 2.0}) == digest({"pp": 2, "tp": 8})
    True
    """
    text = json.dumps(_plain_data(value), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGITS]


def _plain_data(value: object) -> Any:
    """A value as plain data without defaults; a whole number is an integer, as JSON may read it back."""
    if is_dataclass(value) and not isinstance(value, type):
        result = {field.name: getattr(value, field.name) for field in fields(value)}
        return {f.name: _plain_data(result[f.name]) for f in fields(value) if result[f.name] != _default(f)}
    if isinstance(value, Mapping):
        return {str(key): _plain_data(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain_data(part) for part in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _default(field: Field[Any]) -> Any:
    """The default of a field, or what nothing equals."""
    return field.default if field.default_factory is MISSING else field.default_factory()


@functools.cache
def _digest_of_files(files: tuple[Path, ...]) -> str:
    """Digest of names and contents of files that come with the package and do not change while it runs."""
    sha256 = hashlib.sha256()
    for file in files:
        sha256.update(file.name.encode() + b"\0" + file.read_bytes())
    return sha256.hexdigest()[:DIGITS]
