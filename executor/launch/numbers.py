"""Which number each node of a run has where nothing gives it one: each is claimed in the run's folder.

That is ``--rdzv-endpoint HOST:PORT`` with ``--nnodes``, the same command on every node, as torchrun takes it.
The node whose address HOST is has number 0. A claim is a folder that appears whole under the number and a
generation of it: of several that claim one generation exactly one succeeds. It is kept by a node's name, so a
node that is started again has its number back; a later generation is claimed of a node that is gone. Of two
launchers whose nodes have one name the second is refused, and leaves word of it for those that wait for it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from executor.comm.meeting import endpoint, is_here
from executor.launch.membership import BEAT_S, SILENT_S, MembershipTable, publish_folder
from executor.launch.nodes import UNNUMBERED, Nodes, name_here
from executor.launch.run_lock import holder_of
from executor.launch.turns import EARLIER_S, MEETING_S
from topology.base.atomic import write_atomically
from topology.base.decode import read_json, structure
from topology.base.errors import InputError

_NUMBER, _HOLDER, _CLOCK, _NAMESAKE = "number-", "node.json", "clock-", "namesake-"
_LOOK_S = BEAT_S / 4
_OWN_S = 3 * BEAT_S  # in which another launcher of this node's name would have beaten
State = Literal["lives", "busy", "unknown", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberClaim:
    """Who has a number: a node by its name, in a generation of that number."""

    number: int
    generation: int
    node: str
    path: Path


@dataclass(slots=True, kw_only=True)
class Numbers:
    """The numbers of a run's nodes as one that has none yet sees them.

    `folder` is where nodes meet, `run` the run's, whose locks they hold. `first` says whether the endpoint is
    at this node. `watch` hears the beats of those that have numbers; `watched_s` long by now.
    """

    folder: Path
    run: Path
    count: int
    node: str
    first: bool
    watch: MembershipTable = field(init=False)
    watched_s: float = 0.0
    reported: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Hear others without being one of them."""
        self.watch = MembershipTable(folder=self.folder, node=UNNUMBERED)

    def claims(self) -> dict[int, NumberClaim]:
        """The last generation of each number's claims."""
        result: dict[int, NumberClaim] = {}
        for path in self.folder.glob(f"{_NUMBER}*.*"):
            number, _, generation = path.name.removeprefix(_NUMBER).partition(".")
            if not (number.isdecimal() and generation.isdecimal() and int(number) < self.count):
                continue
            before = result.get(int(number))
            if before is None or before.generation < int(generation):
                node = structure(read_json(path / _HOLDER), str, str(path))
                result[int(number)] = NumberClaim(
                    number=int(number), generation=int(generation), node=node, path=path
                )
        return result

    def look(self, now_s: float) -> int | None:
        """Take a number if one can be had now; `now_s` is this machine's monotonic clock, in seconds."""
        before_s = self.watch.looked_s
        self.watch.look(now_s)
        self.watched_s += 0.0 if before_s is None else min(now_s - before_s, _OWN_S)
        claims = self.claims()
        mine = [
            claim for claim in claims.values() if claim.node == self.node and (claim.number or self.first)
        ]
        if mine:
            return self._reclaimed(mine[0])
        states = {number: self._state(claim) for number, claim in claims.items()}
        if self.first and states.get(0) == "unknown":
            return None
        wanted = range(0 if self.first else 1, self.count)
        for number in (
            *(n for n in wanted if n not in claims),
            *(n for n in wanted if states.get(n) == "gone"),
        ):
            generation = claims[number].generation + 1 if number in claims else 0
            if self._claim(number, generation):
                return number
        if all(states.get(number) == "lives" for number in wanted):
            raise self._one_more(claims)
        return None

    def holds(self, number: int) -> bool:
        """Whether a number is still this node's."""
        claim = self.claims().get(number)
        return claim is None or claim.node == self.node

    def require(self, number: int) -> None:
        """End a launcher whose number was given to another node while it was silent."""
        claim = self.claims().get(number)
        if claim is not None and claim.node != self.node:
            raise InputError(
                what=f"this node was silent for so long that its number was given to {claim.node}",
                cause=f"node {number} of {self.count} was {self.node}, and is {claim.node} now",
                fix="start it again: it gets a number as soon as one is free",
            )

    def tell_namesakes(self, say: Callable[[str], None]) -> None:
        """Tell, once each, of launchers that were just refused because their node has another's name."""
        for word in self.folder.glob(f"{_NAMESAKE}*"):
            if word.name in self.reported or self._age_s(word) > EARLIER_S:
                continue
            self.reported.add(word.name)
            node, where = structure(read_json(word), tuple[str, str], str(word))
            number = word.name.removeprefix(_NAMESAKE).partition(".")[0]
            say(
                f"another launcher ({where}) was refused, as its node is called {node} like node {number}: "
                "if it is another node, give each a name of its own as NODE_NAME and start it again"
            )

    def _claim(self, number: int, generation: int) -> bool:
        """Claim a number; whether nobody else had."""
        return publish_folder(
            self.folder / f"{_NUMBER}{number}.{generation}", {_HOLDER: json.dumps(self.node)}
        )

    def _reclaimed(self, claim: NumberClaim) -> int | None:
        """The number that this node had, once it is known that no other launcher of its name has it now."""
        holder = holder_of(self.run, claim.number)
        heard = self.watch.heard.get(claim.number)
        if holder or (heard is not None and heard.lives):
            here = f"process {os.getpid()} on {socket.gethostname()}"
            word = self.folder / f"{_NAMESAKE}{claim.number}.{self.watch.mine.token}"
            write_atomically(word, json.dumps((self.node, here)))
            raise InputError(
                what="another launcher of this run is under way on a node of this name",
                cause=f"{self.node} is node {claim.number}{': ' if holder else ''}{holder}",
                fix="wait for its end or stop it; where nodes share a name, give each another as NODE_NAME",
            )
        if self.watched_s < _OWN_S:
            return None
        os.utime(claim.path)
        return claim.number

    def _state(self, claim: NumberClaim) -> State:
        """What is known of a claim's node: one that has just come need not beat yet."""
        heard = self.watch.heard.get(claim.number)
        if heard is not None and heard.lives:
            return "lives"
        if self._age_s(claim.path) < EARLIER_S or holder_of(self.run, claim.number):
            return "busy"
        return "unknown" if self.watched_s < SILENT_S else "gone"

    def _age_s(self, path: Path) -> float:
        """Seconds since something was written here, by the folder's own clock."""
        mark = self.folder / f"{_CLOCK}{self.watch.mine.token}"
        mark.touch()
        try:
            return mark.stat().st_mtime - path.stat().st_mtime
        finally:
            mark.unlink()

    def _one_more(self, claims: dict[int, NumberClaim]) -> InputError:
        """The three lines of a node for which there is no number."""
        named = ", ".join(f"{number} is {claims[number].node}" for number in sorted(claims)[:4])
        rest = f", and {len(claims) - 4} more" if len(claims) > 4 else ""
        kept = "" if self.first or 0 in claims else "; 0 is for the node at --rdzv-endpoint"
        return InputError(
            what=f"{self.node} is one node more than the run has",
            cause=f"--nnodes {self.count}, and all live: {named}{rest}{kept}",
            fix="stop one of them first, or plan for more GPUs and give more --nnodes",
        )


