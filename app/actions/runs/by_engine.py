"""`plan run --engine`: start a plan by the engine that it is for, once the executor has checked its twin.

The launch bundle of `plan export` is written into the run's folder and its `start.sh` is run on this node.
What a flag says reaches the engine by the bundle's own variables; a flag that has none is refused.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from topology.base.errors import InputError
from topology.base.files import read_bytes

if TYPE_CHECKING:
    from app.reports.answer import Answer
    from executor.launch.nodes import Nodes
    from planner.plan import Plan

OWN_ENGINE = "meshplan"
START = "start.sh"
MEETING_S, LOOK_S = 600, 0.5  # that a node waits for the first one's files
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NUMBERS = frozenset(("TRAIN_ITERS", "LEARNING_RATE"))
VARIABLE_OF = {
    "steps": "TRAIN_ITERS", "learning_rate": "LEARNING_RATE", "data": "DATA_PATH", "tokenizer": "TOKENIZER",
}  # fmt: skip
"""Flags that bundles have a variable for, where their engine takes it."""
NEEDS_NO_VARIABLE = frozenset(
    (
        "plan_file", "model", "gpus", "gpu", "cluster", "sequence_length", "global_batch_size", "tokens",
        "settings", "settings_file", "engine", "folder", "nnodes", "rdzv_endpoint", "preflight", "dry_run",
        "accept_changes", "as_json",
    )
)  # fmt: skip


def engine_named(name: str) -> str:
    """The engine of a name, leniently; `meshplan` is the executor itself."""
    from planner.engines.contracts import engine_aliases
    from planner.launch.entries import ENTRIES
    from topology.base.names import resolve

    return resolve(name, tuple(ENTRIES), "engine", engine_aliases())


def require_for(plan: Plan, engine: str) -> None:
    """Refuse to start a plan by an engine that it is not for: another one would run something else."""
    from planner.plan import FREE

    planned = plan.request.engine
    if planned != engine:
        raise InputError(
            what=f"the plan is not for {engine}",
            cause=f"it keeps the contract of {'no engine' if planned == FREE else planned}",
            fix=f"plan with --for {engine}, or give --engine {OWN_ENGINE if planned == FREE else planned}",
        )


def bundle_variables(engine: str, given: Mapping[str, object], steps: int) -> dict[str, str]:
    """Variables of the engine's bundle, from flags first and the environment then; none may be missing.

    Args:
        engine: its name.
        given: flags that were given, by the name of their parameter.
        steps: of the job's tokens, where no flag says.
    """
    from planner.launch.entries import ENTRIES

    entry = ENTRIES[engine]
    named = {flag: name for flag, name in VARIABLE_OF.items() if name in entry.variables}
    without = sorted(given.keys() - named.keys() - NEEDS_NO_VARIABLE)
    if without:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in without)
        raise InputError(
            what=f"{engine} is not told {flags}",
            cause="its start.sh takes " + ", ".join(entry.variables),
            fix="leave it out; what else the engine is told goes behind start.sh, which --dry-run writes",
        )
    of_flags = {named[flag]: str(value) for flag, value in given.items() if flag in named}
    if "DATA_PATH" in of_flags:
        of_flags["DATA_PATH"] = _indexed(of_flags["DATA_PATH"])
    usual = {"TRAIN_ITERS": str(steps)}
    result = {
        name: of_flags.get(name) or os.environ.get(name) or usual.get(name, "") for name in entry.variables
    }
    result = {name: value if name in NUMBERS else _from_here(value) for name, value in result.items()}
    missing = [f"{name} ({what})" for name, what in entry.variables.items() if not result[name]]
    if missing:
        ways = [f"set them in the environment, as {missing[0].split()[0]}=… plan run …"]
        ways += [f"--{flag.replace('_', '-')} is {name}" for flag, name in named.items() if not result[name]]
        raise InputError(
            what=f"{engine} needs what no plan says",
            cause=f"not set: {'; '.join(missing)}",
            fix="; ".join(ways),
        )
    return result


def _from_here(value: str) -> str:
    """A value, in full where it names something of the working directory: the engine starts in its own.

    Megatron-LM's data are named without the ends of their two files.
    """
    here = any(Path(value + end).exists() for end in ("", ".idx")) if value else False
    return str(Path(value).resolve()) if here else value


def _indexed(data: str) -> str:
    """Megatron-LM's name of an indexed data set, the prefix of its two files, of what --data names.

    Raises:
        InputError: It is something that only the executor reads: a blend, text, arrays, or made up.
    """
    prefix = data.removesuffix(".bin").removesuffix(".idx")
    if not Path(f"{prefix}.idx").is_file():
        raise InputError(
            what=f"--data {data} is not handed on to another engine",
            cause=f"that reads one indexed data set, and there is no {prefix}.idx",
            fix="make one by plan tokenize, or say DATA_PATH in the environment in the engine's own words",
        )
    return prefix


def write_bundle(plan: Plan, engine: str, folder: Path, rank: int) -> tuple[str, ...]:
    """Write the engine's files once, by the first node of a run: what is left to tell.

    Others wait for them, and so does nobody where the same run starts again.

    Raises:
        InputError: The folder holds something else, or the first node wrote nothing.
    """
    from app.reports.answer import write_folder
    from planner.launch.bundle import bundle

    files, notes = bundle(plan, engine, "torchrun")
    waits_s = float(MEETING_S if rank else 0)
    while not all(_holds(folder / name, text) for name, text in files.items()):
        if rank == 0:
            write_folder(folder, files)
        elif waits_s <= 0:
            raise InputError(
                what="the first node has not written the run",
                cause=f"{folder} has not all of {len(files)} files after {MEETING_S} s",
                fix="give every node the same --run-dir, on a file system that they share, and one plan",
            )
        else:
            time.sleep(LOOK_S)
            waits_s -= LOOK_S
    return notes


def _holds(path: Path, text: str) -> bool:
    """Whether a file has just this text."""
    return path.is_file() and read_bytes(path).decode("utf-8", errors="replace") == text


def rendezvous_of(plan: Plan, nodes: Nodes, endpoint: str | None) -> dict[str, str]:
    """NODE_RANK and where ranks meet, of this node.

    Raises:
        InputError: The job has another number of nodes than the plan, or nobody says where they meet.
    """
    from planner.launch.machines import hosts_by_kind

    planned = hosts_by_kind(plan).nodes
    if nodes.count != planned:
        raise InputError(
            what="the job has another number of nodes than the plan",
            cause=f"{nodes.count} here, {planned} planned",
            fix=f"start it once on each of {planned} nodes (--nnodes {planned}), or plan for what is there",
        )
    host, _, port = (endpoint or "").rpartition(":")
    if nodes.count > 1 and not host:
        raise InputError(
            what="ranks of several nodes need a place to meet",
            cause=f"{nodes.count} nodes, no --rdzv-endpoint",
            fix="give --rdzv-endpoint HOST:PORT of the first node, the same on each",
        )
    meeting = {"MASTER_ADDR": host, "MASTER_PORT": port} if host else _loopback()
    return {"NODE_RANK": str(nodes.rank), **meeting}


def _loopback() -> dict[str, str]:
    """A free port of this machine alone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}


