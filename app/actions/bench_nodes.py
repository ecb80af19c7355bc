"""Carry out `plan bench --nodes`: one process a rank measures links, the first one names and keeps them."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.reports.bench import NodeBench
from costmodel.kernels.measurement import Measurement
from topology.base.errors import InputError
from topology.spec import ClusterSpec

if TYPE_CHECKING:
    from executor.bench.node_links import NodeLinks


def measure_nodes(
    *, device: str, cluster: str | None, interface: str | None, meet: Path | None, save: bool
) -> NodeBench | None:
    """Measure the allocation this rank is of; None on every rank but the first."""
    from app.actions.bench import uses_gpu
    from app.requests.cluster import find_cluster
    from executor.bench.kernels import measurements
    from executor.bench.measured_links import with_links
    from executor.bench.node_links import measured_links, pair_entries, seat_of
    from executor.launch.nodes import Nodes, listening_interface, sockets_on
    from topology.builders import build

    seat = seat_of(os.environ)
    if cluster is None:
        raise InputError(
            what="links are measured of a cluster that is described",
            cause="no --cluster",
            fix="give the cluster file of this allocation, as plan topology --here writes it with --output",
        )
    result = find_cluster(cluster=cluster, gpus=None, gpu=None).cluster
    listening = listening_interface(Nodes(count=result.spec.num_nodes), interface)
    os.environ.update(sockets_on(listening))
    on_gpu = uses_gpu(device)
    links = measured_links(result, seat, os.environ, meet, cuda=on_gpu)
    if seat.rank:
        return None
    spec, notes = with_links(result, links)
    entries = [
        *(entry.entry for entry in links.entries),
        *pair_entries(links, result, "cuda" if on_gpu else "cpu"),
    ]
    kept = measurements(entries, cluster=build(spec).fingerprint(), gpu=result.gpu.name)
    files = save_links(spec, links, kept) if save else ()
    return NodeBench(cluster=spec, links=links, measurements=kept, notes=(*notes, *files))


def save_links(spec: ClusterSpec, links: NodeLinks, kept: Sequence[Measurement]) -> tuple[str, ...]:
    """Write measurements and cluster as `plan bench` does; the file says when its links were measured."""
    from app.actions.bench import save_result

    software = ", ".join(f"{name} {version}" for name, version in kept[0].software.items())
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    hosts = f"{len(links.hosts)} hosts of {links.ranks_per_host} ranks"
    return save_result(
        spec, kept, head=f"# links measured {today} by plan bench --nodes, {hosts}: {software}\n"
    )
