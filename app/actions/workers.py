"""Questions of a server's visitors, each answered in one of a few processes of their own.

A question that takes too long or too much memory ends the process it is answered in, and nobody else's; the
next question gets a new one. Visitors take turns: who has fewest questions under way is next, then whose last
turn is longest ago. A process is started when it is needed, keeps what it loads, and ends with the server.
"""

from __future__ import annotations

import atexit
import os
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import count
from multiprocessing.connection import Connection, Pipe
from pickle import PicklingError
from threading import Condition, Thread
from typing import Any, Final, ParamSpec, TypeVar

from app.errors import defect
from topology.base.errors import InputError
from topology.base.units import GIB, format_bytes

MOST_WORKERS: Final = 8
MOST_ANSWER_S: Final = 120.0
MOST_MEMORY_BYTES: Final = 2 * GIB
ASKED_EVERY_S: Final = 1.0
"""After which it is asked whether an answer is still wanted."""
MOST_WAITING: Final = 64
"""Questions of one visitor that wait; those of pages that were left wait too."""
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Workers:
    """At most `most` processes; started when they are needed, kept for the next question."""

    def __init__(
        self, most: int, *, answer_s: float = MOST_ANSWER_S, memory_bytes: int = MOST_MEMORY_BYTES
    ) -> None:
        """Start nothing yet."""
        self._answer_s, self._memory_bytes = answer_s, memory_bytes
        self._free: list[_Worker | None] = [None] * most
        self._changed = Condition()
        self._waiting: dict[int, str] = {}
        self._under_way: Counter[str] = Counter()
        self._turns: dict[str, int] = {}
        self._tickets = count(1)

    def call(
        self, visitor: str, function: Callable[Given, Answer], *args: Given.args, **kwargs: Given.kwargs
    ) -> Answer:
        """What a function of a module answers, computed elsewhere; its InputErrors are raised here.

        Args:
            visitor: who asks; visitors take turns.
            function: importable by its name, as are its arguments' types.
            args: pickled, as the answer is.
            kwargs: likewise.
        """
        return self.call_while(lambda: None, visitor, function, *args, **kwargs)

    def call_while(
        self,
        wanted: Callable[[], None],
        visitor: str,
        function: Callable[Given, Answer],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> Answer:
        """The same, as long as the answer is wanted: what `wanted` raises gives the question up.

        It is called now and then, the first time after a while: a process that works on what nobody wants is
        stopped, and another takes as long to start as a small question takes.
        """
        worker = self._take(visitor, wanted)
        kept = None
        try:
            if worker is None or worker.process.poll() is not None:
                worker = self._start()
            answer = self._answered(worker, (function, args, kwargs), wanted)
            kept = worker
        finally:
            if kept is None and worker is not None:
                worker.end()
            self._give_back(visitor, kept)
        if isinstance(answer, InputError):
            raise answer
        return answer  # type: ignore[no-any-return]  # it is what `function` returned

    @property
    def waiting(self) -> int:
        """Questions that wait for a place."""
        with self._changed:
            return len(self._waiting)

    def close(self) -> None:
        """Stop the processes that nobody waits for."""
        with self._changed:
            for worker in filter(None, self._free):
                worker.end()
            self._free = [None] * len(self._free)

    def _take(self, visitor: str, wanted: Callable[[], None]) -> _Worker | None:
        """Wait for a place; None is one where no process runs yet."""
        with self._changed:
            if list(self._waiting.values()).count(visitor) >= MOST_WAITING:
                raise InputError(
                    what="too many questions wait already",
                    cause=f"{MOST_WAITING} of yours do",
                    fix="load the page again when some are answered",
                )
            ticket = next(self._tickets)
            self._waiting[ticket] = visitor
            try:
                while not self._changed.wait_for(
                    lambda: self._free and self._next() == ticket, ASKED_EVERY_S
                ):
                    wanted()
                self._under_way[visitor] += 1
                self._turns[visitor] = next(self._tickets)
                return self._free.pop()
            finally:
                del self._waiting[ticket]
                self._changed.notify_all()

    def _next(self) -> int:
        """Ticket of the visitor with fewest questions under way, whose last turn is longest ago."""

        def rank(ticket: int) -> tuple[int, int, int]:
            visitor = self._waiting[ticket]
            return self._under_way[visitor], self._turns.get(visitor, 0), ticket

        return min(self._waiting, key=rank)

    def _give_back(self, visitor: str, worker: _Worker | None) -> None:
        """Free a place; processes that run are taken first."""
        with self._changed:
            self._under_way -= Counter([visitor])
            if visitor not in self._under_way and visitor not in self._waiting.values():
                del self._turns[visitor]
            self._free.insert(len(self._free) if worker else 0, worker)
            self._changed.notify_all()

    def _start(self) -> _Worker:
        """A new process; not one of `multiprocessing`, which would run the server's script in it."""
        ours, theirs = Pipe()
        with theirs:
            code = f"from app.actions.workers import work; work({theirs.fileno()}, {self._memory_bytes})"
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", code],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
            )
        return _Worker(process, ours)

    def _answered(self, worker: _Worker, question: Any, wanted: Callable[[], None]) -> Any:
        """The answer of a process, or an InputError that says why there is none."""
        try:
            worker.connection.send(question)
            left_s = self._answer_s
            while left_s > ASKED_EVERY_S and not worker.connection.poll(ASKED_EVERY_S):
                left_s -= ASKED_EVERY_S
                wanted()
            if not worker.connection.poll(left_s):
                raise InputError(
                    what="this takes too long to be answered here",
                    cause=f"no answer within {self._answer_s:.0f} s; others wait",
                    fix="ask on the command line, which has no limit, or pin what is known of the layout",
                )
            return worker.connection.recv()
        except (EOFError, ConnectionError):
            raise InputError(
                what="this was too much to be answered here",
                cause=f"the process that worked on it ended; it may use {format_bytes(self._memory_bytes)}",
                fix="ask on the command line, which has no limit, or ask for less",
            ) from None


