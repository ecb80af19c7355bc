"""Checkpoints that take more memory than the precision of their name says, as engines printed it."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.memory import weights_bytes
from topology.base.units import GIB

_FILE = Path(__file__).parents[1] / "data" / "checkpoints.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What was loaded of a checkpoint.

    Attributes:
        names: Ends of its name, in lower case.
        gpus: GPUs over which it was split by tensor parallelism.
        loaded_gib: GiB on each of them.
        unquantized: What of it is wider than its name says.
        source: Where that was printed.
        as_of: When.
    """

    names: tuple[str, ...]
    gpus: int
    loaded_gib: float
    unquantized: str
    source: str
    as_of: str


@functools.cache
def checkpoints() -> tuple[Checkpoint, ...]:
    """The known ones, as shipped."""
    from topology.base.decode import read_toml, structure

    entries = read_toml(_FILE)["checkpoints"]
    return tuple(
        structure(entry, Checkpoint, f"{_FILE.name}: checkpoint {at}") for at, entry in enumerate(entries)
    )


def known_checkpoint(name: str) -> Checkpoint | None:
    """The checkpoint of a name such as openai/gpt-oss-120b; None where none is known."""
    lower = name.lower().rstrip("/")
    return next((checkpoint for checkpoint in checkpoints() if lower.endswith(checkpoint.names)), None)


def wider_bytes(deployment: Deployment, known: Checkpoint) -> float:
    """Bytes on a GPU beyond those of the precision, shared by the GPUs that share the layers.

    What was loaded less what the same split is estimated to hold.
    """
    layout = deployment.layout
    loaded = replace(deployment, layout=ServingLayout(tp=known.gpus))
    wider = (known.loaded_gib * GIB - weights_bytes(loaded)) * known.gpus
    return max(wider, 0.0) / (layout.tp * layout.pp * layout.attention_dp)
