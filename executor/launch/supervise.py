"""A run kept alive: its files written, its ranks started, fewer GPUs when some are gone for good.

``python -P -m executor.launch.supervise RUN.json`` runs what `plan run --dry-run` has written. No torch here:
the launcher only starts processes and reads what they leave behind.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from executor.launch.agent import MOST_RESTARTS, NOTICE_S, Team, run_team
from executor.launch.environment import check_named, environment_of_ranks
from executor.launch.nodes import Nodes, listening_interface, nodes_of_slurm, placed
from executor.launch.run_lock import cannot_write, held
from executor.training.manifest import read_key
from executor.training.settings import (
    CHECKPOINTS,
    RUN_FILE,
    STATUS_FILE,
    RunSettings,
    RunStatus,
    read_settings,
    read_status,
    write_json,
)
from executor.training.worker import RANKS_FOLDER
from planner.plan import Plan, from_json, to_json
from topology.base.atomic import write_atomically
from topology.base.decode import read_text
from topology.base.errors import InputError
from topology.builders import build
from topology.fabric.seats import hosts_by_rank

PLAN_FILE = "plan.json"
MEETINGS = ".meetings"
MEETING_S = 600  # nodes of a job may start so long after the first
MEETING_LOOK_S = 0.2


def ranks_per_node(num_gpus: int, nodes: int) -> int:
    """Ranks on each node; GPUs must fill nodes evenly."""
    if num_gpus % nodes:
        raise InputError(
            what="the plan does not fill the nodes",
            cause=f"{num_gpus} ranks over {nodes} nodes",
            fix="plan for a multiple of the number of nodes",
        )
    return num_gpus // nodes


def check_doors(settings: RunSettings, environment: Mapping[str, str]) -> None:
    """Refuse a run whose nodes, network, variables or key are not there."""
    listening_interface(nodes_of_slurm(environment), settings.interface)
    check_named(settings.env, environment)
    read_key(settings.run_key)


def launch_command(run_file: Path) -> list[str]:
    """Build the command that starts this node's ranks from a written run."""
    return [sys.executable, "-P", "-m", "executor.launch.supervise", str(run_file)]


def write_run(settings: RunSettings, plan: Plan) -> Path:
    """Write everything the ranks read: the plan and the settings; how an earlier run stands is kept."""
    folder = Path(settings.folder)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_links(folder)
        write_atomically(Path(settings.plan_file), to_json(plan))
        run_file = folder / RUN_FILE
        write_json(run_file, settings)
    return run_file


def _refuse_links(folder: Path) -> None:
    """Refuse a folder that would have us write elsewhere; checkpoints alone may lie on another disk."""
    link = next((path for path in folder.iterdir() if path.is_symlink() and path.name != CHECKPOINTS), None)
    if link is not None:
        raise InputError(
            what=f"the run's folder {folder} leads elsewhere",
            cause=f"{link} is a link",
            fix="remove the link, or give another --run-dir",
        )


def begin_run(folder: Path) -> None:
    """Say that the run is running, and forget the ranks of an earlier attempt."""
    with _writing(folder):
        write_json(folder / STATUS_FILE, RunStatus(state="running"))
    shutil.rmtree(folder / RANKS_FOLDER, ignore_errors=True)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write into the three lines."""
    try:
        yield
    except OSError as error:
        raise cannot_write(folder, error) from error


@contextlib.contextmanager
def meeting_place(folder: Path, nodes: Nodes, turn: int) -> Iterator[Path]:
    """Give the folder in which ranks meet: one of this machine, or for several machines one in the run's.

    The first node makes that when it has written the run, so the others wait for it.
    """
    if nodes.count == 1:
        with tempfile.TemporaryDirectory(prefix="meshplan-") as local:
            yield Path(local)
        return
    place = folder / MEETINGS / f"{nodes.launch}.{turn}"
    if nodes.rank == 0:
        if turn == 0:
            shutil.rmtree(folder / MEETINGS, ignore_errors=True)
        with _writing(folder):
            place.parent.mkdir(mode=0o700, exist_ok=True)
            place.mkdir(mode=0o700)
    limit_s = time.monotonic() + MEETING_S
    while not place.exists():
        if time.monotonic() > limit_s:
            raise InputError(
                what="the first node of the job has not started its ranks",
                cause=f"{place} is not there after {MEETING_S} s",
                fix="start plan run on every node with one srun, and --run-dir on a file system they share",
            )
        time.sleep(MEETING_LOOK_S)
    yield place


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How a run is kept alive: `replan` gives a plan for fewer GPUs (None: there is none).

    `notice_s` seconds pass between a signal to stop and the scheduler's kill.
    """

    min_gpus: int | None
    replan: Callable[[int], Plan | None]
    say: Callable[[str], None]
    max_restarts: int = MOST_RESTARTS
    notice_s: int = NOTICE_S


