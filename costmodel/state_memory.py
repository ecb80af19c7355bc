"""Bytes of parameters and their training state on one rank, under ZeRO sharding.

Legend: ``w``, ``g``, ``o`` bytes per parameter of weights, gradients and optimizer; ``N`` ranks sharing a
shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.layout import LayoutTable, Quantity
from costmodel.stack import SoftwareStack
from costmodel.workload import TrainingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Persistent bytes of some parameters on one rank, after sharding."""

    weights_bytes: Quantity
    gradients_bytes: Quantity
    optimizer_bytes: Quantity

    @property
    def total_bytes(self) -> Quantity:
        """Weights, gradients and optimizer state."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes


def state_bytes(
    parameters: Quantity,
    expert_parameters: Quantity,
    table: LayoutTable,
    stack: SoftwareStack,
    job: TrainingJob,
) -> State:
    """Weights, gradients and optimizer state of a rank's parameters, in bytes.

    Rajbhandari et al. 2020, figure 1: ZeRO-1 divides o by N, ZeRO-2 also g, ZeRO-3 also w; a stack that
    gathers from its master weights keeps no separate w at ZeRO-3. N is the shard degree for dense
    parameters, and its share of the expert replicas for experts.

    Args:
        parameters: Parameters of the rank that data parallelism replicates, experts excluded.
        expert_parameters: Parameters of the rank's routed experts.
        table: The layouts; zero_stage, shard_degree and expert replicas are read.
        stack: Bytes per parameter.
        job: Precision: eight-bit training keeps copies of the matrices.

    Returns:
        The three parts, one entry per layout.
    """
    dense, expert = parameters, expert_parameters
    copies = table.dp * table.cp
    dense_ranks = np.minimum(table.shard_degree, copies)
    expert_ranks = np.maximum(1, table.expert_dp * dense_ranks / copies)
    z = table.zero_stage

    def kept(stage: int) -> Quantity:
        """Parameters whose state stays on the rank when sharding starts at this ZeRO stage."""
        return np.where(z >= stage, dense / dense_ranks + expert / expert_ranks, dense + expert)

    resident = 1 - (z >= 3) * stack.gathers_from_master
    weight_bytes = stack.weight_bytes + stack.fp8_weight_copies * job.is_fp8
    return State(
        weights_bytes=weight_bytes * kept(3) * resident,
        gradients_bytes=stack.gradient_bytes * kept(2),
        optimizer_bytes=stack.optimizer_bytes * kept(1),
    )


def unit_bytes(parameters: Quantity, table: LayoutTable, stack: SoftwareStack) -> Quantity:
    """Transient bytes of one sharded unit (a layer) around its compute at ZeRO-3: zero below.

    The unit's weights are gathered, the next one's too if prefetched, and its whole gradient exists in
    the gather precision and in the reduction's before it is scattered.

    Args:
        parameters: Parameters of the unit on a rank before sharding, experts included.
        table: The layouts.
        stack: Bytes per gathered and reduced parameter, and prefetching.

    Returns:
        Bytes, one entry per layout.
    """
    gathered = stack.parameter_gather_bytes * (2 + stack.fsdp_prefetch)
    return (table.zero_stage >= 3) * parameters * (gathered + stack.gradient_reduce_bytes)
