"""Ranks forked from a process that has torch loaded: a fork takes milliseconds, imports seconds.

That process has imported what ranks import and has done nothing else. For each rank it forks twice and lets
the process between go, so that the launcher, which adopts what has lost its parent (prctl's child subreaper),
is the rank's parent as if it had started it: it waits for it, signals it, and the rank ends with it. Where
that cannot be (no Linux, a library's thread, CUDA at work) ranks are started as programs. No torch here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from executor.training.worker import LAUNCHER, SERVE

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37  # of Linux's prctl(2)
LOADED_S = 600.0
"""Longest wait for imports, from a shared file system that every node reads at once, say."""
LOOK_S = 0.1


class RankProcess(Protocol):
    """A rank as its launcher sees it, started or forked."""

    def poll(self) -> int | None:
        """Exit code, None while it runs."""

    def wait(self) -> int:
        """Exit code, once it has ended."""

    def kill(self) -> None:
        """End it at once."""

    def terminate(self) -> None:
        """Let it end in order."""


@dataclass(slots=True, kw_only=True)
class ForkedRank:
    """A child of this process that `subprocess` has not started."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """Exit code, None while it runs."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        """Exit code, once it has ended."""
        code = self._waited(0)
        assert code is not None  # noqa: S101 - without WNOHANG it has ended
        return code

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Let it end in order."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended: its number may be another process's by then."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _waited(self, flags: int) -> int | None:
        if self.code is None:
            try:
                process, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # SIGCHLD is ignored: nobody keeps its code; as `subprocess` has it
                self.code = 0
            else:
                self.code = os.waitstatus_to_exitcode(status) if process else None
        return self.code


@dataclass(slots=True, kw_only=True)
class RankSource:
    """The process of this node from which ranks are forked, begun when the first is wanted.

    `lock` is the descriptor that holds the run's folder for as long as any process of the run lives.
    """

    lock: int
    process: subprocess.Popen[bytes] | None = None
    channel: socket.socket | None = None
    environment: Mapping[str, str] | None = None
    refused: bool = False
    adopted_before: bool = False
    sessions: set[int] = field(default_factory=set)
    """Of what it has forked: whose orphans this process has adopted."""

    def rank(
        self,
        command: Sequence[str],
        run_file: Path,
        environment: Mapping[str, str],
        place: Mapping[str, str],
        stopped: Callable[[], bool],
    ) -> ForkedRank | None:
        """Fork a rank that reads a run's file; None where it must be started, or `stopped` says so meanwhile.

        `environment` is what all ranks of this node share, `place` what this rank has of its own.
        """
        if self.refused or not sys.platform.startswith("linux"):
            return None
        if self.process is None or self.process.poll() is not None or self.environment != environment:
            self.close()
            if not self._begin(command, environment):
                self.refused = True
                return None
        assert self.channel is not None  # noqa: S101 - it has just begun
        text = json.dumps({"run_file": str(run_file), "environment": dict(place)})
        number = 0
        with contextlib.suppress(OSError):  # it has ended
            self.channel.sendall(f"{text}\n".encode())
            number = self._answer(stopped)
        if number:
            self.sessions.add(number)
            return ForkedRank(pid=number)
        self.refused = not stopped()
        self.close()
        return None

    def close(self) -> None:
        """End it, and whatever it has forked that nobody took."""
        if self.process is None or self.channel is None:
            return
        server = self.process.pid
        self.process.kill()
        self.process.wait(LOADED_S)
        self.channel.settimeout(LOOK_S)
        with contextlib.suppress(OSError):
            while line := self.channel.recv(4096):
                for number in filter(None, map(int, line.split())):
                    ForkedRank(pid=number).kill()
                    ForkedRank(pid=number).wait()
        self.channel.close()
        self.process = self.channel = None
        for orphan, _ in list(orphans_in({server})):
            ForkedRank(pid=orphan).kill()
            ForkedRank(pid=orphan).wait()
        self._reap()
        adopt(orphans=self.adopted_before)

    def _reap(self) -> None:
        """Take leave of adopted processes that have ended; a rank itself is its launcher's to wait for."""
        for orphan, session in list(orphans_in(self.sessions)):
            if orphan != session:
                ForkedRank(pid=orphan).poll()

    def _begin(self, command: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Start the process, which imports; false where this one may not adopt what that forks."""
        self.adopted_before = adopts()
        if not adopt(orphans=True):
            return False
        self.channel, other = socket.socketpair()
        self.channel.settimeout(LOOK_S)
        self.environment = dict(environment)
        with other:
            self.process = subprocess.Popen(
                [*command, SERVE, str(other.fileno())],
                env={**environment, LAUNCHER: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(self.lock, other.fileno()),
            )
        return True

    def _answer(self, stopped: Callable[[], bool]) -> int:
        """Number of the rank's process, 0 where there is none."""
        assert self.channel is not None  # noqa: S101 - it has begun
        limit, text = time.monotonic() + LOADED_S, b""
        while not text.endswith(b"\n") and not stopped() and time.monotonic() < limit:
            try:
                part = self.channel.recv(32)
            except TimeoutError:
                continue
            if not part:
                return 0
            text += part
        return int(text) if text.endswith(b"\n") else 0


@contextlib.contextmanager
def rank_source(lock: int) -> Iterator[RankSource]:
    """A source of ranks for as long as a run lasts."""
    source = RankSource(lock=lock)
    try:
        yield source
    finally:
        source.close()


def adopt(*, orphans: bool) -> bool:
    """Be the parent of descendants whose parents have ended, or no longer; false where that is refused."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl is not None and prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0) == 0


def adopts() -> bool:
    """Whether this process is the parent of descendants whose parents have ended."""
    prctl, held = getattr(ctypes.CDLL(None), "prctl", None), ctypes.c_int()
    return (
        prctl is not None
        and prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(held), 0, 0, 0) == 0
        and held.value > 0
    )


def orphans_in(sessions: AbstractSet[int]) -> Iterator[tuple[int, int]]:
    """Children of this process in some sessions, each with its session: others have children too."""
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            for child in map(int, path.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    if (session := os.getsid(child)) in sessions:
                        yield child, session
