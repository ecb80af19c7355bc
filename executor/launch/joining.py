"""When a spare node is taken in: once the run has written a checkpoint since it came, if it helps.

Ranks then end in order, with a checkpoint of their own, so that nothing is computed twice; the next turn has
the spare among its members. A node whose ranks were killed until no restart was left is not taken in, as it
would fail again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from executor.launch.membership import Members, MembershipTable
from executor.training.manifest import steps_on_disk


@dataclass(slots=True, kw_only=True)
class Joining:
    """What the first member of a turn knows of spares: since which checkpoint each is there.

    `helps` says whether a plan for these nodes has more of them than the turn has; it is asked once for each
    set of nodes.
    """

    table: MembershipTable
    members: Members
    checkpoints: Path
    helps: Callable[[tuple[int, ...]], bool]
    since: dict[str, int] = field(default_factory=dict)
    refused: set[tuple[int, ...]] = field(default_factory=set)

    def due(self) -> bool:
        """Whether it is time to take spares in."""
        living = self.table.living()
        spares = {
            node: beat.token
            for node, beat in living.items()
            if beat.token not in self.members.tokens and not beat.lost
        }
        self.since = {token: step for token, step in self.since.items() if token in spares.values()}
        if not spares:
            return False
        newest = next(iter(steps_on_disk(self.checkpoints)), -1)
        waited = [node for node, token in spares.items() if newest > self.since.setdefault(token, newest)]
        nodes = tuple(sorted({*self.members.nodes, *waited}))
        if not waited or nodes in self.refused:
            return False
        if self.helps(nodes):
            return True
        self.refused.add(nodes)
        return False
