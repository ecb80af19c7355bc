"""What kernels and host events do, by their names: the tables of `kernels.toml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.traces.events import Events
from topology.base.decode import read_toml

COMMUNICATION = "communication"
PHASES_IDLE = ("checkpoint", "garbage collection", "loader", "allocator", "synchronisation")
"""What the host does while a GPU waits, most telling first."""


@functools.cache
def _tables() -> Mapping[str, Any]:
    return read_toml(Path(__file__).parent / "data" / "kernels.toml")


@functools.cache
def kernel_classes() -> tuple[str, ...]:
    """Classes of kernels, in the order of their patterns."""
    return tuple(row["class"] for row in _tables()["kernels"])


@functools.cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(row["pattern"]) for row in _tables()["kernels"])


@functools.lru_cache(maxsize=100_000)
def kernel_class(name: str) -> int:
    """Place of a kernel's class in `kernel_classes`.

    >>> kernel_classes()[kernel_class("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")]
    'communication'
    >>> kernel_classes()[kernel_class("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN")]
    'GEMM'
    """
    return next(
        (place for place, pattern in enumerate(_patterns()) if pattern.search(name)), len(_patterns()) - 1
    )


@functools.lru_cache(maxsize=100_000)
def operands_of(name: str) -> str:
    """Precision of a matrix product's operands, where its name says it; empty where it does not.

    >>> operands_of("ampere_sgemm_128x64_nn")
    'fp32'
    """
    rows = _tables()["operands"]
    return next((row["precision"] for row in rows if re.search(row["pattern"], name)), "")


def classes_of(events: Events) -> NDArray[np.int8]:
    """Class of each event's name, as if it were a kernel."""
    of_names = np.array([kernel_class(name) for name in events.names], np.int8)
    return of_names[events.name] if len(of_names) else np.zeros(0, np.int8)


def computes(events: Events) -> NDArray[np.bool_]:
    """Kernels that are no collectives."""
    others: NDArray[np.bool_] = classes_of(events) != kernel_classes().index(COMMUNICATION)
    return events.of("kernel") & others


def phase(events: Events, name: str) -> NDArray[np.bool_]:
    """Which host events are of a phase, by the kinds and names of the table."""
    chosen = np.zeros(len(events), bool)
    for row in _tables()["host"]:
        if row["phase"] == name:
            pattern = re.compile(row["pattern"])
            accepted = np.array([pattern.search(each) is not None for each in events.names], bool)
            chosen |= events.of(*row["kinds"]) & events.named(accepted)
    return chosen


@functools.cache
def group_words() -> tuple[tuple[str, str], ...]:
    """Axes, and the patterns of what engines call their groups."""
    return tuple((row["axis"], row["pattern"]) for row in _tables()["groups"])
