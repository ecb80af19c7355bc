"""A run kept alive: its files written, its ranks started, fewer GPUs when some are gone for good.

``python -P -m executor.launch.supervise RUN.json`` runs what `plan run --dry-run` has written. No torch here:
the launcher only starts processes and reads what they leave behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from executor.launch.agent import MOST_RESTARTS, NOTICE_S, Team, has_started, run_team
from executor.launch.disk_room import check_disk_room
from executor.launch.doors import hosts_of, ranks_per_node, require_even
from executor.launch.environment import environment_of_ranks
from executor.launch.membership import beating
from executor.launch.nodes import UNNUMBERED, Nodes, link_up, listening_interface, placed
from executor.launch.numbers import numbered, numbers_of
from executor.launch.preflight import check_node
from executor.launch.rank_source import RankSource, rank_source
from executor.launch.run_lock import cannot_write, run_lock
from executor.launch.schedulers import alone_hint, nodes_here, nodes_line
from executor.launch.turns import PLAN_FILE, Crew, Replan, Turns, earlier_words, telling
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
from topology.base.errors import InputError
from topology.base.files import read_text

MEETINGS = ".meetings"


def launch_command(run_file: Path) -> list[str]:
    """Build the command that starts this node's ranks from a written run."""
    return [sys.executable, "-P", "-m", "executor.launch.supervise", str(run_file)]


def write_run(settings: RunSettings, plan: Plan) -> Path:
    """Write everything the ranks read: the plan and the settings; how an earlier run stands is kept."""
    folder = Path(settings.folder)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _require_plain_files(folder)
        write_atomically(Path(settings.plan_file), to_json(plan))
        run_file = folder / RUN_FILE
        write_json(run_file, settings)
    return run_file


def write_beside(folder: Path, files: Mapping[str, str]) -> None:
    """Write what is only for the user, by name, into a run's folder."""
    with _writing(folder):
        for name, text in files.items():
            write_atomically(folder / name, text)


