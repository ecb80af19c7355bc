"""Many inputs through one surface: in forked workers, so that what hangs or dies costs one input.

A worker takes the next input, says its number in shared memory, consumes it and writes down what broke. The
parent reads the clock of each and ends one whose input takes too long in code that no signal can interrupt.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import mmap
import os
import re
import resource
import shutil
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.property.fuzz.surface import Box, Surface
from tests.property.fuzz.watch import MOST_SECONDS, Guard, TooSlowError, faults_of_answer
from topology.base.errors import InputError

PATIENCE_S = 4 * MOST_SECONDS
"""Clock time after which a worker that hardly computes is stuck: it waits for something."""
_TICKS = os.sysconf("SC_CLK_TCK")
_CELL = struct.Struct("qq")
LARGEST_KEPT = 20_000
_MEMORY = Path("/dev/shm")
"""Where inputs are written if it is there: some disks take milliseconds to overwrite a file."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One input that broke the invariant."""

    surface: str
    index: int
    kind: str
    what: str
    place: str
    story: str
    text: str


@dataclass(slots=True)
class Tally:
    """What a campaign saw of one surface."""

    surface: str
    inputs: int = 0
    answered: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Count what another part of a campaign saw."""
        self.inputs, self.answered = self.inputs + other.inputs, self.answered + other.answered
        self.seconds, self.faults = self.seconds + other.seconds, [*self.faults, *other.faults]
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)

    def smallest(self) -> dict[tuple[str, str], tuple[int, Fault]]:
        """Of every kind and place of fault how often, and its shortest input."""
        counts = Counter((fault.kind, fault.place) for fault in self.faults)
        found: dict[tuple[str, str], Fault] = {}
        for fault in self.faults:
            key = (fault.kind, fault.place)
            best = found.get(key)
            if best is None or len(fault.story) + len(fault.text) < len(best.story) + len(best.text):
                found[key] = fault
        return {key: (counts[key], fault) for key, fault in found.items()}


def run(
    surface: Surface,
    indices: range,
    *,
    seed: int = 1,
    jobs: int = 1,
    until: float = float("inf"),
    limit_s: float = MOST_SECONDS,
) -> Tally:
    """Put these inputs through a surface; `until` is a moment of `time.monotonic` at which to stop."""
    _import_all()
    surface.ready()  # once, before workers are forked
    tally, started = Tally(surface.name), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="meshplan-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        parts = [range(indices.start + job, indices.stop, jobs) for job in range(jobs)]
        workers = [
            _Worker(surface, part, seed, folder / str(job), until, limit_s) for job, part in enumerate(parts)
        ]
        while any(worker.watch() for worker in workers):
            time.sleep(0.02)
        for worker in workers:
            worker.report(tally)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tally.seconds = time.monotonic() - started
    return tally


@functools.cache
def _import_all() -> None:
    """Import what commands import on demand, so that no worker need do it again; torch and Streamlit stay out, and what engines' interpreters run."""
    for package in ("app", "planner", "costmodel", "topology"):
        folder = Path(__file__).resolve().parents[3]
        for file in sorted((folder / package).rglob("*.py")):
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
            if not name.startswith(("app.pages", "app.entry", "app.dashboard", "planner.parsers")):
                importlib.import_module(name.removesuffix(".__init__"))
    for name in ("cattrs.gen", "networkx", "ortools.sat.python.cp_model", "rich.table", "typer"):
        importlib.import_module(name)


