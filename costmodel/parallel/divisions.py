"""Counts that degrees have to divide: each such law once, asked of numbers, of columns and of words.

The rules of the search, the refusals of engines, the findings of an audit, the executor and the servers ask
these; who asks says it in the words of its reader.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topology.base.arrays import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """A whole that the product of some counts has to divide.

    Attributes:
        by: What divides it, in the order in which the counts are given.
        broken: What is said where a rest is left: {whole}, {product}, and the counts as {0}, {1} …
    """

    by: tuple[str, ...]
    broken: str

    def rest(self, whole: Quantity, *counts: Quantity) -> Quantity:
        """What is left over, 0 where the law is kept; columns broadcast.

        >>> HEADS.rest(40, 16)
        8
        """
        return whole % math.prod(counts)

    def short(self, whole: int, *counts: int) -> int:
        """What the whole lacks to the next multiple.

        >>> EXPERTS.short(256, 72)
        32
        """
        return -whole % math.prod(counts)

    def says(self, whole: int, *counts: int) -> str:
        """The law that is broken, with its numbers.

        >>> HEADS.says(40, 16)
        '40 heads do not divide by tp 16'
        """
        return self.broken.format(*counts, whole=whole, product=math.prod(counts))

    def largest(self, whole: int, count: int) -> int:
        """The largest divisor of the whole that also divides a count: what the count may be lowered to.

        >>> HEADS.largest(40, 16)
        8
        """
        return math.gcd(whole, count)

    def nearest(self, whole: int, *counts: int) -> int:
        """The largest multiple up to the whole, or the least there is: what the whole may be set to.

        >>> BATCH.nearest(100, 8, 3)
        96
        """
        product = math.prod(counts)
        return max(1, whole // product) * product


RANKS = Division(
    by=("tp", "pp", "cp"), broken="{whole} ranks are no multiple of tp {0} · pp {1} · cp {2} = {product}"
)
"""GPUs of a job; dp is what is left."""
HEADS = Division(by=("tp",), broken="{whole} heads do not divide by tp {0}")
"""Heads of attention, and whatever else tensor parallelism cuts without a rest."""
EXPERTS = Division(by=("ep",), broken="{whole} experts do not divide by ep {0}")
"""Experts of a layer."""
EXPERT_RANKS = Division(
    by=("ep", "expert_tp"), broken="ep {0} · {1} ranks an expert = {product}, and a stage has {whole} ranks"
)
"""The dp·cp·tp ranks of a pipeline stage, over which experts are spread anew."""
BATCH = Division(
    by=("dp", "microbatch_size"), broken="a global batch of {whole} is no multiple of dp {0} · {1} samples"
)
"""Sequences of a step."""