def numbered(nodes: Nodes, numbers: Numbers, say: Callable[[str], None]) -> Nodes:
    """Wait for this node's number; `say` is reported when that takes long."""
    since_s, value = time.monotonic(), False
    while (number := numbers.look(time.monotonic())) is None:
        numbers.tell_namesakes(say)
        waited_s = time.monotonic() - since_s
        if waited_s > MEETING_S:
            raise InputError(
                what=f"{numbers.node} has no number among the run's nodes",
                cause=f"in {MEETING_S} s none of {numbers.count} was free: "
                + ", ".join(
                    f"{claim.number} is {claim.node}" for claim in list(numbers.claims().values())[:4]
                ),
                fix="stop nodes that are not to take part, or set NODE_RANK on each",
            )
        if waited_s > SILENT_S + 2 * BEAT_S and not value:
            value = True
            say(f"every number of {numbers.count} nodes is taken: waiting for one, up to {MEETING_S} s")
        time.sleep(_LOOK_S)
    return replace(nodes, rank=number)


def numbers_of(folder: Path, run: Path, nodes: Nodes, where: str, environment: Mapping[str, str]) -> Numbers:
    """The numbers of the nodes that meet in a folder, of a run whose endpoint is `where`."""
    return Numbers(
        folder=folder,
        run=run,
        count=nodes.count,
        node=name_here(environment),
        first=is_here(endpoint(where)),
    )
