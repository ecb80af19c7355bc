"""Where each rank stands when one has waited too long: which collective of which axis, and who has not come.

torch's flight recorder keeps the last collectives of gloo and NCCL ranks by group and number. A rank whose
collective timed out asks the others in a folder that all see; a thread of each answers, also while its rank
waits. Who gives no answer does not run. Messages between pipeline stages are not recorded on gloo: of one
that timed out the axis is known alone.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from executor import torch_internals
from executor.comm.collectives import MESSAGE
from topology.base.atomic import write_atomically
from topology.base.decode import read_json, structure, unstructure
from topology.base.errors import InputError

TIMED_OUT = ("Timed out waiting", "Application timeout")  # gloo's words
ANSWER_S = 3.0  # of the five seconds in which the launcher ends ranks whose peer has failed
_LOOK_S = 0.5
_ASKED, _STAND = "asked", "stand-"
_WORLD = "default_pg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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
    places: Mapping[str, Place]


def stand_of(rank: int) -> Stand:
    """Where this rank stands."""
    places = {
        name: Place(axis="all ranks" if axis == _WORLD else axis.removeprefix("mesh_"), ranks=tuple(ranks))
        for name, (axis, ranks) in torch_internals.named_groups().items()
    }
    last = ""
    for name, operation, number in torch_internals.flight_record():
        if name in places:
            before, last = places[name], name
            places[name] = Place(axis=before.axis, ranks=before.ranks, number=number, operation=operation)
    return Stand(rank=rank, last=last, places=places)


def told(mine: Stand, answers: Mapping[int, Stand], *, message: bool = False) -> str:
    """What a rank that timed out says: where it waits, and for whom.

    Args:
        mine: Where it stands.
        answers: Where others stand, by rank; those that gave no answer are not in it.
        message: Whether it waited for a message of another pipeline stage.
    """
    where = next((n for n, p in mine.places.items() if p.axis == "pp"), "") if message else mine.last
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


def _last(stand: Stand) -> str:
    """The last collective of a rank."""
    return stand.places[stand.last].words if stand.last else "no collective"


def answer_when_asked(folder: Path, rank: int) -> None:
    """Begin to answer for this rank."""
    folder.mkdir(exist_ok=True, mode=0o700)
    threading.Thread(target=_answer, args=(folder, rank), daemon=True).start()


def _answer(folder: Path, rank: int) -> None:
    """Wait to be asked; a folder that is gone asks nothing any more."""
    with contextlib.suppress(OSError):
        while folder / _ASKED not in folder.iterdir():  # a listing, as a network's files are else remembered
            time.sleep(_LOOK_S)
        _say(folder, rank)


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
    wanted = {other for place in mine.places.values() for other in place.ranks} - {rank}
    answers: dict[int, Stand] = {}
    while time.monotonic() < limit_s and wanted - answers.keys():
        for other in wanted - answers.keys():
            path = folder / f"{_STAND}{other}"
            with contextlib.suppress(OSError, ValueError, InputError):
                if path.exists():
                    answers[other] = structure(read_json(path), Stand, str(path))
        time.sleep(_LOOK_S / 5)
    return told(mine, answers, message=MESSAGE in getattr(error, "__notes__", ()))
