"""The ranks of one node: started, watched, started again when one dies anywhere, told when to stop.

Nothing listens here. Ranks meet in a file of torch's `FileStore`, one for each attempt, in a folder that
nobody else can open; on several nodes that folder lies in the run's, which they share, and a file in it tells
the other nodes that an attempt has failed. No torch: what is started imports it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from executor.launch.nodes import Nodes
from executor.launch.rank_source import RankProcess, RankSource
from executor.training.manifest import steps_on_disk
from executor.training.settings import CHECKPOINTS
from executor.training.worker import ENDPOINT, LAUNCHER, MEETING, RANKS_FOLDER, RESTARTS, STARTED

MOST_RESTARTS = 3  # between one new checkpoint and the next
NOTICE_S = 30  # between a signal and the kill: Kubernetes' default, and about that of spot instances
REPORT_S = 2  # of the notice, kept for the launcher to say how the run ended
GRACE_S = 5  # a rank whose peer has died can finish nothing: its collective would only hang
LOOK_S = 0.1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
WORKER = "executor.training.worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The ranks that one node starts.

    `folder` is the run's, which the file descriptor `lock` holds; in `meeting` all ranks meet, or at the
    `endpoint` of the first node. `over` says
    that a node is gone or comes, which ends an attempt, and `in_order` that it has time for a checkpoint;
    `may_restart` waits until that is known after one has failed.
    Ranks are forked from `source`; without one they are started as programs.
    """

    folder: Path
    run_file: Path
    nodes: Nodes
    num_local: int
    environment: Mapping[str, str]
    meeting: Path
    lock: int
    endpoint: str | None = None
    notice_s: int = NOTICE_S
    max_restarts: int = MOST_RESTARTS
    over: Callable[[], bool] = lambda: False
    in_order: Callable[[], bool] = lambda: False
    may_restart: Callable[[], bool] = lambda: True
    source: RankSource | None = None

    def rank(self, local: int) -> int:
        """Rank of the whole run."""
        return self.nodes.rank * self.num_local + local


def run_team(team: Team) -> tuple[int, signal.Signals | None]:
    """Run to the end: exit code of the first rank that failed in the last attempt, and the signal to stop.

    Whatever asks to stop (Ctrl-C, a closed terminal, SIGUSR1 as a scheduler's warning) becomes one SIGTERM
    to each rank. Their own sessions keep a terminal's signals from them.
    """
    code, ranks, budget = 0, list[RankProcess](), Budget(team)
    with _heeding() as asked:
        try:
            for attempt in itertools.count():
                ranks = []
                for local in range(team.num_local):
                    ranks.append(_started(team, attempt, local, lambda: bool(asked)))
                code = _ended(team, ranks, team.meeting / f"failed-{attempt}", asked)
                if code == 0 or asked:
                    break
                if not team.may_restart() or asked or not budget.allows_after(attempt, asked):
                    break
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    return code, asked[0] if asked else None


class Budget:
    """Restarts that are left: as many as the team has since the run last wrote a checkpoint.

    A run of weeks is hit more often than a few times; one that gets no further between two hits has a cause
    that a restart does not mend. Attempts that ended before all ranks were ready to train are counted apart:
    they say nothing of what training met. On several nodes the first of them decides, as they may not look at
    the same moment.
    """

    def __init__(self, team: Team) -> None:
        self.team, self.reached, self.used, self.unstarted = team, _newest(team), 0, 0

    def allows_after(self, attempt: int, asked: Sequence[signal.Signals]) -> bool:
        """Whether there is another attempt after this one; waits for the node that decides."""
        path, enough = (self.team.meeting / f"{word}-{attempt}" for word in ("again", "enough"))
        if self.team.nodes.rank == 0:
            newest = _newest(self.team)
            if newest > self.reached or has_started(self.team.meeting, attempt):
                self.used = 1 if newest > self.reached else self.used + 1
                self.unstarted = 0
            else:
                self.unstarted += 1
            self.reached = max(newest, self.reached)
            (path if max(self.used, self.unstarted) <= self.team.max_restarts else enough).touch()
        while not (path.exists() or enough.exists() or asked or self.team.over()):
            time.sleep(LOOK_S)
        return path.exists() and not asked


def has_started(meeting: Path, attempt: int | str = "*") -> bool:
    """Whether all ranks of an attempt were ready to train; of any attempt where none is named."""
    return any(True for _ in meeting.glob(f"{STARTED}-{attempt}"))


def _newest(team: Team) -> int:
    """Step of the newest checkpoint, -1 before there is one."""
    return next(iter(steps_on_disk(team.folder / CHECKPOINTS)), -1)


@contextlib.contextmanager
def _heeding() -> Iterator[list[signal.Signals]]:
    """Collect the signals that ask to stop. Under ``nohup`` a closed terminal asks for nothing."""
    asked: list[signal.Signals] = []

    def heed(number: int, _frame: FrameType | None) -> None:
        asked.append(signal.Signals(number))

    heeded = [s for s in STOP_SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
    before = {name: signal.signal(name, heed) for name in heeded}
    try:
        yield asked
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


def _started(team: Team, attempt: int, local: int, stopped: Callable[[], bool]) -> RankProcess:
    """Start one rank. The folder it was started in is on no path of it (``-P``)."""
    named = {
        "RANK": team.rank(local),
        "LOCAL_RANK": local,
        "WORLD_SIZE": team.nodes.count * team.num_local,
        "LOCAL_WORLD_SIZE": team.num_local,
        LAUNCHER: os.getpid(),
        RESTARTS: attempt,
        MEETING: team.meeting / f"store-{attempt}",
        ENDPOINT: team.endpoint or "",
    }
    place = {name: str(value) for name, value in named.items()}
    command = [sys.executable, "-P", "-m", WORKER]
    if team.source is not None:
        forked = team.source.rank(command, team.run_file, team.environment, place, stopped)
        if forked is not None:
            return forked
    return subprocess.Popen(
        [*command, str(team.run_file)],
        env={**team.environment, **place},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(team.lock,),
    )


def _ended(team: Team, ranks: list[RankProcess], failed: Path, asked: list[signal.Signals]) -> int:
    """Wait for the ranks of an attempt; once one of any node has failed, or a signal came, end the others."""
    deadline_s: float | None = None
    while True:
        codes = [rank.poll() for rank in ranks]
        code = next((code for code in codes if code), 0)
        if code and deadline_s is None and not asked:
            failed.touch()
        if None not in codes:
            return code
        if deadline_s is None and (asked or failed.exists() or team.over()):
            grace_s = max(1, team.notice_s - REPORT_S) if asked or team.in_order() else GRACE_S
            deadline_s = time.monotonic() + grace_s
            for rank in ranks:
                rank.terminate()
        if deadline_s is not None and time.monotonic() > deadline_s:
            _kill(team, ranks)
        time.sleep(LOOK_S)


def _kill(team: Team, ranks: list[RankProcess]) -> None:
    """End ranks that will not; what was killed here is not lost, so its mark goes."""
    for local, rank in enumerate(ranks):
        if rank.poll() is None:
            rank.kill()
            rank.wait()
            (team.folder / RANKS_FOLDER / str(team.rank(local))).unlink(missing_ok=True)
