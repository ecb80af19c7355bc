"""Questions of a server's visitors, each answered in one of a few processes of their own.

A question that takes too long or too much memory ends the process it is answered in, and nobody else's; the
next question gets a new one. One that nobody wants any more is interrupted, and its process goes on to the
next with all that it has loaded. Visitors take turns: who has fewest questions under way is next, then
whose last turn is longest ago. A process is started when it is needed, keeps what it loads, and ends with
the server.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from multiprocessing.connection import Connection, Pipe
from pickle import PicklingError
from threading import Condition, Thread
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar

from app.errors import defect
from topology.base.errors import InputError
from topology.base.units import GIB, format_bytes

MOST_WORKERS: Final = 8
MOST_ANSWER_S: Final = 120.0
MOST_MEMORY_BYTES: Final = 2 * GIB
ASKED_EVERY_S: Final = 0.1
"""After which it is asked whether an answer is still wanted: sooner than a small question is answered."""
INTERRUPTED_WITHIN_S: Final = 3.0
"""A process that goes on for longer, as one in the solver may, is ended; to start one takes about as long."""
DEFERRED_S: Final = 0.02
"""An import is never interrupted, since half of a package may stay loaded: it is tried again after this."""
MOST_WAITING: Final = 64
"""Questions of one visitor that wait; those of pages that were left wait too."""
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


class Workers:
    """At most `most` processes; started when they are needed, kept for the next question."""

    def __init__(
        self,
        most: int,
        *,
        answer_s: float = MOST_ANSWER_S,
        memory_bytes: int = MOST_MEMORY_BYTES,
        interrupted_s: float = INTERRUPTED_WITHIN_S,
    ) -> None:
        """Start nothing yet."""
        self._answer_s, self._memory_bytes, self._interrupted_s = answer_s, memory_bytes, interrupted_s
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

        It is called now and then. The process that works on what nobody wants is interrupted while the caller
        goes on, and answers others as soon as it has stopped.
        """
        worker = self._take(visitor, wanted)
        try:
            if worker is None or worker.process.poll() is not None:
                worker = self._start()
            answer = self._answered(worker, (function, args, kwargs), wanted)
        except _Unwanted as given_up:
            Thread(target=self._interrupt, args=(visitor, worker), daemon=True).start()
            raise given_up.why from None
        except BaseException:
            if worker is not None:
                worker.end()
            self._give_back(visitor, None)
            raise
        self._give_back(visitor, worker)
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

    def _interrupt(self, visitor: str, worker: _Worker) -> None:
        """Have a process leave its question, and free its place."""
        try:
            if worker.is_ready or worker.connection.poll(self._answer_s):
                worker.is_ready = worker.is_ready or worker.connection.recv()
                worker.process.send_signal(signal.SIGUSR1)
            if not worker.connection.poll(self._interrupted_s):
                raise TimeoutError
            worker.connection.recv()  # that it has left, or an answer that came first
        except (EOFError, OSError):
            worker.end()
            self._give_back(visitor, None)
        else:
            self._give_back(visitor, worker)

    def _answered(self, worker: _Worker, question: Any, wanted: Callable[[], None]) -> Any:
        """The answer of a process, or an InputError that says why there is none.

        Raises:
            _Unwanted: Nobody wants it any more.
        """
        try:
            worker.connection.send(question)
            left_s = self._answer_s
            while True:
                while left_s > ASKED_EVERY_S and not worker.connection.poll(ASKED_EVERY_S):
                    left_s -= ASKED_EVERY_S
                    _require_wanted(wanted)
                if not worker.connection.poll(left_s):
                    raise InputError(
                        what="this takes too long to be answered here",
                        cause=f"no answer within {self._answer_s:.0f} s; others wait",
                        fix="ask on the command line, which has no limit, or pin what is known of the layout",
                    )
                answer = worker.connection.recv()
                if not worker.is_ready:
                    worker.is_ready = True  # which is the first that it says
                elif isinstance(answer, _Left):  # an interruption that came after the answer it was meant for
                    worker.connection.send(question)
                else:
                    return answer
        except (EOFError, ConnectionError):
            raise InputError(
                what="this was too much to be answered here",
                cause=f"the process that worked on it ended; it may use {format_bytes(self._memory_bytes)}",
                fix="ask on the command line, which has no limit, or ask for less",
            ) from None


class _Unwanted(BaseException):
    """Nobody wants an answer any more."""

    def __init__(self, why: BaseException) -> None:
        """Keep what said so."""
        super().__init__()
        self.why = why


def _require_wanted(wanted: Callable[[], None]) -> None:
    """See that an answer is wanted; what says that it is not is kept apart from what a process raises."""
    try:
        wanted()
    except BaseException as why:  # noqa: BLE001 - Streamlit ends a run by what is no Exception
        raise _Unwanted(why) from None


class _Worker:
    """A process and the line to it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        """Keep both."""
        self.process, self.connection, self.is_ready = process, connection, False

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
    for number in (signal.SIGUSR1, signal.SIGALRM):
        signal.signal(number, _leave)
    Thread(target=_end_with_server, daemon=True).start()
    with Connection(line) as connection:
        connection.send(True)  # noqa: FBT003 - from here on it can be interrupted
        while True:
            try:
                function, args, kwargs = connection.recv()
            except EOFError:
                return
            try:
                answer = _outcome(function, args, kwargs)
            except _Interrupted:
                answer = _Left()
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


class _Interrupted(BaseException):
    """The question is not wanted any more."""


class _Left:
    """The answer to a question that was left."""


@dataclass(slots=True)
class _Now:
    """What a process is at: whether it answers, and whether it was interrupted before it began to."""

    answers: bool = False
    is_unwanted: bool = False


_now = _Now()


def _leave(_number: int, frame: FrameType | None) -> None:
    """Leave the question that is worked on; not out of an import, which is let finish."""
    if not _now.answers:
        _now.is_unwanted = True
        return
    at = frame
    while at is not None:
        if at.f_code.co_filename.startswith("<frozen importlib"):
            signal.setitimer(signal.ITIMER_REAL, DEFERRED_S)
            return
        at = at.f_back
    _now.answers = False
    raise _Interrupted


def _require_begun() -> None:
    """Leave a question that was given up while it was read."""
    if _now.is_unwanted:
        raise _Interrupted


def _outcome(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The answer, or why there is none.

    Raises:
        _Interrupted: Nobody wants it any more.
    """
    try:
        _now.answers = True
        _require_begun()
        answer = function(*args, **kwargs)
        _now.answers = False
    except InputError as error:
        return error
    except MemoryError:
        raise SystemExit(1) from None
    except Exception as error:  # noqa: BLE001 - the last door of this process: a defect is named, the process lives on
        return defect(error)
    finally:
        _now.answers = _now.is_unwanted = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    return answer


@cache
def workers() -> Workers:
    """Those of this server: one for every core that it may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = Workers(min(cores, MOST_WORKERS))
    atexit.register(pool.close)
    return pool