def run_start_script(folder: Path, environment: Mapping[str, str]) -> int:
    """Run `start.sh` to its end, passing signals to stop on: its exit code."""
    from app.terminal.progress import lives_on

    lives_on()
    process = subprocess.Popen(["bash", START], cwd=folder, env={**os.environ, **environment})

    def pass_on(number: int, _: object) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def started_by(
    engine: str,
    plan: Plan,
    given: Mapping[str, object],
    *,
    steps: int,
    folder: Path,
    nnodes: str | None,
    endpoint: str | None,
    checked: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Write the bundle, check the plan's claims by its twin, start the engine: the command's exit code."""
    from app.actions.validate import validated
    from app.errors import ANSWERED
    from app.reports.answer import emit, json_text, note, print_text
    from app.requests.plan_file import require_described
    from executor.launch.schedulers import nodes_here
    from planner.rules.verdict import require_room

    require_for(require_room(require_described(plan, "plan run")), engine)
    values = bundle_variables(engine, given, steps)
    nodes = nodes_here(os.environ, nnodes)
    place = rendezvous_of(plan, nodes, endpoint)
    folder = folder.resolve()
    if nodes.rank == 0 or not dry_run:
        for text in write_bundle(plan, engine, folder, nodes.rank):
            note(text)
    if dry_run:
        words = [f"{name}={shlex.quote(value)}" for name, value in {**values, **place}.items()]
        command = " ".join([*words, "bash", shlex.quote(str(folder / START))])
        document = json_text({"command": command, "run_dir": str(folder)})
        print_text(f"{document if as_json else command}\n", is_json=as_json)
        return ANSWERED
    if checked:
        answer = validated(plan, "plan run --engine")
        if answer.exit_code:
            return emit(answer, as_json=as_json)
        note(f"{answer.headline}; starting {engine}")
    else:
        note("--no-preflight: neither this node nor the plan's twin was checked")
    skipped = {} if checked else {"SKIP_PREFLIGHT": "1"}
    code = run_start_script(folder, {**values, **place, **skipped})
    return emit(_ended(engine, folder, code), as_json=as_json)


def _ended(engine: str, folder: Path, code: int) -> Answer:
    """How the engine ended on this node."""
    from app.reports.answer import Answer, Facts, json_text

    document = {"engine": engine, "run_dir": str(folder), "exit_code": code}
    return Answer(
        headline=f"{engine} ended" if code == 0 else f"{engine} failed with exit code {code}",
        sections=(Facts(title="", pairs=(("folder", str(folder)),)),),
        document=lambda: json_text(document),
        records=(document,),
        exit_code=0 if code == 0 else 1,
    )