class _Worker:
    """One process, forked anew after an input that it did not survive."""

    def __init__(
        self, surface: Surface, part: range, seed: int, folder: Path, until: float, limit_s: float
    ) -> None:
        self.surface, self.part, self.seed, self.folder = surface, part, seed, folder
        self.until, self.limit_s = until, limit_s
        (folder / "box" / "canary").mkdir(parents=True)
        self.lines = folder / "lines"
        self.cell = mmap.mmap(-1, _CELL.size)  # how many inputs were begun, and answered without an error
        self.begun_at, self.begun, self.computed = time.monotonic(), -1, 0.0
        self.lost: list[Fault] = []
        self.pid = 0
        self._fork(0)

    def _fork(self, done: int) -> None:
        self.cell[:] = _CELL.pack(done, _CELL.unpack(self.cell[:])[1])
        self.begun_at, self.begun, self.computed = time.monotonic(), -1, 0.0
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # of forking beside threads, of which none is ours
            self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                _work(self, done)
                status = 0
            except BaseException:  # noqa: BLE001 - a child must not return into its parent's code
                traceback.print_exc()
            os._exit(status)

    def watch(self) -> bool:
        """Whether there is still work; ends a stuck worker and goes on behind its input."""
        if not self.pid:
            return False
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        begun = _CELL.unpack(self.cell[:])[0]
        if not pid:
            if begun != self.begun:
                self.begun, self.begun_at, self.computed = begun, time.monotonic(), self._computed()
            elif self._stuck():
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self._lose(begun, "hang", f"more than {self.limit_s:g} s in code that no signal interrupts")
            return True
        if status:
            self._lose(begun, "death", f"the process ended with status {status}")
            return True
        self.pid = 0
        return False

    def _stuck(self) -> bool:
        waited, computed = time.monotonic() - self.begun_at, self._computed() - self.computed
        return computed > 1.5 * self.limit_s or waited > PATIENCE_S + 30 * computed

    def _computed(self) -> float:
        """Seconds the process has computed, its threads included."""
        try:
            words = (
                Path(f"/proc/{self.pid}/stat")
                .read_text(encoding="ascii", errors="replace")
                .rpartition(")")[2]
                .split()
            )
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / _TICKS

    def _lose(self, begun: int, kind: str, what: str) -> None:
        """Note the input that cost the process, and start another behind it."""
        index = self.part[max(begun - 1, 0)]
        text, story = self.surface.input_of(self.seed, index)
        self.lost.append(Fault(self.surface.name, index, kind, what, "", story, text[:LARGEST_KEPT]))
        self._fork(begun)

    def report(self, tally: Tally) -> None:
        """Add what this worker saw."""
        begun, answered = _CELL.unpack(self.cell[:])
        tally.inputs += begun
        tally.answered += answered
        tally.faults += self.lost
        for line in self.lines.read_text(encoding="utf-8").splitlines() if self.lines.exists() else ():
            found: dict[str, Any] = json.loads(line)
            if "peak_bytes" in found:
                tally.peak_bytes = max(tally.peak_bytes, found["peak_bytes"])
            else:
                tally.faults.append(Fault(**found))


def _work(worker: _Worker, done: int) -> None:
    """Consume inputs in a forked process until none is left."""
    box = Box(worker.folder / "box")
    _settle(box.folder)
    gc.freeze()  # what was imported stays: no collection need look at it
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with worker.lines.open("a", encoding="utf-8") as lines:
        guard = Guard(box.folder, worker.limit_s)
        for count, index in enumerate(worker.part[done:], start=done + 1):
            if time.monotonic() > worker.until:
                break
            worker.cell[:] = _CELL.pack(count, _CELL.unpack(worker.cell[:])[1])
            text, story = worker.surface.input_of(worker.seed, index)
            found = _consume(worker.surface, text, box, guard)
            if found is None:
                worker.cell[:] = _CELL.pack(count, _CELL.unpack(worker.cell[:])[1] + 1)
            for kind, what, place in found or ():
                fault = Fault(worker.surface.name, index, kind, what, place, story, text[:LARGEST_KEPT])
                lines.write(json.dumps({name: getattr(fault, name) for name in Fault.__slots__}) + "\n")
                lines.flush()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        lines.write(json.dumps({"peak_bytes": grown}) + "\n")


def _settle(folder: Path) -> None:
    """Give the process a home of its own, no network and no word on the screen."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME", "TMPDIR"):
        place = folder / {"HOME": "home", "XDG_DATA_HOME": "data", "TMPDIR": "tmp"}.get(name, "cache")
        place.mkdir(exist_ok=True)
        os.environ[name] = str(place)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("MESHPLAN_DATA", None)
    (folder / "canary" / "secret.toml").write_text("secret = not toml", encoding="utf-8")
    tempfile.tempdir = None
    os.chdir(folder)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    warnings.simplefilter("ignore")
    for number in (signal.SIGALRM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def _consume(surface: Surface, text: str, box: Box, guard: Guard) -> Sequence[tuple[str, str, str]] | None:
    """What broke on one input; empty when it was refused properly, None when it was answered."""
    answer: object = None
    found: list[tuple[str, str, str]] = []
    refused = False
    guard.start(surface.asked(text.replace("CANARY", str(box.folder / "canary"))))
    try:
        answer = surface.consume(text, box)
    except InputError:
        refused = True
    except TooSlowError as error:
        found.append(("slow", "too many seconds of computing", _place(error)))
    except MemoryError as error:
        found.append(("memory", "more than 1 GiB", _place(error)))
    except AssertionError as error:  # a command ended with exit code 3, and named the place
        places = re.findall(r" at (\S+:\d+)", str(error))
        found.append(("defect", str(error)[:300], places[0] if places else str(error)[:40]))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever escapes is what is looked for
        found.append((type(error).__name__, str(error)[:300], _place(error)))
    finally:
        touched = guard.stop()
    found += [("touched", what, what.partition(" ")[0]) for what in dict.fromkeys(touched)]
    found += [("answer", what, what.partition(" ")[0]) for what in faults_of_answer(answer)]
    return found if found or refused else None


def _place(error: BaseException) -> str:
    """Last place of ours in a traceback, file and line."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/tests/property/fuzz/" not in frame.filename
    ]
    ours = [
        frame
        for frame in frames
        if "site-packages" not in frame.filename and "/lib/python" not in frame.filename
    ]
    return " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed((ours or frames)[-2:])
    )
