"""Carry out `plan serve --rehearse`: start the saved scripts with stand-ins, load them, compare, end them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topology.base.errors import InputError, shortened

if TYPE_CHECKING:
    from app.reports.answer import Table
    from planner.analysis.serving.rehearsal import Rehearsed
    from planner.deployment.placement import PlacedWorker
    from planner.rehearsal.script import LocalPort, MeasuredRequests, RehearsalScript
    from planner.serving.plan import ServingPlan, ServingRequest
    from topology.fabric.hierarchy import Hierarchy

MOST_SERVERS: Final = 16
"""Processes of Python that a small machine keeps in time."""
TOKENS_PER_S: Final = 1500.0
"""Tokens that two cores pass on a second; a fleet that makes more is rehearsed in slow motion."""
LEAST_FIRST_S: Final = 0.6
"""A first token that travels through two processes is a few milliseconds late, under load ten."""
SPAN_S: Final = 60.0
START_S: Final = 30.0
END_S: Final = 5.0
PERCENTILES: Final = (50, 90, 99)
WORDS: Final = {"ttft": "time to first token", "tpot": "time per output token"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Latencies of a load in seconds, simulated and measured, at `PERCENTILES`, by what they are of."""

    requests: int
    servers: int
    slowdown: float
    simulated: Mapping[str, tuple[float, ...]]
    measured: Mapping[str, tuple[float, ...]]

    def error(self, name: str, which: int) -> float:
        """Measured over simulated, less one, of `ttft` or `tpot` at one of the `PERCENTILES`."""
        return self.measured[name][which] / max(self.simulated[name][which], 1e-9) - 1

    def furthest(self) -> str:
        """Where measured and simulated differ most, in words."""
        of = [
            (name, i) for name in self.simulated for i in range(len(PERCENTILES)) if self.simulated[name][i]
        ]
        name, i = max(of, key=lambda pair: abs(self.error(*pair)))
        return f"{self.error(name, i):+.1%} ({WORDS[name]}, p{PERCENTILES[i]})"


def hierarchy_of(plan: ServingPlan, asked: Sequence[tuple[ServingRequest, Hierarchy]]) -> Hierarchy:
    """The fabric that a plan was found on, among those that were asked for."""
    return next(
        fabric
        for request, fabric in asked
        if (request.gpu, request.weights) == (plan.request.gpu, plan.request.weights)
    )


