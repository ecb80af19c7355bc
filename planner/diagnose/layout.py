"""The layout that process groups tell: sizes and distances of the axes, named by words, traffic and order.

Axes nest: an axis' distance between ranks is the product of the sizes of faster ones. Groups of several axes
together (all ranks, dp and cp) are products of the others and name no axis; experts re-use the ranks of a
stage and stand beside the nest.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from costmodel.parallel.axes import RANK_AXES
from planner.diagnose.classes import group_words
from planner.diagnose.collectives import Call
from planner.traces.events import ProcessGroup, Trace

BESIDE = ("ep", "expert_tp")
"""Axes that re-use ranks of others."""


AMONG_ALL = ("allreduce", "allgather", "reducescatter")
MOST_NORMS = 3
"""Small reductions over all ranks in a step: the norm of gradients, the loss, whether one is infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredLayout:
    """Degrees of axes, with the groups that each has."""

    world_size: int
    degrees: Mapping[str, int]
    strides: Mapping[str, int]
    axis_of: Mapping[tuple[int, ...], str] = field(repr=False)
    """Axis of each group that is one."""
    evidence: Mapping[str, str]
    """By axis, what names it: words, traffic or order."""


@dataclass(slots=True)
class _Family:
    """Groups of one size and distance."""

    size: int
    stride: int
    groups: set[tuple[int, ...]] = field(default_factory=set)
    words: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    calling: set[tuple[int, ...]] = field(default_factory=set)
    """Groups that made some of them."""


def infer_layout(
    groups: Iterable[ProcessGroup], calls: Iterable[tuple[tuple[int, ...], str]], world_size: int
) -> InferredLayout:
    """Degrees and distances of the axes.

    Args:
        groups: All that any rank lists.
        calls: Ranks and kind of each collective.
        world_size: Ranks of the job.

    >>> tp, dp = ProcessGroup(ranks=(0, 1)), ProcessGroup(ranks=(0, 2))
    >>> layout = infer_layout([tp, dp], [((0, 1), "allreduce")] * 20 + [((0, 2), "allreduce")] * 2, 4)
    >>> dict(layout.degrees)
    {'tp': 2, 'dp': 2}
    """
    families = dict[tuple[int, int], _Family]()
    for group in groups:
        family = _family_of(families, group.ranks)
        if family is not None:
            axis = axis_of_words(group.description)
            if axis:
                family.words[axis] += 1
    reduced = Counter[frozenset[int]]()
    for ranks, kind in calls:
        reduced[frozenset(ranks)] += kind in AMONG_ALL
        family = _family_of(families, ranks)
        if family is not None:
            family.calls[kind] += 1
            family.calling.add(ranks)
    named = {_named(family): family for family in families.values() if _named(family)}
    chain = _chain([each for each in families.values() if _named(each) not in BESIDE], world_size)
    names = _names(chain, reduced)
    evidence = {}
    axes = dict[str, _Family]()
    for family, name in zip(chain, names, strict=True):
        axes[name] = family
        evidence[name] = "words" if _named(family) == name else "traffic" if family.calls else "order"
    for name, family in named.items():
        if name in BESIDE and name not in axes:
            axes[name], evidence[name] = family, "words"
    used = {id(family) for family in axes.values()}
    if "ep" not in axes:
        experts = [each for each in families.values() if id(each) not in used and each.calls["alltoall"]]
        if experts:
            axes["ep"] = max(experts, key=lambda each: each.calls["alltoall"])
            evidence["ep"] = "traffic"
    return InferredLayout(
        world_size=world_size,
        degrees={name: family.size for name, family in axes.items()},
        strides={name: family.stride for name, family in axes.items()},
        axis_of={ranks: name for name, family in axes.items() for ranks in family.groups},
        evidence=evidence,
    )


def layout_of(traces: Sequence[Trace], calls: Mapping[int, Sequence[Call]]) -> InferredLayout:
    """The layout of recorded ranks."""
    groups = [group for trace in traces for group in trace.groups]
    teller = dict[tuple[int, ...], int]()
    for rank in sorted(calls):  # one rank tells what its group calls: more would count large groups for more
        for call in calls[rank]:
            teller.setdefault(call.group, rank)
    made = [
        (call.group, call.kind) for rank, of in calls.items() for call in of if teller[call.group] == rank
    ]
    described = {
        (call.group, call.description): ProcessGroup(ranks=call.group, description=call.description)
        for of in calls.values()
        for call in of
        if call.group
    }
    listed = {tuple(sorted({*ranks})) for ranks in (*(group.ranks for group in groups), *teller)}
    spans = (_span(ranks) for ranks in listed if ranks)
    world = max(*(trace.world_size for trace in traces), len(traces), *spans, 1)
    return infer_layout([*groups, *described.values()], made, world)


def _span(ranks: tuple[int, ...]) -> int:
    """Ranks that a job has at least: up to the last of a group, and to the end of its nest."""
    gaps = {second - first for first, second in pairwise(ranks)}
    return max(ranks[-1] + 1, gaps.pop() * len(ranks) if len(gaps) == 1 else 0)


