"""The process of one rank: ``python -m executor.training.worker RUN.json``.

Our launcher starts it, or torchrun by a scheduler's hand. A wrong input is written to the run's status and
ends the run on every rank, also after they were restarted; a crash is left to the launcher, which restarts
from the last good checkpoint. What a crash was is told in a line; its traceback goes to a file, because every
rank that waited for a killed one has the same.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import NoReturn

from executor.training.lifeline import die_with_parent
from executor.training.settings import (
    STATUS_FILE,
    RunSettings,
    RunStatus,
    read_settings,
    read_status,
    write_json,
)
from topology.base.decode import read_json
from topology.base.errors import InputError
from topology.base.files import open_lines

RANKS_FOLDER = ".ranks"
FAILED = 1
LAUNCHER = "MESHPLAN_LAUNCHER"  # process that started the ranks, if that is ours
MEETING = "MESHPLAN_MEETING"  # file in which ranks meet; without it torchrun's own store
ENDPOINT = "MESHPLAN_ENDPOINT"  # HOST:PORT where they meet instead
RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # by torchrun's name
STARTED = "started"  # beside the meeting: all ranks of an attempt were ready to train
SERVE = "--serve"  # before the descriptor of the channel on which a launcher asks for ranks
JOIN = "join"  # beside the meeting: these ranks end in order, and the run goes on
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "NCCL error")


def main(arguments: list[str]) -> int:
    """Train as the settings file says; with `SERVE` each rank that is forked. Its exit code."""
    if LAUNCHER in os.environ:
        die_with_parent(int(os.environ[LAUNCHER]))
    if arguments[0] == SERVE:
        from executor.training.rank_server import next_rank

        return main([next_rank(int(arguments[1]), int(os.environ[LAUNCHER]))])
    run_file = Path(arguments[0])
    try:
        settings = read_settings(run_file)
    except InputError as error:
        return _unread(run_file, error)
    status = read_status(Path(settings.folder))
    if status is not None and status.state == "error":
        return 0
    with _present(Path(settings.folder)):
        try:
            return _run(settings)
        except InputError as error:
            _record_error(Path(settings.folder), error)
            if LAUNCHER not in os.environ:  # which says it once, for all ranks
                sys.stderr.write(f"{error}\n")
        except Exception as error:  # noqa: BLE001 - whatever it is, the launcher restarts and the file tells
            if settings.deterministic and (refused := _refusal(error)) is not None:
                _record_error(Path(settings.folder), refused)
            kept_in = _keep_traceback(Path(settings.folder))
            sys.stderr.write(f"{_hang_line(error, kept_in) or crash_line(error, kept_in)}\n")
        sys.stderr.flush()
    os._exit(FAILED)  # other ranks may wait for this one: do not wait for them


def _unread(run_file: Path, error: InputError) -> int:
    """End the run, which no restart mends, where its settings cannot be read; the exit code of this rank."""
    with contextlib.suppress(InputError, OSError, TypeError, KeyError):  # of a file that names no folder
        folder = Path(read_json(run_file)["folder"])
        status = read_status(folder)
        if status is not None and status.state == "error":
            return 0
        _record_error(folder, error)
    if LAUNCHER not in os.environ:  # which says it once, for all ranks
        sys.stderr.write(f"{error}\n")
    return FAILED


def _refusal(error: Exception) -> InputError | None:
    """Why torch has refused to go on under `--deterministic`, which no restart mends."""
    from executor.training.determinism import refusal

    return refusal(error)


def _hang_line(error: Exception, kept_in: str) -> str:
    """One line for a collective that timed out, which says who has not come; empty where nothing did."""
    from executor.comm.hangs import hang_line

    if MEETING not in os.environ:
        return ""
    line = hang_line(error, _stands(os.environ), int(os.environ.get("RANK", "0")))
    return f"{line}; see {kept_in}" if line else ""


def _stands(environment: Mapping[str, str]) -> Path:
    """Folder beside the meeting in which ranks of an attempt say where they stand when one has hung."""
    return Path(environment[MEETING]).parent / f"stands-{environment.get(RESTARTS, '0')}"


def _run(settings: RunSettings) -> int:
    """Join the group, train, record the outcome."""
    import torch
    import torch.distributed as dist

    from executor.comm.hangs import answer_when_asked
    from executor.model.attention.kernels import attention_line
    from executor.parallel.affinity import bind
    from executor.parallel.device import choose_device, fallback_line
    from executor.parallel.link_check import check_links
    from executor.parallel.parallelize import COMPUTE_DTYPES
    from executor.torch_internals.lean_start import leave_compiler_out
    from executor.torch_internals.quiet import quiet_known_warnings
    from executor.training import loop, trainer
    from executor.training.determinism import be_deterministic
    from planner.plan import from_json, tables_of
    from planner.structure import sound
    from topology.base.files import read_text

    quiet_known_warnings()
    if settings.deterministic:
        be_deterministic()
    plan = sound(from_json(read_text(settings.plan_file), settings.plan_file), settings.plan_file)
    environment = dict(os.environ)
    trainer.check_world(plan, int(environment["WORLD_SIZE"]))
    device = choose_device(settings.device, int(environment["LOCAL_RANK"]))
    if device.type == "cpu":
        torch.set_num_threads(max(1, _cores() // int(environment["LOCAL_WORLD_SIZE"])))
    bound = bind(device)
    trainer.start_process_group(
        device, environment, environment.get(MEETING), environment.get(ENDPOINT) or None
    )
    if not settings.compiles:
        leave_compiler_out()
    answerer = None
    if MEETING in environment:
        answerer = answer_when_asked(
            _stands(environment),
            int(environment["RANK"]),
            ranks=dist.get_world_size(),
            quiet_s=trainer.COLLECTIVE_TIMEOUT.total_seconds() / 2,
        )
    links = ""
    if settings.preflight and device.type == "cuda" and environment.get(RESTARTS, "0") == "0":
        links = check_links(plan, device, tables_of(plan))
    ready = trainer.prepare(settings, plan, device)
    if MEETING in environment and dist.get_rank() == 0:
        (Path(environment[MEETING]).parent / f"{STARTED}-{environment.get(RESTARTS, '0')}").touch()
    attention = attention_line(
        plan.request.model,
        plan.layout,
        device,
        COMPUTE_DTYPES[settings.precision],
        documents=settings.document_end is not None,
    )
    for line in filter(None, (fallback_line(settings.device, device), bound, links, attention)):
        if environment.get(RESTARTS, "0") == "0":
            ready.say(line)
    status = loop.train(ready) if answerer is None else loop.train(ready, answerer.moved)
    if dist.get_rank() == 0 and not (status.state == "stopped" and _goes_on(environment)):
        loop.record_status(settings, status)
    dist.barrier()
    dist.destroy_process_group()
    return 0


def _cores() -> int:
    """Cores that a scheduler has left this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _goes_on(environment: Mapping[str, str]) -> bool:
    """Whether ranks were stopped only so that a spare node gets some: the run goes on with it."""
    return MEETING in environment and (Path(environment[MEETING]).parent / JOIN).exists()