def rehearse(
    plan: ServingPlan, hierarchy: Hierarchy, *, span_s: float | None = None, slowdown: float | None = None
) -> Rehearsal:
    """Start what `plan serve --save-dir` saves, with stand-ins for the engine, and measure it.

    Args:
        plan: The fleet.
        hierarchy: The fabric it was planned on.
        span_s: Seconds of the question's load that are sent; by default what is sent in a minute.
        slowdown: How many times slower than planned; by default as slow as this machine needs.
    """
    import numpy as np

    from app.reports.answer import note
    from costmodel.kernels.tables import load_calibration
    from planner.analysis.serving.rehearsal import rehearsed, simulated
    from planner.deployment.placement import servers_of

    servers = servers_of(plan)
    if len(servers) > MOST_SERVERS:
        raise InputError(
            what="the fleet is too large to be rehearsed here",
            cause=f"{len(servers)} servers, of which {MOST_SERVERS} can be played",
            fix="rehearse a part of it: give --gpus, and a share of the rate",
        )
    slow = slowdown or _slowdown(plan)
    fleet = rehearsed(load_calibration(), plan, hierarchy, span_s=span_s or SPAN_S / slow)
    note(announced(fleet, len(servers), slow))
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
        measured = _measured(Path(name), plan, servers, fleet, slow)
    expected = simulated(fleet)

    def shares(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(float(x) for x in np.percentile(values, PERCENTILES)) if len(values) else (0.0,) * 3

    return Rehearsal(
        requests=len(fleet.load),
        servers=len(servers),
        slowdown=slow,
        simulated={"ttft": shares(expected[0].tolist()), "tpot": shares(expected[1].tolist())},
        measured={"ttft": shares(measured.ttft_s), "tpot": shares(measured.tpot_s)},
    )


def rehearsal_table(rehearsal: Rehearsal) -> Table:
    """Measured beside simulated, in the plan's time."""
    from app.reports.answer import Table
    from topology.base.units import format_seconds

    rows = tuple(
        (
            f"{WORDS[name]}, p{percentile}",
            format_seconds(rehearsal.simulated[name][i]),
            format_seconds(rehearsal.measured[name][i]),
            f"{rehearsal.error(name, i):+.1%}",
        )
        for name in rehearsal.simulated
        for i, percentile in enumerate(PERCENTILES)
        if rehearsal.simulated[name][i]
    )
    slow = f", {rehearsal.slowdown:.2g} times slower than planned" if rehearsal.slowdown > 1 else ""
    servers = f"{rehearsal.servers} server{'s' * (rehearsal.servers > 1)}"
    return Table(
        title="Rehearsal",
        columns=("", "simulated", "measured", "difference"),
        rows=rows,
        note=f"{rehearsal.requests} requests to {servers} started by the saved scripts{slow}; stand-ins "
        "sleep where the engine would compute, so this checks commands, router and queues, not the "
        "times of steps",
    )


def announced(fleet: Rehearsed, servers: int, slowdown: float) -> str:
    """What is about to be played, and how long that takes: the load, and its last answer."""
    from planner.analysis.serving.rehearsal import simulated
    from topology.base.units import format_seconds

    ttft_s, tpot_s = simulated(fleet)
    load = fleet.load
    last_s = float(ttft_s.max()) + float(tpot_s.max(initial=0.0)) * int(load.output_tokens.max())
    if load.concurrency is None:
        last_s += float(load.arrival_s.max())
    else:
        stay_s = (
            float(ttft_s.mean()) + float(tpot_s.mean() if len(tpot_s) else 0.0) * load.output_tokens.mean()
        )
        last_s += stay_s * (len(load) - load.concurrency) / load.concurrency
    slow = f", {slowdown:.2g} times slower than planned" if slowdown > 1 else ""
    counted = f"{servers} server{'s' * (servers > 1)}"
    return f"rehearsing {len(load)} requests to {counted}{slow}: about {format_seconds(last_s * slowdown)}"


def _slowdown(plan: ServingPlan) -> float:
    """How much slower than planned, so that what the processes of this machine add is little beside it."""
    first_s = max(plan.estimate.ttft.p50_s, 1e-3)
    return max(plan.estimate.output_tokens_per_s / TOKENS_PER_S, LEAST_FIRST_S / first_s, 1.0)


def _measured(
    folder: Path, plan: ServingPlan, servers: Sequence[PlacedWorker], fleet: Rehearsed, slowdown: float
) -> MeasuredRequests:
    """Save the deployment, start every script of it, and read what its load test wrote."""
    from planner.deployment.folder import folder as deployment
    from planner.rehearsal.programs import write_programs
    from planner.rehearsal.script import MeasuredRequests, write_script
    from topology.base.decode import read_json, structure

    saved = folder / "saved"
    saved.mkdir()
    for name, text in deployment(plan).items():
        (saved / name).write_text(text, encoding="utf-8")
    write_programs(folder / "programs")
    script = _script(folder, plan, servers, fleet, slowdown)
    write_script(folder / "rehearsal.json", script)
    scripts = sorted(path.name for path in saved.glob("node*.sh"))
    router = ["router.sh"] * (saved / "router.sh").exists()
    with _started(folder, servers, [*scripts, *router]) as environment:
        done = _load_test(folder, environment, script.life_s)
    if done.returncode != 0 or not Path(script.results).exists():
        line = (done.stderr.strip().splitlines() or ["no result"])[-1]
        raise InputError(
            what="the deployment did not serve its load",
            cause=shortened(_last_words(saved) or line),
            fix="rehearse on an idle machine, or look at the scripts of --save-dir",
        )
    return structure(read_json(script.results), MeasuredRequests, "what the rehearsal's client wrote")


def _load_test(
    folder: Path, environment: Mapping[str, str], life_s: float
) -> subprocess.CompletedProcess[str]:
    """The load test of the deployment, ended with all it started when its time is over."""
    process = subprocess.Popen(
        ["bash", str(folder / "saved" / "loadtest.sh")], env=dict(environment), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=life_s)
    except subprocess.TimeoutExpired:
        out, err = "", "its time was over"
    finally:
        _end([process])
    return subprocess.CompletedProcess(process.args, process.returncode or 0, out, err)


def _last_words(saved: Path) -> str:
    """The last line that a server which ended has logged."""
    logs = sorted((saved / "logs").glob("*.log")) if (saved / "logs").exists() else []
    lines = [
        line for log in logs for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
    ]
    return "; ".join(dict.fromkeys(lines))


def _script(
    folder: Path, plan: ServingPlan, servers: Sequence[PlacedWorker], fleet: Rehearsed, slowdown: float
) -> RehearsalScript:
    """What every process is told: who listens where, and what is sent."""
    from planner.rehearsal.script import ClientLoad, RehearsalScript

    load = fleet.load
    arrivals = load.arrival_s.tolist() or [0.0]
    stay_s = plan.estimate.end_to_end.p99_s * (
        1 if load.concurrency is None else len(load) / load.concurrency
    )
    return RehearsalScript(
        doors=_doors(servers),
        pools=dict(fleet.pools),
        requests=ClientLoad(
            input_tokens=tuple(load.input_tokens.tolist()),
            output_tokens=tuple(load.output_tokens.tolist()),
            cached_tokens=tuple(load.cached_tokens.tolist()),
            arrival_s=tuple(load.arrival_s.tolist()),
            concurrency=load.concurrency,
        ),
        results=str(folder / "measured.json"),
        slowdown=slowdown,
        transfer_s=fleet.transfer.latency_s,
        transfer_s_per_token=fleet.transfer.s_per_token,
        life_s=START_S + (float(arrivals[-1]) + 3 * stay_s) * slowdown * 1.5,
    )


def _doors(servers: Sequence[PlacedWorker]) -> dict[str, LocalPort]:
    """A free port for every address of the deployment; of what clients ask also as localhost."""
    from planner.deployment.kubernetes import PORT
    from planner.deployment.placement import nodes_of
    from planner.rehearsal.script import LOOPBACK, LocalPort

    nodes = nodes_of(servers)
    wanted = {f"{_address(server.nodes[0], nodes)}:{server.port}": server.role for server in servers}
    if not servers[0].alone:
        wanted[f"localhost:{PORT}"] = ""
    doors = {}
    with contextlib.ExitStack() as held:
        for address, role in wanted.items():
            door = held.enter_context(socket.socket())
            door.bind((LOOPBACK, 0))
            doors[address] = LocalPort(port=door.getsockname()[1], role=role)
    if servers[0].alone:
        doors[f"localhost:{PORT}"] = next(iter(doors.values()))
    return doors


def _address(node: int, nodes: int) -> str:
    """What the rehearsal calls a node: of one the address that its scripts have, of several a name."""
    return "127.0.0.1" if nodes == 1 else f"node-{node}"


@contextlib.contextmanager
def _started(
    folder: Path, servers: Sequence[PlacedWorker], scripts: Sequence[str]
) -> Iterator[dict[str, str]]:
    """Start scripts as their user would, and end them with everything they started."""
    import planner
    from planner.deployment.placement import nodes_of
    from planner.rehearsal.script import NODE, VARIABLE

    nodes = nodes_of(servers)
    root = str(Path(planner.__file__).parents[1])
    environment = {
        **os.environ,
        **{f"NODE_{node}": _address(node, nodes) for node in range(nodes)},
        "PATH": f"{folder / 'programs'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        VARIABLE: str(folder / "rehearsal.json"),
    }
    started = []
    try:
        for name in scripts:
            node = name.removeprefix("node").removesuffix(".sh")
            here = {NODE: _address(int(node), nodes)} if node.isdigit() else {}
            log = (folder / f"{name}.log").open("wb")
            with log:
                process = subprocess.Popen(
                    ["bash", str(folder / "saved" / name)],
                    env={**environment, **here},
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
                started.append(process)
        yield environment
    finally:
        _end(started)


def _end(processes: Sequence[subprocess.Popen[str] | subprocess.Popen[bytes]]) -> None:
    """End process groups: asked first, then without asking."""
    for signal_ in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal_)
        until = time.monotonic() + END_S
        for item in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                item.wait(max(until - time.monotonic(), 0.1))
