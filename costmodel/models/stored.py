"""What of a quantised checkpoint is stored otherwise than its name says: parts, and whole layers.

A checkpoint is quantised in one format; its ``quantization_config`` names modules that are not
(``modules_to_not_convert``, ``ignore``, ``exclude_modules``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_FILE = Path(__file__).parents[1] / "data" / "checkpoints.toml"
PartName = Literal["attention", "output projection", "mlp", "shared", "experts"]
PartFormat = Literal["", "bf16", "fp8", "int8", "int4", "fp4"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredParts:
    """Formats of the parts of a checkpoint; "" is the format of the checkpoint.

    Attributes:
        attention: Products of what mixes tokens.
        output_projection: The last of these, where it differs from the others.
        mlp: Feed-forwards of layers without experts.
        shared: Shared experts.
        experts: Routed experts.
        edge_layers: First layers, and as many last ones, that are not quantised at all.
        weight_bytes: Of a quantised weight with its scales; 0 is usual of the format.
        group: Weights along the inputs that share a scale (AWQ, GPTQ, NVFP4); 0 where none are stated.
        block: Side of the blocks of weights that share a scale; 0 where its scales are not of blocks.
    """

    attention: PartFormat = ""
    output_projection: PartFormat = ""
    mlp: PartFormat = ""
    shared: PartFormat = ""
    experts: PartFormat = ""
    edge_layers: int = 0
    weight_bytes: float = 0.0
    block: int = 0
    group: int = 0

    def format_of(self, part: PartName) -> PartFormat:
        """The format of a part."""
        formats: Mapping[PartName, PartFormat] = {
            "attention": self.attention,
            "output projection": self.output_projection or self.attention,
            "mlp": self.mlp,
            "shared": self.shared,
            "experts": self.experts,
        }
        return formats[part]


NVFP4_GROUP = 16
"""Weights that share a scale of NVFP4, of eight bits; of MXFP4 32."""
AS_NAMED = StoredParts()
"""A checkpoint that is quantised throughout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is known of a published checkpoint.

    Attributes:
        names: Ends of its name, in lower case.
        stored: Its parts.
        num_key_value_heads: Heads of keys and values, where its release had others; 0 for the model's.
        source: Where that is published.
        as_of: When.
    """

    names: tuple[str, ...]
    stored: StoredParts
    num_key_value_heads: int = 0
    source: str
    as_of: str


@functools.cache
def checkpoints() -> tuple[Checkpoint, ...]:
    """The known ones, as shipped; the first that ends a name is its own."""
    from topology.base.decode import read_toml, structure

    entries = read_toml(_FILE)["checkpoints"]
    return tuple(
        structure(entry, Checkpoint, f"{_FILE.name}: checkpoint {at}") for at, entry in enumerate(entries)
    )


def known_checkpoint(name: str) -> Checkpoint | None:
    """The checkpoint of a name such as meta-llama/Llama-3.1-405B-FP8; None where none is known."""
    lower = name.lower().rstrip("/")
    return next((checkpoint for checkpoint in checkpoints() if lower.endswith(checkpoint.names)), None)
