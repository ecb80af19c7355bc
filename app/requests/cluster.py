"""Which cluster is asked about: a name, a file, a GPU and a number, or dumps of a real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.questions.training import MOST_GPUS, what_is_left
from topology.base.counts import parse_count
from topology.base.errors import InputError
from topology.builders import build, default_cluster
from topology.catalog import cluster as named_cluster
from topology.catalog import discovered, dumps_named, gpu_name
from topology.cluster import Cluster
from topology.discover.places import Figure
from topology.hardware.datasheets import default_gpu, gpu_sheets


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedCluster:
    """A cluster, what was assumed to describe it, and the figures that were read, each with its source."""

    cluster: Cluster
    notes: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()


def find_cluster(
    *, cluster: str | None, gpus: str | None, gpu: str | None, dumps: Sequence[Path] = (), here: bool = False
) -> DescribedCluster:
    """Find the cluster that the flags name, or the one this runs on."""
    if here:
        if cluster or dumps or gpus:
            other = f"--cluster {cluster}" if cluster else "--discover" if dumps else f"--gpus {gpus}"
            raise InputError(
                what="two clusters were named", cause=f"--here and {other}", fix="give one of them"
            )
        from topology.discover.here import here as seen_here

        seen = seen_here(gpu or "")
        return DescribedCluster(cluster=build(seen.spec), notes=seen.notes, figures=seen.figures)
    num_gpus = parse_count(gpus, "--gpus", largest=MOST_GPUS) if gpus else None
    named = dumps_named(cluster) if cluster else ()
    if named and not dumps:
        return _discovered(named, gpu, num_gpus)
    if cluster and (gpu or dumps):
        raise InputError(
            what="two clusters were named",
            cause=f"--cluster {cluster} and {f'--gpu {gpu}' if gpu else '--discover'}",
            fix="give one of them",
        )
    if dumps:
        return _discovered(dumps, gpu, num_gpus)
    if cluster:
        return DescribedCluster(cluster=named_cluster(cluster, num_gpus))
    if num_gpus is None and gpu is None:
        raise InputError(
            what="no cluster was named",
            cause="none of --cluster, --gpus and --discover was given",
            fix="add for example --gpus 32, or --cluster aws-p5.48xlarge",
        )
    if num_gpus is None:
        return DescribedCluster(cluster=named_cluster(gpu_sheets()[gpu_name(gpu or default_gpu())].machine))
    return DescribedCluster(cluster=default_cluster(gpu or default_gpu(), num_gpus))


def cluster_of_words(words: Sequence[str], cluster: str | None) -> str | None:
    """The cluster that bare words of a command line name, as ``--cluster`` writes it.

    >>> cluster_of_words(["topo.txt", "ibnetdiscover.txt"], None)
    'topo.txt,ibnetdiscover.txt'
    """
    named = ",".join(words)
    if named and cluster:
        raise InputError(
            what="two clusters were named", cause=f"{named} and --cluster {cluster}", fix="give one of them"
        )
    return named or cluster


def _discovered(dumps: Sequence[Path], gpu: str | None, num_gpus: int | None) -> DescribedCluster:
    """Build the cluster that dumps describe, with as many of its nodes as hold the GPUs asked for."""
    discovery = discovered(dumps, gpu or "", num_gpus)
    return DescribedCluster(cluster=build(discovery.spec), notes=discovery.notes, figures=discovery.figures)


def less(cluster: DescribedCluster, without: str | None, faults: str | None) -> DescribedCluster:
    """The cluster without hosts, and with degraded hosts."""
    if not (without or faults):
        return cluster
    return replace(cluster, cluster=build(what_is_left(cluster.cluster.spec, without, faults)))
