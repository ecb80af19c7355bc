"""The minimum cut of a graph: the door to networkx for graphs that are no cluster."""

from __future__ import annotations

from collections.abc import Hashable, Mapping


def source_side(
    edges: Mapping[tuple[Hashable, Hashable], int | None], source: Hashable, sink: Hashable
) -> set[Hashable]:
    """Nodes on the source's side of a minimum cut; of several, the cut that is nearest to the source.

    Args:
        edges: Capacity by (from, to); None is no limit.
        source: Where the flow begins.
        sink: Where it ends; some edge of limited capacity is on every way to it.

    >>> sorted(source_side({("s", "a"): None, ("a", "b"): 2, ("b", "t"): 2}, "s", "t"))
    ['a', 's']
    """
    import networkx as nx

    # networkx returns the nodes from which the sink is reached; with edges and ends turned about, that is
    # the source's side, and the smallest one.
    turned = nx.DiGraph()
    turned.add_nodes_from((source, sink))
    for (start, end), most in edges.items():
        turned.add_edge(end, start, **({} if most is None else {"capacity": most}))
    _, (_, side) = nx.minimum_cut(turned, sink, source)
    return set(side)