def supervise(settings: RunSettings, plan: Plan, supervision: Supervision) -> RunStatus:
    """Run to the end; after repeated crashes continue on fewer GPUs when that is allowed."""
    nodes, folder = nodes_of_slurm(os.environ), Path(settings.folder)
    if nodes.count > 1:
        each = ranks_per_node(plan.layout.num_gpus, nodes.count)
        hosts = hosts_by_rank(plan.mesh, build(plan.request.cluster).spec, each)
        nodes = placed(nodes, hosts, os.environ)
    environment = environment_of_ranks(
        os.environ,
        interface=listening_interface(nodes, settings.interface),
        named=settings.env,
        wandb=settings.wandb,
    )
    with held(folder, supervision.say, nodes.rank) as lock:
        for turn in itertools.count():
            num_local = ranks_per_node(plan.layout.num_gpus, nodes.count)
            if nodes.rank == 0:
                write_run(settings, plan)
                begin_run(folder)
            with meeting_place(folder, nodes, turn) as meeting:
                team = Team(
                    run_file=folder / RUN_FILE,
                    nodes=nodes,
                    num_local=num_local,
                    environment=environment,
                    meeting=meeting,
                    lock=lock,
                    notice_s=supervision.notice_s,
                    max_restarts=supervision.max_restarts,
                )
                code, asked = run_team(team)
            status = read_status(folder) or RunStatus(state="running")
            if status.state != "running":
                return status
            if asked is not None:
                raise _stopped_too_late(asked, supervision.notice_s)
            plan = _fewer(supervision, plan, len(killed_ranks(folder)), code)
    raise AssertionError


def _fewer(supervision: Supervision, plan: Plan, num_lost: int, code: int) -> Plan:
    """Plan for the GPUs that are left, which is told; the end of the run when there is none."""
    num_gpus = plan.layout.num_gpus
    smaller = _smaller_plan(supervision, plan, num_gpus - num_lost)
    if smaller is None:
        raise InputError(
            what="training failed and could not be restarted",
            cause=f"a rank ended with {_in_words(code)} after {supervision.max_restarts} restarts",
            fix="read the ranks' messages above; start again to resume, or allow fewer with --min-gpus",
        )
    supervision.say(f"{num_lost} of {num_gpus} ranks are lost: continuing on {smaller.layout.num_gpus}")
    return smaller


def _in_words(code: int) -> str:
    """How a process ended.

    >>> _in_words(-9), _in_words(1)
    ('SIGKILL', 'exit code 1')
    """
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _smaller_plan(supervision: Supervision, plan: Plan, left: int) -> Plan | None:
    """Plan for the GPUs that are left, None when that is not allowed or not possible."""
    if supervision.min_gpus is None or left >= plan.layout.num_gpus:
        return None
    for count in range(left, supervision.min_gpus - 1, -1):
        smaller = supervision.replan(count)
        if smaller is not None:
            return smaller
    return None


def killed_ranks(folder: Path) -> list[int]:
    """Ranks of the last attempt that went without leaving word."""
    marks = (folder / RANKS_FOLDER).glob("[0-9]*")
    return sorted(int(mark.name) for mark in marks)


def _stopped_too_late(asked: signal.Signals, notice_s: int) -> InputError:
    """Say that ranks that were told to stop had no time for a checkpoint: they are not lost for good."""
    return InputError(
        what=f"the run was stopped by {asked.name} before it could write a checkpoint",
        cause=f"the step and the checkpoint took longer than the notice of {notice_s} s",
        fix="start again: it resumes from the last checkpoint; give --notice what the scheduler allows, "
        "or write checkpoints more often with --checkpoint-every",
    )


def with_plan(settings: RunSettings, folder: Path) -> RunSettings:
    """Settings whose files lie in a folder."""
    return replace(settings, folder=str(folder), plan_file=str(folder / PLAN_FILE))


def _say(text: str) -> None:
    """Tell whoever started it."""
    sys.stderr.write(f"{text}\n")


def main(arguments: list[str]) -> int:
    """Run what is written in a folder, without planning again; exit code 2 with three lines when it fails."""
    try:
        settings = read_settings(Path(arguments[0]))
        plan = from_json(read_text(settings.plan_file), settings.plan_file)
        alone = Supervision(min_gpus=None, replan=lambda _: None, say=_say)
        status = supervise(settings, plan, alone)
    except InputError as error:
        status = RunStatus(state="error", what=error.what, cause=error.cause, fix=error.fix)
    if status.state != "error":
        return 0
    _say(str(InputError(what=status.what, cause=status.cause, fix=status.fix)))
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
