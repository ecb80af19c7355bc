"""Several dumps as one allocation: the job's list picks hosts, topologies place them; no contradictions."""

from collections.abc import Sequence
from dataclasses import replace

from topology.base.errors import InputError, shown
from topology.discover.fabric import FabricFacts
from topology.discover.node import NodeFacts
from topology.discover.places import MOST_NAMED, Place


def one_node(nodes: Sequence[NodeFacts]) -> NodeFacts | None:
    """Return what all dumps of a node say together."""
    if not nodes:
        return None
    first = nodes[0]
    for other in nodes[1:]:
        for what, a, b in (
            ("GPUs", first.gpus, other.gpus),
            ("kind of GPU", first.gpu, other.gpu),
            ("scale-up links", first.scaleup, other.scaleup),
        ):
            if a and b and a != b:
                raise _contradiction(first.source, other.source, f"{what}: {a} and {b}")
        first = replace(
            first,
            gpus=first.gpus or other.gpus,
            nics=max(first.nics, other.nics),
            scaleup=first.scaleup or other.scaleup,
            gpu=first.gpu or other.gpu,
            links_per_gpu=first.links_per_gpu if first.scaleup else other.links_per_gpu,
            nic_bandwidth_bytes_per_s=first.nic_bandwidth_bytes_per_s or other.nic_bandwidth_bytes_per_s,
            spans_hosts=first.spans_hosts if first.spans_hosts is not None else other.spans_hosts,
        )
    return first


def one_fabric(fabrics: Sequence[FabricFacts]) -> FabricFacts | None:
    """Return the hosts of the job where they stand, and everything that is known of the fabric."""
    if not fabrics:
        return None
    lists = [fabric for fabric in fabrics if fabric.of_job]
    maps = [fabric for fabric in fabrics if not fabric.of_job]
    facts = maps[0] if maps else lists[0]
    for other in maps[1:]:
        facts = _joined(facts, other)
    for picked in lists if maps else lists[1:]:
        facts = _picked(facts, picked)
    return facts


def _joined(facts: FabricFacts, other: FabricFacts) -> FabricFacts:
    """Return two topologies of the same hosts as one."""
    here, there = _by_name(facts), _by_name(other)
    both = [name for name in here if name in there]
    if not both:
        cause = f"{facts.source} names {shown(next(iter(here)))}, {other.source} {shown(next(iter(there)))}"
        raise InputError("the dumps have no host in common", cause, "give dumps of one cluster")
    places = tuple(_one_place(here[name], there[name], facts.source, other.source) for name in both)
    left = len(here) + len(there) - 2 * len(both)
    note = f"{left:,} hosts are in one of {facts.source} and {other.source} only, and left out"
    return replace(
        facts,
        places=places,
        hosts=len(places),
        rails=facts.rails or other.rails,
        nics_per_host=facts.nics_per_host or other.nics_per_host,
        nic_bandwidth_bytes_per_s=facts.nic_bandwidth_bytes_per_s or other.nic_bandwidth_bytes_per_s,
        domain_word=facts.domain_word or other.domain_word,
        notes=(*facts.notes, *([note] if left else [])),
    )


def _one_place(a: Place, b: Place, source: str, other: str) -> Place:
    for what, x, y in (("GPUs", a.gpus, b.gpus), ("kind of GPU", a.gpu, b.gpu)):
        if x and y and x != y:
            raise _contradiction(source, other, f"{what} of {a.name}: {x} and {y}")
    return replace(
        a, path=a.path or b.path, domain=a.domain or b.domain, gpus=a.gpus or b.gpus, gpu=a.gpu or b.gpu,
        machine=a.machine or b.machine,
    )  # fmt: skip


def _picked(facts: FabricFacts, job: FabricFacts) -> FabricFacts:
    """Return a topology with the hosts of a job alone, in the topology's order; all of them must be in it."""
    places, wanted = {**facts.known, **_by_name(facts)}, _by_name(job)
    missing = [name for name in wanted if name not in places]
    if missing:
        named = ", ".join(map(shown, missing[:MOST_NAMED]))
        cause = f"{len(missing)} of {len(wanted)} hosts of {job.source} are not in {facts.source}: {named}"
        raise InputError(
            "the job's hosts are not in the topology", cause, "give the topology of the job's cluster"
        )
    kept = tuple(
        _one_place(place, wanted[name], facts.source, job.source)
        for name, place in places.items()
        if name in wanted
    )
    note = f"{len(kept):,} of the {len(places):,} nodes that {facts.source} names are the job's"
    return replace(
        facts,
        places=kept,
        hosts=len(kept),
        known={},
        of_job=True,
        figures=(*facts.figures, *job.figures),
        notes=(*facts.notes, note),
    )


def _by_name(fabric: FabricFacts) -> dict[str, Place]:
    return {place.name: place for place in fabric.places}


def _contradiction(a: str, b: str, cause: str) -> InputError:
    return InputError(f"{a} and {b} contradict each other", cause, "give dumps of the same machines")
