"""Optimizers as data: bytes they keep of a parameter, and products that a step computes of a matrix.

Legend: ``m`` ≤ ``n`` the sides of a matrix, ``S`` steps of the Newton–Schulz iteration.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from topology.base.errors import InputError, shown

OPTIMIZERS_FILE = Path(__file__).parents[1] / "data" / "optimizers.toml"
USUAL = "adamw"
ADAM_STATE_BYTES = 8.0
"""Two moments in fp32, the reference of what an update moves (`optimizer_bytes` of constants.toml)."""
MASTER_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One entry of ``optimizers.toml``; what the fields mean stands there.

    `state_bytes` is None where the profile of the engine says it.
    """

    name: str
    description: str
    state_bytes: float | None = None
    other_state_bytes: float | None = None
    has_master: bool = True
    elementwise: bool = True
    chained: bool = False
    newton_schulz_steps: int = 0
    side_products: int = 0
    side_copies: int = 0
    largest_side: int = 0
    root_flop_per_side: float = 0.0
    root_every: int = 1
    source: str
    as_of: str

    @property
    def multiplies(self) -> bool:
        """Whether a step multiplies matrices."""
        return bool(self.newton_schulz_steps or self.side_products)

    @property
    def is_plain(self) -> bool:
        """Whether every parameter costs alike."""
        return self.other_state_bytes is None and not self.multiplies


def optimizer(name: str) -> Optimizer:
    """The optimizer of this name.

    >>> optimizer("muon").state_bytes, optimizer("adamw").state_bytes
    (4.0, None)
    """
    result = optimizers().get(name)
    if result is None:
        raise unknown(name)
    return result


@functools.cache
def optimizers() -> Mapping[str, Optimizer]:
    """Every optimizer by name."""
    from topology.base.decode import read_toml, structure

    return {
        name: structure({"name": name, **entry}, Optimizer, f"{OPTIMIZERS_FILE.name}: {name}")
        for name, entry in read_toml(OPTIMIZERS_FILE).items()
    }


def require_known_optimizer(name: str) -> None:
    """Refuse an optimizer that there is no entry of; the usual one is known without reading any."""
    if name != USUAL and name not in optimizers():
        raise unknown(name)


def unknown(name: str) -> InputError:
    """The three lines of an optimizer that there is not."""
    from topology.base.names import suggest

    known = tuple(optimizers())
    close = suggest(name, known, count=1)
    return InputError(
        f"optimizer {shown(name)} is not known",
        f"there are {', '.join(known)}",
        f"did you mean {close[0]}?" if close else f"use {USUAL}",
    )