class _Worker:
    """A process and the line to it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        """Keep both."""
        self.process, self.connection = process, connection

    def end(self) -> None:
        """Stop at once, whatever it is doing."""
        self.connection.close()
        self.process.kill()
        self.process.communicate()


def work(line: int, memory_bytes: int) -> None:
    """Answer questions until nobody asks any more.

    Args:
        line: file descriptor of the connection to who asks.
        memory_bytes: what this process may use.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    Thread(target=_end_with_server, daemon=True).start()
    with Connection(line) as connection:
        while True:
            try:
                function, args, kwargs = connection.recv()
            except EOFError:
                return
            answer = _outcome(function, args, kwargs)
            try:
                connection.send(answer)
            except (
                AttributeError,
                TypeError,
                PicklingError,
            ) as error:  # what rides on it may not travel
                connection.send(_three_lines_of(answer) or defect(error))


def _three_lines_of(answer: object) -> InputError | None:
    """A refusal without the data that rides on it."""
    return InputError(answer.what, answer.cause, answer.fix) if isinstance(answer, InputError) else None


def _end_with_server() -> None:
    """Wait until the other end of stdin is closed, which no process outlives."""
    sys.stdin.buffer.read()
    os._exit(1)


def _outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The answer, or why there is none."""
    try:
        return function(*args, **kwargs)
    except InputError as error:
        return error
    except MemoryError:
        raise SystemExit(1) from None
    except Exception as error:  # noqa: BLE001 - the last door of this process: a defect is named, the process lives on
        return defect(error)


@cache
def workers() -> Workers:
    """Those of this server: one for every core that it may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = Workers(min(cores, MOST_WORKERS))
    atexit.register(pool.close)
    return pool