def crash_line(error: Exception, kept_in: str) -> str:
    """One line for what ended a rank.

    >>> crash_line(RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:37772."), "e.log")
    'rank 0 lost another rank and stops; see e.log'
    >>> crash_line(ValueError("odd"), "e.log")
    'rank 0 stops: ValueError: odd; see e.log'
    """
    rank = f"rank {os.environ.get('RANK', '0')}"
    text = (str(error).splitlines() or [""])[0]
    if any(sign in text for sign in LOST_PEER):
        return f"{rank} lost another rank and stops; see {kept_in}"
    return f"{rank} stops: {type(error).__name__}: {text}; see {kept_in}"


def _keep_traceback(folder: Path) -> str:
    """Add the exception under way to this rank's file of errors; where it is."""
    path = folder / f"errors-rank{os.environ.get('RANK', '0')}.log"
    try:
        with open_lines(path) as stream:
            stream.write(f"{traceback.format_exc()}\n")
    except (OSError, InputError):
        return f"the message above\n{traceback.format_exc()}"  # a full disk must not hide the reason
    return str(path)


def _record_error(folder: Path, error: InputError) -> None:
    """Write why the run ended, unless another rank already has."""
    status = read_status(folder)
    if status is None or status.state != "error":
        ended = RunStatus(state="error", what=error.what, cause=error.cause, fix=error.fix)
        write_json(folder / STATUS_FILE, ended)


@contextlib.contextmanager
def _present(folder: Path) -> Iterator[None]:
    """Keep a file while this rank lives: one that is left behind tells which rank was killed.

    SIGTERM while a rank is starting is sent on behalf of another rank: it goes at once and without a word. An
    exception would be raised in whatever is being imported, which may print it, change it or go on.
    """
    mark = folder / RANKS_FOLDER / os.environ.get("RANK", "0")
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(str(os.getpid()), encoding="utf-8")

    def leave(_signal: int, _frame: FrameType | None) -> None:
        mark.unlink(missing_ok=True)
        os._exit(FAILED)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def leave_process(code: int) -> NoReturn:
    """End this process once what was registered for its end is done, and leave the interpreter as it is.

    A reader of tables keeps threads that may ask for the interpreter while it is taken apart, which Python
    answers by ending them, and C++ by aborting the process: a finished run would count as failed.
    """
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to call what wandb and others registered
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # whoever read it has gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave_process(main(sys.argv[1:]))
