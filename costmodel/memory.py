"""Bytes on one GPU: parameters and their state, saved activations, transient buffers, and the runtime's own.

Legend: ``T`` tokens of a microbatch on a rank, ``L`` layers, ``P`` stages, ``M`` microbatches, ``V`` chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.layout import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Peak bytes of one pipeline stage on one GPU; the parts sum to `total_bytes`."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    kv_cache_bytes: float = 0.0
    buffers_bytes: float
    overhead_bytes: float

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.kv_cache_bytes
            + self.buffers_bytes
            + self.overhead_bytes
        )


def in_flight(
    schedule: Quantity, pp: Quantity, virtual_stages: Quantity, num_microbatches: Quantity, stage: Quantity
) -> Quantity:
    """Microbatches whose activations of a whole stage are held at the peak; `schedule` is a code of SCHEDULES."""
    return num_microbatches