def axis_of_words(description: str) -> str:
    """Axis that a group's name says; empty where it says none.

    >>> axis_of_words("TENSOR_MODEL_PARALLEL_GROUP"), axis_of_words("default_pg")
    ('tp', '')
    """
    return next((axis for axis, pattern in group_words() if re.search(pattern, description)), "")


def _family_of(families: dict[tuple[int, int], _Family], ranks: tuple[int, ...]) -> _Family | None:
    """The family of a group whose ranks have one distance; None for others, and for one rank."""
    ordered = tuple(sorted(set(ranks)))
    if len(ordered) < 2:
        return None
    gaps = {second - first for first, second in pairwise(ordered)}
    if len(gaps) > 1:
        return None
    stride = gaps.pop()
    family = families.setdefault((len(ordered), stride), _Family(len(ordered), stride))
    family.groups.add(ordered)
    return family


def _named(family: _Family) -> str:
    """The axis that most of its groups are called after."""
    return family.words.most_common(1)[0][0] if family.words else ""


def _chain(families: Sequence[_Family], world: int) -> list[_Family]:
    """The finest nest of families that multiplies to the ranks, fastest first."""
    by_stride = defaultdict[int, list[_Family]](list)
    for family in families:
        by_stride[family.stride].append(family)
    best = list[_Family]()
    pending: list[tuple[int, list[_Family]]] = [(1, [])]
    while pending:
        stride, chain = pending.pop()
        if _rank(chain, stride, world) > _rank(best, _reach(best), world):
            best = chain
        pending += [
            (stride * each.size, [*chain, each]) for each in by_stride[stride] if stride * each.size <= world
        ]
    if best and _reach(best) == world:
        return best
    return best or sorted(families, key=lambda each: each.stride)[:1]


def _reach(chain: Sequence[_Family]) -> int:
    return chain[-1].stride * chain[-1].size if chain else 1


def _rank(chain: Sequence[_Family], reach: int, world: int) -> tuple[bool, int, int]:
    """How well a nest explains the ranks: all of them, in many axes, that are named or used."""
    return reach == world, len(chain), sum(bool(each.words) + bool(each.calls) for each in chain)


def _names(chain: Sequence[_Family], reduced: Counter[frozenset[int]]) -> list[str]:
    """Names of a nest's axes: words first, then what they send, then their order."""
    names = dict[int, str]()
    for place, family in enumerate(chain):
        name = _named(family)
        if name in RANK_AXES and name not in names.values():
            names[place] = name
    rest = [place for place in range(len(chain)) if place not in names]

    def take(name: str, places: Sequence[int]) -> None:
        free = [place for place in places if place in rest]
        if free and name not in names.values():
            names[free[0]] = name
            rest.remove(free[0])

    sends = [place for place in rest if _sent(chain[place]) > _among(chain[place])]
    if len(sends) == 1 and _holds_copies(chain, sends[0], reduced):
        take("cp", sends)
    take("pp", sends[::-1])
    take(
        "cp",
        [
            place
            for place in rest
            if place in sends
            or chain[place].calls["alltoall"] > sum(chain[place].calls[kind] for kind in AMONG_ALL)
        ],
    )
    talks = sorted((place for place in rest if _among(chain[place])), key=lambda place: _among(chain[place]))
    if len(talks) > 1:  # gradients are reduced once a step, products of layers in each
        take("dp", talks[:1])
        take("tp", [place for place in talks[::-1] if place in rest])
        take("cp", [place for place in talks if place in rest])
    elif talks and "pp" in names.values():  # sends are as many as microbatches, products of layers are more
        pp = next(place for place, name in names.items() if name == "pp")
        take("tp" if _among(chain[talks[0]]) > _sent(chain[pp]) else "dp", talks)
    order = [name for name in ("tp", "cp", "dp", "pp") if name not in names.values()]
    if len(rest) == 1 and "dp" in order:
        order = ["dp", *order]
    elif len(rest) == 2 and "cp" in order:
        order.remove("cp")
    for place, name in zip(list(rest), order, strict=False):
        names[place] = name
    return [names[place] for place in range(len(chain))]


def _holds_copies(chain: Sequence[_Family], place: int, reduced: Counter[frozenset[int]]) -> bool:
    """Whether ranks that send to each other reduce gradients together: cp has copies of weights, pp parts."""
    over = max(
        (
            count
            for ranks, count in reduced.items()
            if any(ranks.issuperset(group) for group in chain[place].groups)
        ),
        default=0,
    )
    talks = sorted(_among(family) for other, family in enumerate(chain) if other != place)
    without_it = talks[0] if len(talks) > 1 else 0
    return over > max(without_it, MOST_NORMS)


def _among(family: _Family) -> float:
    """Calls of a group among all of it that are no all-to-all."""
    return sum(family.calls[kind] for kind in AMONG_ALL) / max(1, len(family.calling))


def _sent(family: _Family) -> float:
    """Sends of a group."""
    return family.calls["sendrecv"] / max(1, len(family.calling))
