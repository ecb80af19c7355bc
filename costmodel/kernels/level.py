"""How much longer or shorter a user's own steps are than a profile says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from topology.base.errors import InputError

FURTHEST_LEVEL = 100.0
"""A step this many times as long as predicted, or as short, is another job, not another level."""
WIDEST = 5.0
"""Deviation of a logarithm beyond which a level says nothing."""
ROUNDING = 1e-12
"""What arithmetic may leave of an asymmetry, or of a negative variance, in a covariance of logarithms."""
FEW_ROWS = 8
TELL_APART = 2  # unlike steps
PARTS: Mapping[str, str] = {
    "products": "matrix products",
    "attention": "attention",
    "passes": "memory passes",
    "host": "host",
    "exchange": "exchange",
}
"""Parts of a step that own runs may show to take longer or shorter than all of it, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLevel:
    """Measured over predicted times of a stack profile, from own runs (`costmodel.accuracy.anchor`).

    Attributes:
        stack: The profile it corrects.
        level: Factor on predicted step time.
        deviation: Standard deviation of the logarithm that remains of a step like those measured.
        runs: Measured steps it rests on.
        name: What the runs are remembered under, or the file they came from.
        products: Factor on matrix products beside the level.
        attention: The same on attention.
        passes: The same on passes over memory, the update among them.
        host: The same on what the host takes to launch and to wait.
        exchange: The same on what GPUs send each other, exposed or not.
        covariance: Of the logarithms of the level and of `PARTS`, as they remain in doubt; none where runs
            said nothing of parts.
        steps_factor: Factor on the measured steps, the level and their parts in it, as geometric mean; none
            where runs said nothing of parts, and all steps take the level.
        unlike: Measured steps that follow their parts unlike; one kind of step cannot tell parts apart.
    """

    stack: str
    level: float
    deviation: float
    runs: int
    name: str = ""
    products: float = 1.0
    attention: float = 1.0
    passes: float = 1.0
    host: float = 1.0
    exchange: float = 1.0
    covariance: tuple[tuple[float, ...], ...] = ()
    steps_factor: float | None = None
    unlike: int = 0

    def __post_init__(self) -> None:
        """Refuse factors that no runs can give: they would make every time negative or absurd."""
        factors = (self.level, *self.parts.values(), self.factor_of_steps)
        if not (
            all(1 / FURTHEST_LEVEL <= factor <= FURTHEST_LEVEL for factor in factors)
            and 0 <= self.deviation <= WIDEST
        ):
            text = f"level {self.level:g}, deviation {self.deviation:g}"
            text += "".join(f", {name} {factor:g}" for name, factor in self.parts.items() if factor != 1.0)
            fix = f"a level is at most {FURTHEST_LEVEL:g}, one over it at least; a deviation {WIDEST:g}"
            raise InputError(f"the level of {self.stack} is out of reach", text, fix)
        if self.covariance:
            _check_covariance(self.covariance, self.stack)

    @property
    def factor_of_steps(self) -> float:
        """Geometric mean of the factor on the measured steps."""
        return self.level if self.steps_factor is None else self.steps_factor

    @property
    def parts(self) -> dict[str, float]:
        """Factors by part."""
        return {name: getattr(self, name) for name in PARTS}

    def factor_of(self, shares: Sequence[float]) -> float:
        """Factor on a step of these shares, as `deviation_of`; the level where none is known."""
        known = zip(shares, self.parts.values(), strict=True) if shares else ()
        return self.level * math.exp(sum(share * math.log(part) for share, part in known))

    def words(self, host_s_per_layer: float) -> str:
        """What the runs taught of each part that they moved, the level in it; none if not told apart.

        Args:
            host_s_per_layer: What the profile says the host takes to launch a layer.
        """
        if self.unlike < TELL_APART:
            return ""
        taught = {name: self.level * factor for name, factor in self.parts.items() if factor != 1.0}
        layer = f" ({1e3 * taught['host'] * host_s_per_layer:.2g} ms a layer)" if "host" in taught else ""
        each = (f"{PARTS[name]} ×{factor:.2f}{layer * (name == 'host')}" for name, factor in taught.items())
        return ", ".join(each)

    def deviation_of(self, shares: Sequence[float]) -> float:
        """Standard deviation that remains of the logarithm of a step whose parts have these shares.

        Args:
            shares: How far the step follows each of `PARTS`: d log(step) / d log(part).
        """
        if not (self.covariance and len(shares)):
            return self.deviation
        along = np.array([1.0, *shares])
        return math.sqrt(max(0.0, float(along @ np.array(self.covariance) @ along)))


def _check_covariance(covariance: Sequence[Sequence[float]], stack: str) -> None:
    """Refuse what is no covariance of a level and its parts: it would pass for certainty."""
    side = 1 + len(PARTS)
    try:
        matrix = np.array(covariance, dtype=float)
    except (TypeError, ValueError, OverflowError):
        matrix = np.empty(0)
    if matrix.shape != (side, side):
        lengths = ", ".join(str(np.size(row)) for row in covariance[:FEW_ROWS])
        cause = f"{len(covariance)} rows, the first of {lengths} numbers"
    elif not np.isfinite(matrix).all():
        cause = f"{np.count_nonzero(~np.isfinite(matrix))} of {matrix.size} entries are not finite"
    elif not np.allclose(matrix, matrix.T, rtol=ROUNDING, atol=ROUNDING):
        cause = f"it differs from its transpose by up to {np.abs(matrix - matrix.T).max():g}"
    elif (least := float(np.linalg.eigvalsh(matrix)[0])) < -ROUNDING:
        cause = f"its least eigenvalue is {least:g}, a negative variance"
    else:
        return
    fix = f"fit the anchor anew: {side} rows of {side}, symmetric, for the level, {', '.join(PARTS)}"
    raise InputError(f"the covariance of the level of {stack} is none", cause, fix)
