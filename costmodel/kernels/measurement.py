"""What a user measured on their own cluster, as data that overrides a table.

A measurement file is a JSON list of `Measurement` objects; `plan bench` writes it and
`Calibration` reads it. Times are medians over `repeats`; p10 and p90 say how steady they were.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from topology.base.decode import read_json, structure, unstructure
from topology.base.errors import InputError

_GROUP = ("bytes", "size", "stride")
REQUIRED_INPUTS: Final[Mapping[str, tuple[str, ...]]] = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch", "heads", "kv_heads", "query_tokens", "kv_tokens", "head_dim"),
    "elementwise": ("bytes",),
    "all_reduce": _GROUP,
    "all_gather": _GROUP,
    "reduce_scatter": _GROUP,
    "all_to_all": _GROUP,
    "p2p": _GROUP,
}
"""Inputs that a measurement of each kind must state; others may say more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured kernel, collective or step, with what is needed to judge and repeat it.

    Attributes:
        what: gemm, elementwise, all_reduce, all_gather, reduce_scatter, all_to_all, p2p, training_step, …
        cluster: Fingerprint of the cluster it ran on.
        gpu: GPU name.
        dtype: Data type, for what depends on it.
        inputs: Numbers among the arguments of the cost function of that name (see `REQUIRED_INPUTS`).
        value: The median, in `unit`.
        unit: "s" for everything that overrides a table.
        repeats: How often it was measured.
        p10: Tenth percentile, in `unit`.
        p50: Median, in `unit`.
        p90: Ninetieth percentile, in `unit`.
        software: Versions by name (torch, nccl, driver, …).
        when: ISO 8601 date.
    """

    what: str
    cluster: str
    gpu: str
    dtype: str = ""
    inputs: Mapping[str, float] = field(hash=False)
    value: float
    unit: str
    repeats: int
    p10: float
    p50: float
    p90: float
    software: Mapping[str, str] = field(default_factory=dict, hash=False)
    when: str = ""


def read_measurements(path: str | Path) -> tuple[Measurement, ...]:
    """Return the measurements of a JSON file; a file that is none answers with `InputError`."""
    data = read_json(path)
    if not isinstance(data, list):
        raise InputError(
            f"{path} is not a list of measurements",
            f"it holds a {type(data).__name__}",
            "pass a file that `plan bench` wrote",
        )
    measurements = tuple(structure(entry, Measurement, f"{path}, entry {i}") for i, entry in enumerate(data))
    for index, entry in enumerate(measurements):
        check_measurement(entry, f"{path}, entry {index}")
    return measurements


def measurements_json(measurements: Sequence[Measurement]) -> str:
    """Return measurements as the text that `read_measurements` reads."""
    return json.dumps([unstructure(m) for m in measurements], indent=1, sort_keys=True) + "\n"


def check_measurement(measurement: Measurement, where: str) -> None:
    """Refuse a measurement that cannot correct a table: no positive value, or inputs missing."""
    if not (math.isfinite(measurement.value) and measurement.value > 0):
        raise InputError(
            f"{where}: value is {measurement.value}", "a time is positive and finite", "measure it again"
        )
    missing = [key for key in REQUIRED_INPUTS.get(measurement.what, ()) if key not in measurement.inputs]
    if missing:
        raise InputError(
            f"{where}: a {measurement.what} needs {', '.join(REQUIRED_INPUTS[measurement.what])}",
            f"inputs lack {', '.join(missing)}",
            "add them",
        )
    wrong = [key for key in REQUIRED_INPUTS.get(measurement.what, ()) if not measurement.inputs[key] > 0]
    if wrong:
        raise InputError(
            f"{where}: {wrong[0]} is {measurement.inputs[wrong[0]]:g}",
            f"a {measurement.what} has a positive size in every direction",
            "measure it again",
        )
