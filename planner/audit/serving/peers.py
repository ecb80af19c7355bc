"""GPUs over PCIe of which no file says whether they read each other's memory: what steps take where not.

A driver, a container or an IOMMU may forbid it. NCCL then exchanges through the host's memory, and engines
leave their own all-reduce off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from costmodel.kernels.tables import Calibration
from costmodel.serving.breakdown import decode_parts_s
from costmodel.serving.deployment import Deployment
from topology.base.units import format_seconds

LEAST_SHARE = 0.02
"""Of a step, from which it is told."""


def peers_taken_for_granted(
    cal: Calibration, deployment: Deployment, batch: float, context: float
) -> Iterator[str]:
    """What a decode step of `batch` requests would take without peer access, where that is not known."""
    h = deployment.hierarchy
    known = h.scaleup.kind != "pcie" or not (h.gpu.peer_to_peer and deployment.peers)
    if deployment.layout.tp == 1 or known:
        return
    alone = replace(deployment.stack, own_all_reduce=False)
    without = replace(deployment, peers=False, stack=alone)
    requests = max(round(batch), 1)
    now_s, then_s = (
        sum(decode_parts_s(cal, each, requests, context).values()) for each in (deployment, without)
    )
    if then_s > (1 + LEAST_SHARE) * now_s:
        yield (
            f"GPUs that read each other's memory over PCIe: through their host a step of {requests} requests "
            f"takes {format_seconds(then_s)}, not {format_seconds(now_s)} (NCCL_P2P_DISABLE=1 beside "
            "--disable-custom-all-reduce prices that)"
        )
