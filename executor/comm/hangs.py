"""Where each rank stands when one has waited too long: which collective of which axis, and who has not come.

torch's flight recorder keeps the last collectives of gloo and NCCL ranks by group and number. A rank whose
collective timed out asks the others in a folder that all see; a thread of each answers, also while its rank
waits. It looks there only once its rank has stood still for long, as all have when one of them is asked:
while a run goes on, nobody does. Who gives no answer does not run. Messages between pipeline stages are not
recorded on gloo: of one that timed out the axis is known alone.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from executor.comm.collectives import MESSAGE
from executor.torch_internals.groups import flight_record, named_groups
from topology.base.atomic import write_atomically
from topology.base.decode import read_json, structure, unstructure
from topology.base.errors import InputError

TIMED_OUT = ("Timed out waiting", "Application timeout", "Connect timeout")  # gloo's words
ANSWER_S = 3.0  # of the five seconds in which the launcher ends ranks whose peer has failed
_LOOK_S, _LATEST_LOOK_S = 0.5, 2.0
LOOKS_PER_S = 250.0  # of all ranks together, in one folder of a shared file system
_ASKED, _STAND = "asked", "stand-"
_WORLD = "default_pg"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """One group of a rank: its axis and ranks, and the last collective that this rank began in it, from 1."""

    axis: str
    ranks: tuple[int, ...]
    number: int = 0
    operation: str = ""

    @property
    def words(self) -> str:
        """The collective as a user reads it."""
        return f"{self.operation} {self.number} of {self.axis}" if self.number else f"none of {self.axis}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A rank's groups by name, and the one in which it began its last collective; empty before the first."""

    rank: int
    last: str
    places: Mapping[str, GroupState]


def stand_of(rank: int) -> Stand:
    """Where this rank stands."""
    places = {
        name: GroupState(
            axis="all ranks" if axis == _WORLD else axis.removeprefix("mesh_"), ranks=tuple(ranks)
        )
        for name, (axis, ranks) in named_groups().items()
    }
    last = ""
    for name, operation, number in flight_record():
        if name in places:
            before, last = places[name], name
            places[name] = GroupState(
                axis=before.axis, ranks=before.ranks, number=number, operation=operation
            )
    return Stand(rank=rank, last=last, places=places)


def hang_words(mine: Stand, answers: Mapping[int, Stand], *, message: bool = False) -> str:
    """What a rank that timed out says: where it waits, and for whom.

    Args:
        mine: Where it stands.
        answers: Where others stand, by rank; those that gave no answer are not in it.
        message: Whether it waited for a message of another pipeline stage.
    """
    where = _where(mine, message=message)
    here = mine.places.get(where)
    if here is None:
        return f"rank {mine.rank} waited too long, before any collective was recorded"
    missing = []
    for rank in here.ranks:
        other = answers.get(rank)
        if rank == mine.rank:
            continue
        if other is None:
            missing.append(f"rank {rank} gives no answer")
        elif message or where not in other.places or other.places[where].number < here.number:
            missing.append(f"rank {rank} has come to {_last(other)}")
    waits = f"a message of {here.axis}" if message else here.words
    others = ", ".join(missing) or "all others have come"
    return f"rank {mine.rank} waited too long in {waits}: {others}"


def _where(stand: Stand, *, message: bool) -> str:
    """The group in which a rank waits, by name."""
    return next((n for n, p in stand.places.items() if p.axis == "pp"), "") if message else stand.last


def _last(stand: Stand) -> str:
    """The last collective of a rank."""
    return stand.places[stand.last].words if stand.last else "no collective"


class Answerer:
    """Answers for a rank that has stood still for `quiet_s` or more: `moved` says that it has not."""

    def __init__(self, folder: Path, rank: int, *, ranks: int = 1, quiet_s: float = 0.0) -> None:
        self.folder, self.rank, self.quiet_s = folder, rank, quiet_s
        self.look_s = min(max(_LOOK_S, ranks / LOOKS_PER_S), _LATEST_LOOK_S)
        self.still_since_s = time.monotonic()

    def moved(self) -> None:
        """Say that all ranks have done something together, such as a step."""
        self.still_since_s = time.monotonic()

    def run(self) -> None:
        """Wait to be asked; a folder that is gone asks nothing any more, one that fails may answer later."""
        with contextlib.suppress(FileNotFoundError):
            while True:
                left_s = self.still_since_s + self.quiet_s - time.monotonic()
                if left_s > 0:
                    time.sleep(left_s)
                elif self._is_asked():
                    _say(self.folder, self.rank)
                    return
                else:
                    time.sleep(self.look_s)

    def _is_asked(self) -> bool:
        """Look whether anybody asks; a shared file system that fails for once says nothing."""
        try:
            return _is_asked(self.folder)
        except FileNotFoundError:
            raise
        except OSError:
            return False


def answer_when_asked(folder: Path, rank: int, *, ranks: int = 1, quiet_s: float = 0.0) -> Answerer:
    """Begin to answer for this rank of `ranks`, once it has stood still for so long."""
    folder.mkdir(exist_ok=True, mode=0o700)
    answerer = Answerer(folder, rank, ranks=ranks, quiet_s=quiet_s)
    threading.Thread(target=answerer.run, daemon=True).start()
    return answerer


def _is_asked(folder: Path) -> bool:
    """Look whether anybody asks: by a listing, as a network's files are else remembered."""
    return folder / _ASKED in folder.iterdir()


def _say(folder: Path, rank: int) -> Stand:
    """Write where this rank stands."""
    stand = stand_of(rank)
    with contextlib.suppress(OSError):
        write_atomically(folder / f"{_STAND}{rank}", json.dumps(unstructure(stand)))
    return stand


def hang_line(error: Exception, folder: Path, rank: int) -> str:
    """One line on what a rank waited for whose error is a timeout; empty of another error."""
    if not any(words in str(error) for words in TIMED_OUT):
        return ""
    with contextlib.suppress(OSError):
        (folder / _ASKED).touch()
    mine, limit_s = _say(folder, rank), time.monotonic() + ANSWER_S
    message = MESSAGE in getattr(error, "__notes__", ())
    here = mine.places.get(_where(mine, message=message))
    wanted = set(here.ranks if here is not None else ()) - {rank}
    answers: dict[int, Stand] = {}
    while time.monotonic() < limit_s and wanted - answers.keys():
        with contextlib.suppress(OSError):
            there = {path.name for path in folder.iterdir()}  # one look for all
            for other in {other for other in wanted - answers.keys() if f"{_STAND}{other}" in there}:
                path = folder / f"{_STAND}{other}"
                with contextlib.suppress(OSError, ValueError, InputError):
                    answers[other] = structure(read_json(path), Stand, str(path))
        time.sleep(_LOOK_S / 5)
    return hang_words(mine, answers, message=message)
