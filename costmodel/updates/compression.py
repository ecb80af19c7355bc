"""Gradients compressed before they are summed: values a rank sends, what packing moves, what stays behind.

What compression does to the loss is not modelled: a layout is compared at the same number of steps.

Legend: ``r`` rank of a factorization, ``m`` ≤ ``n`` the sides of a matrix, ``g`` bytes of a stored gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from topology.base.errors import InputError, shown

NARROW_BYTES = {"fp16": 2.0, "bf16": 2.0, "int8": 1 + 4 / 256}
"""Bytes a value that a cast sends; eight bits have a scale in fp32 for each 256 of them.

Source: torch's DDP communication hooks; ZeRO++ (arXiv 2306.10209) section 4.3, whose blocks are exchanged
all-to-all in eight bits, summed, and gathered in eight bits: the traffic of an all-reduce of that width.
"""
FACTORED = "powersgd"
LEAST_GAIN = 2
"""A matrix goes as factors where these are smaller by more than this (`min_compression_rate` of torch)."""
SPARSE = ("topk", "top-k", "randomk", "random-k", "dgc")
KEPT_VALUE_BYTES = 6
"""A kept value in sixteen bits and where it stood."""
LARGEST_RANK = 128
"""Up to it factoring is bound by memory: 6·r FLOP for some forty bytes of a gradient in fp32."""
FACTOR_PASSES = 9
"""Times that PowerSGD reads or writes a gradient: adds the error of the last step to it (2 reads, 1 write),
multiplies it twice (2), writes the product of the factors (1), and keeps what they miss (2 reads, 1 write).

Source: Vogels 2019 (arXiv 1905.13727) algorithms 1 and 2, as `powerSGD_hook` of torch runs them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """One way to send less: narrower values, or two factors of rank `rank` in place of a matrix."""

    kind: str
    rank: int = 0

    @property
    def factors(self) -> bool:
        """Whether matrices are sent as factors."""
        return self.kind == FACTORED

    def value_bytes(self, gradient_bytes: float) -> float:
        """Bytes of one value sent, given those that are sent without compression; never more than these."""
        return min(gradient_bytes, NARROW_BYTES.get(self.kind, gradient_bytes))

    def moved_bytes(self, gradient_bytes: float) -> float:
        """Bytes that packing and unpacking read and write of a parameter on its GPU."""
        if self.factors:
            return FACTOR_PASSES * gradient_bytes
        return 2 * (gradient_bytes + NARROW_BYTES[self.kind])

    def kept_bytes(self, gradient_bytes: float) -> float:
        """Bytes of a parameter that stay from step to step: what factors missed, fed back."""
        return gradient_bytes if self.factors else 0.0


def parse_compression(text: str) -> Compression:
    """Read it as people write it.

    >>> parse_compression("powersgd:4")
    Compression(kind='powersgd', rank=4)

    Raises:
        InputError: If it is none of them.
    """
    kind, colon, rank = (word.strip() for word in text.strip().lower().partition(":"))
    if kind in SPARSE:
        raise _sparse(text)
    if kind == FACTORED and colon and rank.isdecimal() and 1 <= int(rank[:9]) <= LARGEST_RANK:
        return Compression(kind=kind, rank=int(rank))
    if kind in NARROW_BYTES and not colon:
        return Compression(kind=kind)
    raise InputError(
        what=f"job.gradient_compression = {shown(text)} is no compression of gradients",
        cause=f"there are {', '.join(NARROW_BYTES)} and {FACTORED}:R with a rank R of 1 to {LARGEST_RANK}",
        fix=f"write for example --set job.gradient_compression={FACTORED}:4",
    )


def _sparse(text: str) -> InputError:
    """The three lines of gradients of which only the largest are sent, as others gather them."""
    share = 0.01
    most = 2 * NARROW_BYTES["bf16"] / (KEPT_VALUE_BYTES * share)
    return InputError(
        f"job.gradient_compression = {shown(text)} is not planned",
        f"every rank gathers what all others keep, {KEPT_VALUE_BYTES} bytes a value: of 1 % kept more than sums in "
        f"bf16 from {most:.0f} replicas on; no engine here has it",
        f"write {FACTORED}:4, int8 or bf16, which are summed",
    )
