"""The rate of a link that would explain a step as slow as measured: the cost model, solved backwards.

Where no flag explains a step, what joins the GPUs may be slower than its datasheet. Seconds of a step grow as
a rate falls, so the rate of one kind of link at which the estimate is what was measured is the only one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from costmodel.training.estimate import estimate
from planner.audit.changes import Running
from topology.base.errors import InputError
from topology.base.units import GBIT, GIGA, three_digits
from topology.builders import build
from topology.spec import NodeSpec

SLOWEST_BYTES_PER_S = GBIT
"""Gigabit Ethernet: the slowest link that nodes of a cluster are joined by."""
ROUNDING = 0.01
"""Share to which a rate is solved for; its band is wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """A rate at which a job would take as long as it was measured to.

    Attributes:
        of: What the link is of: ``node``, all NICs of one together, or ``GPU``, its link in a node.
        bytes_per_s: The rate that explains the step.
        taken_bytes_per_s: The rate that was taken for it.
        flag: What says the rate on the command line; empty where no flag does.
    """

    of: str
    bytes_per_s: float
    taken_bytes_per_s: float
    flag: str = ""

    @property
    def words(self) -> str:
        """It in words, beside what was taken.

        >>> LinkRate(of="node", bytes_per_s=17.6e9, taken_bytes_per_s=400e9).words
        'a link of about 141 Gbit/s a node would explain it (3,200 are taken)'
        """
        unit, name = (GBIT, "Gbit/s") if self.of == "node" else (GIGA, "GB/s")
        rate, taken = three_digits(self.bytes_per_s / unit), f"{self.taken_bytes_per_s / unit:,.0f}"
        return f"a link of about {rate} {name} a {self.of} would explain it ({taken} are taken)"


def rate_that_explains(now: Running, measured_s: float) -> LinkRate | None:
    """The rate of links between nodes, or in the only one, that makes a job as slow as measured.

    Args:
        now: The job, as its files have it.
        measured_s: Seconds of a step, more than predicted.

    Returns:
        None where the job is not slower than predicted, has no such link, or is not as slow even over the
        slowest: something else is.
    """
    spec = now.request.cluster
    node = spec.nodes[0]
    if len(spec.nodes) > 1 or spec.num_gpus == 1 or measured_s <= now.estimate.step_time_s:
        return None
    between = spec.num_nodes > 1
    if between and not node.nics_per_node:
        return None
    each = node.nics_per_node if between else 1
    taken = each * (node.nic_bandwidth_bytes_per_s if between else node.scaleup_bandwidth_bytes_per_s)

    def seconds(rate: float) -> float:
        try:
            cluster = build(replace(spec, nodes=(_with_rate(node, rate / each, between=between),)))
        except InputError:
            return math.nan
        return estimate(
            replace(now.problem.case, cluster=cluster, stack=now.stack), now.layout, now.split
        ).step_time_s

    low, high = SLOWEST_BYTES_PER_S, taken
    if not (low < high and seconds(low) >= measured_s):
        return None
    while high / low > 1 + ROUNDING:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if seconds(middle) >= measured_s else (low, middle)
    flag = f"--set cluster.nic_bandwidth_bytes_per_s={low / each:.3g}" if between else ""
    return LinkRate(of="node" if between else "GPU", bytes_per_s=low, taken_bytes_per_s=taken, flag=flag)


def _with_rate(node: NodeSpec, bytes_per_s: float, *, between: bool) -> NodeSpec:
    """A node whose NICs, or links among its GPUs, have another rate."""
    if between:
        return replace(node, nic_bandwidth_bytes_per_s=bytes_per_s)
    return replace(node, scaleup_bandwidth_bytes_per_s=bytes_per_s)
