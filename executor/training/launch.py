"""Start a run: the torchrun command, Slurm's variables, restarts, and fewer GPUs when some are gone for good.

No torch here: the launcher only starts processes and reads what they leave behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from executor.training.settings import RUN_FILE, STATUS_FILE, RunSettings, Status, read_status, write_json
from executor.training.worker import LAUNCHER, RANKS_FOLDER
from planner.plan import Plan, to_json
from topology.base.atomic import write_atomically
from topology.base.errors import InputError

DEFAULT_PORT = 29500
MOST_RESTARTS = 3
NOTICE_S = 30  # between a signal and the kill: Kubernetes' default, and about that of spot instances
REPORT_S = 2  # of the notice, kept for the launcher to say how the run ended
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
TORCHRUN, QUIET_TORCHRUN = "torch.distributed.run", "executor.training.elastic"
PLAN_FILE = "plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The machines of a run as one of them sees it."""

    count: int = 1
    rank: int = 0
    head: str = ""
    job_id: str = ""


def nodes_of_slurm(environment: Mapping[str, str]) -> Nodes:
    """Read Slurm's variables; one local node without them.

    >>> nodes_of_slurm({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1",
    ...     "SLURM_JOB_NODELIST": "gpu[03-04]"})
    Nodes(count=2, rank=1, head='gpu03', job_id='7')
    """
    count = int(environment.get("SLURM_JOB_NUM_NODES", environment.get("SLURM_NNODES", "1")))
    if count == 1:
        return Nodes()
    return Nodes(
        count=count,
        rank=int(environment.get("SLURM_NODEID", "0")),
        head=first_host(environment.get("SLURM_JOB_NODELIST", "localhost")),
        job_id=environment.get("SLURM_JOB_ID", "meshplan"),
    )


def first_host(node_list: str) -> str:
    """First host of a Slurm node list.

    >>> first_host("gpu[03-04,07],cpu1"), first_host("a,b"), first_host("rack2-n[9,11]")
    ('gpu03', 'a', 'rack2-n9')
    """
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", node_list)
    if match is None:
        raise InputError(
            what="SLURM_JOB_NODELIST cannot be read",
            cause=f"{node_list!r}",
            fix="start from a Slurm allocation, or unset the SLURM_ variables",
        )
    return match[1] + (match[2] or "")


def ranks_per_node(num_gpus: int, nodes: int) -> int:
    """Ranks on each node; GPUs must fill nodes evenly."""
    if num_gpus % nodes:
        raise InputError(
            what="the plan does not fill the nodes",
            cause=f"{num_gpus} ranks over {nodes} nodes",
            fix="plan for a multiple of the number of nodes",
        )
    return num_gpus // nodes


def torchrun_command(
    run_file: Path, num_gpus: int, nodes: Nodes, *, max_restarts: int = MOST_RESTARTS, module: str = TORCHRUN
) -> list[str]:
    """Build the command that starts this node's ranks, by torchrun or by what stands for it."""
    per_node = ranks_per_node(num_gpus, nodes.count)
    if nodes.count == 1:
        where = ["--standalone"]
    else:
        where = [
            f"--nnodes={nodes.count}",
            f"--node-rank={nodes.rank}",
            "--rdzv-backend=c10d",
            f"--rdzv-id={nodes.job_id}",
            f"--rdzv-endpoint={nodes.head}:{DEFAULT_PORT}",
        ]
    return [
        sys.executable,
        "-m",
        module,
        *where,
        f"--nproc-per-node={per_node}",
        f"--max-restarts={max_restarts}",
        "--monitor-interval=0.2",
        "-m",
        "executor.training.worker",
        str(run_file),
    ]


def environment_of_ranks(environment: Mapping[str, str], notice_s: int = NOTICE_S) -> dict[str, str]:
    """Environment of torchrun: its store unshared (gloo restarts hang otherwise), our packages found.

    Ranks that are told to stop may take the notice, less what the launcher needs to say how it ended.
    """
    here = str(Path(__file__).resolve().parents[2])
    paths = [here, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **environment,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(max(1, notice_s - REPORT_S)),
        LAUNCHER: str(os.getpid()),
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }


def write_run(settings: RunSettings, plan: Plan) -> Path:
    """Write everything the ranks read: the plan and the settings; how an earlier run stands is kept."""
    folder = Path(settings.folder)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(settings.plan_file), to_json(plan))
        run_file = folder / RUN_FILE
        write_json(run_file, settings)
    return run_file


def begin_run(folder: Path) -> None:
    """Say that the run is running, and forget the ranks of an earlier attempt."""
    with _writing(folder):
        write_json(folder / STATUS_FILE, Status(state="running"))
    shutil.rmtree(folder / RANKS_FOLDER, ignore_errors=True)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn a failure to write into the three lines."""
    try:
        yield
    except OSError as error:
        raise InputError(
            what=f"the run's folder {folder} cannot be written",
            cause=str(error),
            fix="give --run-dir another folder, or free space",
        ) from error


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


def supervise(settings: RunSettings, plan: Plan, supervision: Supervision) -> Status:
    """Run to the end; after repeated crashes continue on fewer GPUs when that is allowed."""
    while True:
        run_file = write_run(settings, plan)
        begin_run(Path(settings.folder))
        command = torchrun_command(
            run_file,
            plan.layout.num_gpus,
            nodes_of_slurm(os.environ),
            max_restarts=supervision.max_restarts,
            module=QUIET_TORCHRUN,
        )
        environment = environment_of_ranks(os.environ, supervision.notice_s)
        code, asked = _run_forwarding_signals(command, environment)
        status = read_status(Path(settings.folder)) or Status(state="running")
        if status.state != "running":
            return status
        if asked is not None:
            raise _stopped_too_late(asked, supervision.notice_s)
        left = plan.layout.num_gpus - len(killed_ranks(Path(settings.folder)))
        smaller = _smaller_plan(supervision, plan, left)
        if smaller is None:
            raise InputError(
                what="training failed and could not be restarted",
                cause=f"torchrun ended with code {code} after {supervision.max_restarts} restarts",
                fix="read the ranks' messages above; start again to resume, or allow fewer with --min-gpus",
            )
        supervision.say(
            f"{plan.layout.num_gpus - left} of {plan.layout.num_gpus} ranks are lost: "
            f"continuing on {smaller.layout.num_gpus}"
        )
        plan = smaller


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


def _run_forwarding_signals(
    command: Sequence[str], environment: Mapping[str, str]
) -> tuple[int, signal.Signals | None]:
    """Run a command, passing signals on to it so that its ranks can write a checkpoint; exit code and signal.

    Whatever asks to stop (Ctrl-C, a closed terminal, SIGUSR1 as a scheduler's warning) becomes one SIGTERM,
    which is what torchrun passes on to its ranks. Its own session keeps a terminal's signals from it. Under
    ``nohup`` a closed terminal asks for nothing.
    """
    process = subprocess.Popen(command, env=dict(environment), start_new_session=True)
    asked: list[signal.Signals] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if not asked:
            process.send_signal(signal.SIGTERM)
        asked.append(signal.Signals(number))

    heeded = [s for s in STOP_SIGNALS if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN]
    before = {name: signal.signal(name, forward) for name in heeded}
    try:
        code = process.wait()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    return code, asked[0] if asked else None


def with_plan(settings: RunSettings, folder: Path) -> RunSettings:
    """Settings whose files lie in a folder."""
    return replace(settings, folder=str(folder), plan_file=str(folder / PLAN_FILE))
