"""A GPU as its datasheet describes it: dense peaks, memory, power, and where each fact is from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from topology.base.errors import InputError

_FALLBACKS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "tf32": ("fp32",),
    "fp8": ("bf16", "fp16"),
    "int8": ("fp8", "bf16", "fp16"),
    "fp4": ("fp8", "bf16", "fp16"),
}
"""What a GPU without units for a type computes in instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU type. `peak_flop_per_s` holds dense peaks by dtype, never the sparse marketing ones.

    Without `peer_to_peer` what it sends over PCIe goes through the memory of its host. A card that a user
    describes has what is `unverified` from the card that it is `derived_from`.
    """

    name: str
    architecture: str
    peak_flop_per_s: Mapping[str, float] = field(hash=False)
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    tdp_w: float
    peer_to_peer: bool = True
    source: str
    as_of: str
    unverified: tuple[str, ...] = ()
    derived_from: str = ""

    def peak(self, dtype: str) -> float:
        """Return the dense peak of a dtype in flop/s, or of the type it is computed in when it has no units.

        Args:
            dtype: a key of `peak_flop_per_s`, such as "bf16".
        """
        for candidate in (dtype, *_FALLBACKS.get(dtype, ())):
            if candidate in self.peak_flop_per_s:
                return self.peak_flop_per_s[candidate]
        raise InputError(
            f"{self.name} has no known peak for {dtype}",
            f"its data sheet lists {', '.join(self.peak_flop_per_s) or 'no peaks'}",
            "choose a precision it has, or another GPU",
        )
