"""From the topologies of a Slurm file to facts: which is planned on, and what the others are."""

from collections.abc import Sequence

from topology.discover.fabric import FabricFacts, fabric_facts
from topology.discover.formats.slurm import Topology, wrong
from topology.discover.places import Figure, Place


def facts_of_topologies(topologies: Sequence[Topology], source: str, default: str = "") -> FabricFacts:
    """Return the facts of topologies; `default` names the one that jobs without a partition's own get."""
    named = {place.name: place for topology in topologies for place in topology.places}
    chosen = next((topology for topology in topologies if topology.name == default), topologies[0])
    places: tuple[Place, ...] = chosen.places
    if chosen.kind == "flat":  # every host reaches every other, wherever another topology puts it
        places = tuple(Place(name=name) for name in named)
    if not named:
        raise wrong("it names no nodes: a skeleton without hosts is nothing to plan on")
    if not places:
        raise wrong(f"the default topology {chosen.name!r} has no nodes; others of this file have")
    notes = [
        f"{topology.name}: {note}" if topology.name else note
        for topology in topologies
        for note in topology.notes
    ]
    figures = [Figure(name="nodes named", value=f"{len(named):,}", source=source)]
    for topology in topologies:
        what = f"{topology.name}: {topology.kind}" if topology.name else topology.kind
        figures.append(Figure(name="topology", value=f"{what} {topology.shape}".strip(), source=source))
    if len(topologies) > 1:
        notes.append(
            f"{chosen.name} is planned on, with {len(places):,} of {len(named):,} nodes; a list picks others"
        )
    if chosen.kind == "tree":
        figures.append(Figure(name="switch levels", value=str(chosen.levels), source=source))
    notes.append(
        "Slurm's file gives no bandwidths: NICs are the reference machine's, fabrics not oversubscribed"
    )
    return fabric_facts(
        source=source,
        places=places,
        known=named,
        figures=tuple(figures),
        notes=tuple(notes),
        rooted=True,
        domain_word="block" if chosen.kind == "block" else "",
    )