def _require_plain_files(folder: Path) -> None:
    """Refuse a folder that would have us write elsewhere, or wait; checkpoints may lie on another disk."""
    for path in folder.iterdir():
        if path.is_symlink() and path.name != CHECKPOINTS:
            raise InputError(
                what=f"the run's folder {folder} leads elsewhere",
                cause=f"{path} is a link",
                fix="remove the link, or give another --run-dir",
            )
        if not (path.is_file() or path.is_dir()) and path.exists():
            raise InputError(
                what=f"the run's folder {folder} holds what is no file",
                cause=f"{path} is a device, a pipe or a socket",
                fix="remove it, or give another --run-dir",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How a run is kept alive: `replan` gives a plan for fewer GPUs without some hosts, None for none.

    `notice_s` seconds pass between a signal to stop and the scheduler's kill. `beside` are files for the
    user, by name, written once when the run begins.
    """

    min_gpus: int | None
    replan: Replan
    say: Callable[[str], None]
    max_restarts: int = MOST_RESTARTS
    notice_s: int = NOTICE_S
    beside: Mapping[str, str] = field(default_factory=dict)


def supervise(settings: RunSettings, plan: Plan, supervision: Supervision) -> RunStatus:
    """Run to the end; after repeated crashes continue on fewer GPUs when that is allowed."""
    nodes = nodes_here(os.environ, settings.nnodes, settings.rdzv_endpoint)
    if nodes.count == 1:
        return _on_one_node(settings, plan, supervision, nodes)
    each = ranks_per_node(plan.layout.num_gpus, nodes.count)
    return _on_several_nodes(settings, plan, _with_least(supervision, nodes.least * each), nodes)


def _with_least(supervision: Supervision, num_gpus: int) -> Supervision:
    """The fewest GPUs of ``--nnodes MIN:MAX`` beside ``--min-gpus``, which says it too."""
    least = supervision.min_gpus
    if least is not None and num_gpus and least != num_gpus:
        raise InputError(
            what="--nnodes contradicts --min-gpus",
            cause=f"MIN nodes have {num_gpus} GPUs, --min-gpus is {least}",
            fix="give one of them",
        )
    return replace(supervision, min_gpus=least or num_gpus or None)


def _on_one_node(settings: RunSettings, plan: Plan, supervision: Supervision, nodes: Nodes) -> RunStatus:
    """Ranks of this machine meet in a folder of its own."""
    folder = Path(settings.folder)
    if settings.preflight:
        check_node(plan, range(plan.layout.num_gpus), device=settings.device)
    check_disk_room(settings, plan)
    with run_lock(folder, supervision.say) as lock, rank_source(lock) as source:
        beside = supervision.beside
        while True:
            run_file = write_run(settings, plan)
            write_beside(folder, beside)
            begin_run(folder)
            with tempfile.TemporaryDirectory(prefix="meshplan-") as meeting:
                num_local = plan.layout.num_gpus
                team = _team(settings, supervision, nodes, num_local, run_file, Path(meeting), source)
                code, status = _run_ended(team, settings, supervision)
                started = has_started(Path(meeting))
            if status.state != "running":
                return status
            beside = {}
            plan = _fewer(supervision, plan, len(killed_ranks(folder)), code, started=started)


def _on_several_nodes(settings: RunSettings, plan: Plan, supervision: Supervision, nodes: Nodes) -> RunStatus:
    """Ranks meet in the run's folder; there the nodes also agree on who is left."""
    require_even(plan)
    folder, each = Path(settings.folder), ranks_per_node(plan.layout.num_gpus, nodes.count)
    hosts = () if os.environ.get("HOSTS") == "any" else hosts_of(plan, each)
    nodes, numbers = placed(nodes, hosts, os.environ), None
    if nodes.rank == UNNUMBERED and settings.rdzv_endpoint is not None:
        meetings = meetings_of(folder, nodes.launch)
        numbers = numbers_of(meetings, folder, nodes, settings.rdzv_endpoint, os.environ)
        nodes = numbered(nodes, numbers, supervision.say)
    supervision.say(nodes_line(nodes))
    with run_lock(folder, supervision.say, nodes.rank) as lock:
        meetings = meetings_of(folder, nodes.launch)
        earlier = earlier_words(meetings, nodes.rank)
        interface = listening_interface(nodes, settings.interface)
        if settings.preflight:
            ranks = range(nodes.rank * each, (nodes.rank + 1) * each)
            with telling(meetings, nodes.rank):
                check_node(plan, ranks, device=settings.device)
        if nodes.rank == 0:
            with telling(meetings, nodes.rank):
                check_disk_room(settings, plan)
        mine = nodes.rank

        def check() -> None:
            if numbers is not None:
                numbers.require(mine)
                numbers.tell_namesakes(supervision.say)

        def linked() -> bool:
            return link_up(interface) and (numbers is None or numbers.holds(mine))

        with beating(meetings, mine, linked) as table:
            turns = Turns(
                table=table,
                crew=Crew(
                    plan=plan,
                    count=nodes.count,
                    hosts=hosts,
                    min_gpus=supervision.min_gpus,
                    replan=supervision.replan,
                ),
                nodes=nodes,
                settings=settings,
                say=supervision.say,
                write=lambda plan: write_run(settings, plan),
                begin=lambda: _begin(folder, meetings, supervision.beside),
                check=check,
                earlier=earlier,
                hint=alone_hint(nodes, os.environ, settings.rdzv_endpoint),
            )
            with rank_source(lock) as source:
                return _turn_by_turn(turns, settings, supervision, source)


def meetings_of(folder: Path, launch: str) -> Path:
    """The folder, which nobody else can open, in which the nodes of this start of a run meet."""
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _require_plain_files(folder)
        for part in (folder / MEETINGS, folder / MEETINGS / launch):
            part.mkdir(mode=0o700, exist_ok=True)
            _require_plain_files(part)
    return folder / MEETINGS / launch


def _begin(folder: Path, meetings: Path, beside: Mapping[str, str]) -> None:
    """Say that the run is running, and forget earlier starts of it."""
    write_beside(folder, beside)
    begin_run(folder)
    for other in meetings.parent.iterdir():
        if other != meetings:
            shutil.rmtree(other, ignore_errors=True)


def _turn_by_turn(
    turns: Turns,
    settings: RunSettings,
    supervision: Supervision,
    source: RankSource,
) -> RunStatus:
    """Run each turn in which this node has ranks, until the run ends."""
    folder, after, failure = Path(settings.folder), -1, "ranks of other nodes ended"
    while True:
        with _writing(folder):
            turn = turns.following(after, failure)
        if turn is None:
            return read_status(folder) or RunStatus(state="running")
        num_local, after = ranks_per_node(turn.plan.layout.num_gpus, turn.nodes.count), turn.number
        run_file = turn.place / RUN_FILE
        first_leads = turn.members.nodes[0] == 0  # whose address the endpoint is
        team = replace(
            _team(settings, supervision, turn.nodes, num_local, run_file, turn.place, source),
            endpoint=settings.rdzv_endpoint if first_leads and turn.nodes.count > 1 else None,
            over=turn.over,
            in_order=turn.in_order,
            may_restart=turn.may_restart,
        )
        ours = [str(team.rank(local)) for local in range(num_local)]
        for rank in ours:  # whoever had that number before
            (folder / RANKS_FOLDER / rank).unlink(missing_ok=True)
        code, status = _run_ended(team, settings, supervision)
        if status.state != "running":
            return status
        lost = 0 if turn.over() else sum((folder / RANKS_FOLDER / rank).exists() for rank in ours)
        failure = f"a rank ended with {_in_words(code)} after {supervision.max_restarts} restarts"
        with _writing(folder):
            turns.table.beat(ended=after, lost=lost)


def _team(
    settings: RunSettings,
    supervision: Supervision,
    nodes: Nodes,
    num_local: int,
    run_file: Path,
    meeting: Path,
    source: RankSource,
) -> Team:
    """The ranks of this node."""
    return Team(
        folder=Path(settings.folder),
        run_file=run_file,
        nodes=nodes,
        num_local=num_local,
        environment=environment_of_ranks(
            os.environ,
            interface=listening_interface(nodes, settings.interface),
            named=settings.env,
            wandb=settings.wandb,
            hub="hf:" in f"{settings.data},{settings.eval_data}",
            records=Path(settings.folder),
        ),
        meeting=meeting,
        lock=source.lock,
        source=source,
        notice_s=supervision.notice_s,
        max_restarts=supervision.max_restarts,
    )


def _run_ended(team: Team, settings: RunSettings, supervision: Supervision) -> tuple[int, RunStatus]:
    """Run ranks until they end: how they did, and how the run stands."""
    code, asked = run_team(team)
    status = read_status(Path(settings.folder)) or RunStatus(state="running")
    if status.state == "running" and asked is not None:
        raise _stopped_too_late(asked, supervision.notice_s)
    return code, status


def _fewer(supervision: Supervision, plan: Plan, num_lost: int, code: int, *, started: bool) -> Plan:
    """Plan for the GPUs that are left, which is told; the end of the run when there is none.

    `started` says whether all ranks were ever ready to train.
    """
    num_gpus = plan.layout.num_gpus
    smaller = _smaller_plan(supervision, plan, num_gpus - num_lost)
    if smaller is None:
        raise InputError(
            what="training failed and could not be restarted" if started else "the run could not be started",
            cause=f"a rank ended with {_in_words(code)} after {supervision.max_restarts} restarts"
            + ("" if started else ", before all ranks were ready to train"),
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
        smaller = supervision.replan(count, ())
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
        alone = Supervision(min_gpus=None, replan=lambda *_: None, say=_say)
        status = supervise(settings, plan, alone)
    except InputError as error:
        status = RunStatus(state="error", what=error.what, cause=error.cause, fix=error.fix)
    if status.state != "error":
        return 0
    _say(str(InputError(what=status.what, cause=status.cause, fix=status.fix)))
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
