"""What several nodes do next when one is gone: one of them plans for what is left, all go by what it wrote.

A turn is a plan on certain nodes, with its restarts. It ends on every node when a member is gone; then the
living node of the lowest number decides on the next. If that one goes silent too, so does the next lowest.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from executor.launch.agent import LOOK_S
from executor.launch.joining import Joining
from executor.launch.membership import SILENT_S, Beat, Members, MembershipTable
from executor.launch.nodes import Nodes
from executor.training.settings import CHECKPOINTS, RUN_FILE, RunSettings, read_status, settings_json
from executor.training.worker import JOIN
from planner.plan import Plan, from_json, to_json
from topology.base.atomic import write_atomically
from topology.base.errors import InputError
from topology.base.files import read_text
from topology.builders import build
from topology.fabric.seats import hosts_by_rank

MEETING_S = 600  # nodes of a job may start so long after the first
MOST_NAMED = 4
PLAN_FILE = "plan.json"
OVER = "over"
_REFUSED = "refused-"
_CAME = "came-"
EARLIER_S = 60.0
"""Nodes of one start come within this of each other; what one said longer ago was of another start."""
Word = tuple[str, int, int]
"""A file: name, when it was written in ns, its number."""

Replan = Callable[[int, tuple[str, ...]], Plan | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """All nodes that a run may have, by number: the plan that takes them all, and what to do with fewer.

    `hosts` are their names in that plan, none where it has none. `replan` gives a plan for a number of GPUs
    without the hosts it is told, None where there is none.
    """

    plan: Plan
    count: int
    hosts: tuple[str, ...]
    min_gpus: int | None
    replan: Replan

    @property
    def per_node(self) -> int:
        """GPUs of each node."""
        return self.plan.layout.num_gpus // self.count

    def named(self, nodes: Sequence[int]) -> str:
        """Nodes as a user knows them."""
        return ", ".join(self.hosts[node] if self.hosts else f"node {node}" for node in nodes)


def chosen(crew: Crew, free: Sequence[int]) -> tuple[tuple[int, ...], Plan]:
    """Choose the nodes that go on, in the order of their ranks, and their plan: as many as can be used."""
    if len(free) == crew.count:
        return tuple(free), crew.plan
    lost = tuple(host for node, host in enumerate(crew.hosts) if node not in free)
    for count in range(len(free), 0, -1):
        if crew.min_gpus is None or count * crew.per_node < crew.min_gpus:
            break
        smaller = crew.replan(count * crew.per_node, lost)
        nodes = () if smaller is None else _seated(crew, free, smaller)
        if smaller is not None and nodes:
            return nodes, smaller
    least = "no --min-gpus" if crew.min_gpus is None else f"--min-gpus {crew.min_gpus}"
    raise InputError(
        what="too few nodes are left for the run to go on",
        cause=f"{len(free)} of {crew.count} nodes with {len(free) * crew.per_node} of "
        f"{crew.plan.layout.num_gpus} GPUs are left, and {least} was given",
        fix="start again, which resumes from the last checkpoint: with all nodes, or with a --min-gpus "
        "that allows what is left",
    )


def _seated(crew: Crew, free: Sequence[int], plan: Plan) -> tuple[int, ...]:
    """Nodes of a plan in the order of its ranks; none where it cannot be started node by node."""
    num_gpus = plan.layout.num_gpus
    if num_gpus > crew.per_node and num_gpus % crew.per_node:
        return ()
    if not crew.hosts:
        return tuple(free[: max(1, num_gpus // crew.per_node)])
    names = hosts_by_rank(plan.mesh, build(plan.request.cluster).spec, min(num_gpus, crew.per_node))
    nodes = tuple(crew.hosts.index(name) for name in names if name in crew.hosts)
    return nodes if nodes and len(nodes) == len(names) and set(nodes) <= set(free) else ()


@contextlib.contextmanager
def telling(folder: Path, node: int) -> Iterator[None]:
    """Let the other nodes know why this one does not come, so that they do not wait for it."""
    word = folder / f"{_REFUSED}{node}"
    word.unlink(missing_ok=True)
    try:
        yield
    except InputError as error:
        write_atomically(word, json.dumps((error.what, error.cause, error.fix)))
        raise


def earlier_words(folder: Path, node: int) -> frozenset[Word]:
    """What nodes said of an earlier start, where launchers give all starts one name.

    A word that is younger than `EARLIER_S` by the folder's own clock counts: it may be of this start, from a
    node that was quicker.
    """
    mark = folder / f"{_CAME}{node}"
    mark.touch()
    before_ns = mark.stat().st_mtime_ns - round(EARLIER_S * 1e9)
    return frozenset(word for word in _words(folder).values() if word[1] < before_ns)


def _words(folder: Path) -> dict[Path, Word]:
    """The words of nodes that do not come, as they lie there."""
    words = {}
    for path in folder.glob(f"{_REFUSED}[0-9]*"):
        with contextlib.suppress(FileNotFoundError):  # its node has just taken it back
            about = path.stat()
            words[path] = (path.name, about.st_mtime_ns, about.st_ino)
    return words


def require_none_refused(folder: Path, earlier: AbstractSet[Word] = frozenset()) -> None:
    """End the start of a run of which a node will not come, by that node's words if not `earlier`."""
    for word, seen in _words(folder).items():
        if seen in earlier:
            continue
        what, cause, fix = json.loads(read_text(str(word)))
        node = word.name.removeprefix(_REFUSED)
        raise InputError(what=f"node {node} does not start: {what}", cause=cause, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn as one of its nodes sees it."""

    number: int
    members: Members
    nodes: Nodes
    plan: Plan
    place: Path
    table: MembershipTable
    joining: Joining | None = None

    def over(self) -> bool:
        """Whether a member is gone or a spare is taken in, here or by the word of another."""
        mark = self.place / OVER
        if self.table.gone(self.members) or self.table.is_cut:
            mark.touch()
        elif self.joining is not None and not mark.exists() and self.joining.due():
            (self.place / JOIN).touch()
            mark.touch()
        return mark.exists()

    def in_order(self) -> bool:
        """Whether the turn ends with nobody gone, so that its ranks have time for a checkpoint."""
        return (self.place / JOIN).exists() and not self.table.gone(self.members)

    def may_restart(self) -> bool:
        """Wait until every other member has beaten again: no restart is used up on one that is gone."""
        before = self.table.changes(self.members)
        while not self.over():
            now = self.table.changes(self.members)
            if all(now[node] > count + 1 for node, count in before.items()):  # one may be from before
                return True
            time.sleep(LOOK_S)
        return False


@dataclass(slots=True, kw_only=True)
class Turns:
    """The turns of a run on several nodes; `write` writes the run for its user before a turn begins.

    `begin` is told when nothing of an earlier start goes on: it marks the run as running. `check` ends a node
    that is none of the run's any more. `earlier` are words of nodes about an earlier start, `hint` says what
    may be wrong where nodes do not come.
    """

    table: MembershipTable
    crew: Crew
    nodes: Nodes
    settings: RunSettings
    say: Callable[[str], None]
    write: Callable[[Plan], object]
    begin: Callable[[], None]
    check: Callable[[], None] = lambda: None
    earlier: AbstractSet[Word] = frozenset()
    hint: str = ""

    def following(self, after: int, failure: str) -> Turn | None:
        """Wait for the next turn that has ranks here; None when the run has ended meanwhile.

        Args:
            after: the last turn that had ranks here, -1 for none.
            failure: how its ranks ended.
        """
        known, under_way, since_s, value = after, after >= 0, time.monotonic(), False
        while True:
            self.check()
            number = self.table.latest()
            members = self.table.members(number) if number >= 0 else Members()
            if number > after and self.table.mine.token in members.tokens:
                return self.taken(number, members)
            under_way = under_way or (
                not (members.error or self.table.undecided())
                and len(self.table.gone(members)) < len(members.nodes)
            )
            if number > known and under_way:
                known = number
                self.say(f"{self.crew.named((self.table.node,))} has no ranks now: it waits as a spare")
            status = read_status(Path(self.settings.folder))
            if under_way and status is not None and status.state != "running":
                return None
            waited_s = time.monotonic() - since_s
            if (
                not under_way and waited_s >= SILENT_S
            ):  # nodes that were mended have taken theirs back by then
                require_none_refused(self.table.folder, self.earlier)
                if not value and not self._complete(waited_s):
                    value = True
                    self.say(self.waiting())
            if under_way or self._complete(waited_s):
                self.settle(number, members, failure, under_way=under_way)
            time.sleep(LOOK_S)

    def waiting(self) -> str:
        """For whom this node waits, and how long."""
        living = self.table.living()
        missing = [node for node in range(self.nodes.come or self.crew.count) if node not in living]
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        return f"waiting for {self.crew.named(missing[:MOST_NAMED])}{more}, up to {MEETING_S} s{self.hint}"

    def taken(self, number: int, members: Members) -> Turn:
        """Take this node's place in a turn."""
        if members.error:
            raise InputError(*members.error)
        if members.why:
            self.say(members.why)
        rank, place = members.tokens.index(self.table.mine.token), self.table.place(number)
        plan = from_json(read_text(place / PLAN_FILE), str(place / PLAN_FILE))
        nodes = replace(self.nodes, count=len(members.nodes), rank=rank)
        return Turn(
            number=number,
            members=members,
            nodes=nodes,
            plan=plan,
            place=place,
            table=self.table,
            joining=self._joining(members) if rank == 0 else None,
        )

    def _joining(self, members: Members) -> Joining:
        """What the first member of a turn watches spares by."""

        def helps(nodes: tuple[int, ...]) -> bool:
            try:
                return len(chosen(self.crew, nodes)[0]) > len(members.nodes)
            except InputError:
                return False

        checkpoints = Path(self.settings.folder) / CHECKPOINTS
        return Joining(table=self.table, members=members, checkpoints=checkpoints, helps=helps)

    def _complete(self, waited_s: float) -> bool:
        """Whether every node that was started has come to the start of a run, or has had the time to."""
        return waited_s >= MEETING_S or len(self.table.living()) >= (self.nodes.come or self.crew.count)

    def settle(self, number: int, members: Members, failure: str, *, under_way: bool) -> None:
        """Decide on the next turn if that falls to this node and no rank of the last runs any more.

        What is not `under_way` begins anew, whatever nodes an earlier start had.
        """
        table = replace(self.table)  # as it was heard in one look
        if table.undecided():
            return
        living, gone = table.living(), table.gone(members)
        left = () if members.error else tuple(node for node in members.nodes if node not in gone)
        over = table.place(number) / OVER
        if any(node not in living or living[node].ended < number for node in left):
            if gone:
                over.touch()
            return
        if table.node != min(living):
            return
        lost = tuple(node for node in left if living[node].lost)
        free = sorted(set(living) - set(lost))
        crashed = bool(left) and not (gone or lost or over.exists())
        try:
            nodes, plan = chosen(self.crew, free) if not crashed else _failed(failure)
        except InputError as error:
            value = _members(living, tuple(living), error=(error.what, error.cause, error.fix))
            table.claim(number + 1, value, {})
            return
        if table.latest() == number:
            if not left:
                self.begin()
            self.write(plan)
            joins = [node for node in nodes if node not in members.nodes] if under_way and not gone else ()
            why = self._why(plan, nodes, gone if under_way else (), lost, joins)
            table.claim(number + 1, _members(living, nodes, why=why), self._files(number + 1, plan))

    def _why(
        self,
        plan: Plan,
        nodes: Sequence[int],
        gone: Sequence[int],
        lost: Sequence[int],
        joins: Sequence[int],
    ) -> str:
        """Say why a turn is not the first, or not on all nodes."""
        crew, parts = self.crew, list[str]()
        if gone:
            parts.append(f"{crew.named(gone)} silent for {SILENT_S:g} s")
        if lost:
            parts.append(f"ranks of {crew.named(lost)} lost")
        if joins:
            parts.append(f"{crew.named(joins)} joined")
        if not parts and len(nodes) == crew.count:
            return ""
        return (
            f"{', '.join(parts) or 'not all nodes came'}: continuing on {len(nodes)} of {crew.count} nodes, "
            f"{plan.layout.num_gpus} of {crew.plan.layout.num_gpus} GPUs"
        )

    def _files(self, number: int, plan: Plan) -> dict[str, str]:
        """What the ranks of a turn read: a decision that came too late cannot change it."""
        settings = replace(self.settings, plan_file=str(self.table.place(number) / PLAN_FILE))
        return {RUN_FILE: settings_json(settings), PLAN_FILE: to_json(plan)}


def _members(
    living: Mapping[int, Beat], nodes: Sequence[int], *, why: str = "", error: tuple[str, ...] = ()
) -> Members:
    """Members by number and process."""
    tokens = tuple(living[node].token for node in nodes)
    return Members(nodes=tuple(nodes), tokens=tokens, why=why, error=error)


def _failed(failure: str) -> NoReturn:
    """End a run whose ranks fail although every node is there."""
    raise InputError(
        what="training failed and could not be restarted",
        cause=failure,
        fix="read the ranks' messages above; start again to resume, or allow fewer with --min-gpus",
    )
