"""Which nodes of a run live and which of them are in its next turn, told by files in the run's folder alone.

Every launcher beats: it writes a new count into a file of its own each second, and the others watch that it
changes, each by its own clock. What the nodes of a turn start is a folder that appears whole under the turn's
number: of several that claim one turn exactly one succeeds. No torch, no socket.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from topology.base.atomic import write_atomically
from topology.base.decode import read_json, structure, unstructure
from topology.base.errors import InputError

BEAT_S = 1.0
SILENT_S = 10.0  # a node that has not beaten for so long is gone
_COUNTED_S = 3 * BEAT_S  # of one wait: a watcher that was stopped itself has not watched the others
_BEAT, _TURN, _MEMBERS = "beat-", "turn-", "members.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a launcher says of itself: `token` names this process, `ended` the last turn whose ranks are gone.

    `lost` of them were killed by others until no restart was left.
    """

    token: str
    count: int = 0
    ended: int = -1
    lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The nodes of one turn in the order of their ranks, by number and process; or why there is none.

    `why` is what every node tells its user; `error` are the three lines when the run cannot go on.
    """

    nodes: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    why: str = ""
    error: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A node as one other has watched it: silent for so many seconds since it was last seen to change."""

    beat: Beat
    silent_s: float = 0.0
    changes: int = 0

    @property
    def lives(self) -> bool:
        """Whether it was seen to beat, and not too long ago."""
        return self.changes > 0 and self.silent_s < SILENT_S

    @property
    def unknown(self) -> bool:
        """Whether its file was found and nobody can say yet whether it is an old one."""
        return self.changes == 0 and self.silent_s < SILENT_S


@dataclass(slots=True)
class MembershipTable:
    """The nodes of a run as one of them, `node`, hears them; `heard` is replaced whole after each look.

    A node whose own network is cut (`linked` is false) may still reach the files: it beats no more, so that
    the others go on without it, and decides nothing.
    """

    folder: Path
    node: int
    mine: Beat = field(default_factory=lambda: Beat(token=secrets.token_hex(8)))
    heard: Mapping[int, Heard] = field(default_factory=dict)
    looked_s: float | None = None
    linked: Callable[[], bool] = lambda: True
    cut_s: float = 0.0
    writing: threading.Lock = field(default_factory=threading.Lock)

    def beat(self, *, ended: int | None = None, lost: int = 0) -> None:
        """Show that this node lives, and of which turn its ranks are gone where that has changed."""
        with self.writing:
            mine = self.mine if ended is None else replace(self.mine, ended=ended, lost=lost)
            self.mine = replace(mine, count=mine.count + 1)
            if self.cut_s:
                return
            write_atomically(self.folder / f"{_BEAT}{self.node}", json.dumps(unstructure(self.mine)))

    def look(self, now_s: float) -> None:
        """Hear the others; `now_s` is this machine's monotonic clock, in seconds."""
        waited_s = 0.0 if self.looked_s is None else min(now_s - self.looked_s, _COUNTED_S)
        heard = {
            node: replace(heard, silent_s=heard.silent_s + waited_s) for node, heard in self.heard.items()
        }
        for node, beat in _beats(self.folder):
            before = heard.get(node)
            if before is None or before.beat != beat:
                heard[node] = Heard(beat=beat, changes=0 if before is None else before.changes + 1)
        self.cut_s = 0.0 if self.linked() else self.cut_s + max(waited_s, BEAT_S / 2)
        self.heard = heard | {self.node: Heard(beat=self.mine, changes=1)}
        self.looked_s = now_s

    def living(self) -> dict[int, Beat]:
        """Nodes that beat, by number."""
        others = {node: heard.beat for node, heard in self.heard.items() if heard.lives}
        return others | {self.node: self.mine}

    @property
    def is_cut(self) -> bool:
        """Whether this node's network has been cut for so long that the others go on without it."""
        return self.cut_s >= SILENT_S

    def undecided(self) -> bool:
        """Whether this node cannot tell yet who lives."""
        return not self.heard or self.cut_s > 0 or any(heard.unknown for heard in self.heard.values())

    def gone(self, members: Members) -> tuple[int, ...]:
        """Members that are silent, or whose process is another by now."""
        return tuple(
            node
            for node, token in zip(members.nodes, members.tokens, strict=True)
            if (heard := self.heard.get(node)) is not None
            and (heard.beat.token != token or heard.silent_s >= SILENT_S)
        )

    def changes(self, members: Members) -> dict[int, int]:
        """How often each other member was seen to beat."""
        others = {node: self.heard.get(node) for node in members.nodes if node != self.node}
        return {node: heard.changes for node, heard in others.items() if heard is not None}

    # ── turns ─────────────────────────────────────────────────────────────────────────────────────────────

    def place(self, turn: int) -> Path:
        """Folder of a turn: what its ranks are started from and where they meet."""
        return self.folder / f"{_TURN}{turn}"

    def latest(self) -> int:
        """Number of the last turn that was agreed on, -1 before the first."""
        names = (path.name.removeprefix(_TURN) for path in self.folder.iterdir())
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def members(self, turn: int) -> Members:
        """Nodes of a turn that was agreed on."""
        path = self.place(turn) / _MEMBERS
        return structure(read_json(path), Members, str(path))

    def claim(self, turn: int, members: Members, files: Mapping[str, str]) -> bool:
        """Publish the members of a turn with what they start; whether nobody else had."""
        return publish_folder(self.place(turn), {**files, _MEMBERS: json.dumps(unstructure(members))})


def publish_folder(place: Path, files: Mapping[str, str]) -> bool:
    """Make a folder appear whole, with these files by name; whether nobody else had made it."""
    draft = place.with_name(f".draft-{secrets.token_hex(8)}")
    draft.mkdir(mode=0o700)
    try:
        for name, text in files.items():
            write_atomically(draft / name, text)
        draft.rename(place)  # fails on a folder that holds something
    except OSError:
        if not place.exists():
            raise
        return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _beats(folder: Path) -> Iterator[tuple[int, Beat]]:
    """Every node's last word; a file that cannot be read now says nothing."""
    for path in folder.glob(f"{_BEAT}[0-9]*"):
        with contextlib.suppress(OSError, ValueError, InputError):
            yield int(path.name.removeprefix(_BEAT)), structure(read_json(path), Beat, str(path))


@contextlib.contextmanager
def beating(folder: Path, node: int, linked: Callable[[], bool]) -> Iterator[MembershipTable]:
    """Beat and listen in a thread of its own, as planning anew may take longer than others wait."""
    table, done = MembershipTable(folder=folder, node=node, linked=linked), threading.Event()
    thread = threading.Thread(target=_beat_until, args=(table, done), daemon=True)
    thread.start()
    try:
        yield table
    finally:
        done.set()
        thread.join(BEAT_S)


def _beat_until(table: MembershipTable, done: threading.Event) -> None:
    """Beat each second; a file system that fails for a while makes this node silent, not dead."""
    while not done.is_set():
        with contextlib.suppress(OSError):
            table.beat()
            table.look(time.monotonic())
        done.wait(BEAT_S)
