"""What launchers of a job tell each machine of it: a table of their variables, and what it comes to here.

A launcher is recognised by its variables alone. Where one runs inside another, the inner one's word counts;
two of which neither can have started the other must agree. What none of them says, the user does:
``--nnodes``, and ``NODE_RANK`` in the environment or ``--rdzv-endpoint``, by which nodes number themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from executor.launch.nodes import UNNUMBERED, Nodes, VariableError, count_of, repeated_counts, unreadable
from topology.base.errors import InputError

NODE_RANK, RDZV_ENDPOINT = "NODE_RANK", "--rdzv-endpoint"
PET_NNODES = "PET_NNODES"
_SAFE = re.compile(r"[A-Za-z0-9_@.-]{1,120}")
_RANGE = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """One launcher's variables; of several names the first that is set counts.

    Attributes:
        name: What its users call it.
        known_by: It has started us where all names of one of these are set.
        count: Nodes of the job, or ``MIN:MAX`` of them; none where it does not say.
        rank: Number of this node, from 0.
        launchers: Processes that it has started on this node, or on each: it must be one.
        once: How it is told to start one.
        launch: Together the name of this start of the job, the same on every node; none where it has none.
        numbered: Whether those are numbers.
        hosts: The job's hosts, one a line.
        gpus: GPUs of a node.
        inside: Launchers that it may run inside of.
        source: Where the variables are described.
    """

    name: str
    known_by: tuple[tuple[str, ...], ...]
    count: tuple[str, ...] = ()
    rank: tuple[str, ...]
    launchers: tuple[str, ...] = ()
    once: str = ""
    launch: tuple[str, ...] = ()
    numbered: bool = False
    hosts: str = ""
    gpus: str = ""
    inside: tuple[str, ...] = ()
    source: str


_SLURM_COUNTS = ("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_SITES = ("Kubeflow", "SkyPilot", "Slurm", "PMIx", "Kubernetes")
SCHEDULERS: tuple[Launcher, ...] = (
    Launcher(
        name="Ray Train",
        known_by=(("RAY_JOB_ID", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),),
        count=("WORLD_SIZE",),
        rank=("RANK",),
        launchers=("LOCAL_WORLD_SIZE",),
        once="with a worker a node: ScalingConfig(placement_strategy='STRICT_SPREAD')",
        launch=("RAY_JOB_ID",),
        inside=("Open MPI", "MPICH or Intel MPI", *_SITES),
        source="ray 2.60, ray/train/torch/config.py; RAY_JOB_ID of its raylet",
    ),
    Launcher(
        name="Open MPI",
        known_by=(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),),
        count=("OMPI_COMM_WORLD_SIZE",),
        rank=("OMPI_COMM_WORLD_RANK",),
        launchers=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        once="with mpirun --map-by ppr:1:node",
        launch=("PMIX_NAMESPACE",),
        inside=_SITES,
        source="docs.open-mpi.org, Environment variables set for MPI applications; seen of 5.0.11",
    ),
    Launcher(
        name="MPICH or Intel MPI",
        known_by=(("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"), ("PMI_SIZE", "PMI_RANK", "PMI_LOCAL_SIZE")),
        count=("PMI_SIZE",),
        rank=("PMI_RANK",),
        launchers=("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        once="with mpiexec -ppn 1",
        inside=_SITES,
        source="Hydra's process manager, seen of MPICH 5.0.2; PMI_LOCAL_SIZE of Cray PALS",
    ),
    Launcher(
        name="Kubeflow",
        known_by=(("PET_NNODES", "PET_NODE_RANK"), ("PET_NNODES", "RANK")),
        count=("PET_NNODES",),
        rank=("PET_NODE_RANK", "RANK"),
        launch=("PET_RDZV_ID",),
        inside=("SkyPilot", "Slurm", "PMIx"),
        source="kubeflow.org, TrainJob's torch policy and PyTorchJob; names of torchrun's options",
    ),
    Launcher(
        name="SkyPilot",
        known_by=(("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK"),),
        count=("SKYPILOT_NUM_NODES",),
        rank=("SKYPILOT_NODE_RANK",),
        launch=("SKYPILOT_TASK_ID",),
        hosts="SKYPILOT_NODE_IPS",
        gpus="SKYPILOT_NUM_GPUS_PER_NODE",
        inside=("Slurm", "PMIx", "Kubernetes"),
        source="docs.skypilot.co, Secrets and environment variables; sky/skylet/constants.py of 0.14.1",
    ),
    Launcher(
        name="Slurm",
        known_by=tuple((name,) for name in _SLURM_COUNTS),
        count=_SLURM_COUNTS,
        rank=("SLURM_NODEID",),
        launchers=("SLURM_STEP_TASKS_PER_NODE",),
        once="with srun --ntasks-per-node=1",
        launch=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
        numbered=True,
        inside=("PMIx", "Kubernetes"),
        source="slurm.schedmd.com/srun.html, output environment variables",
    ),
    Launcher(
        name="PMIx",
        known_by=(("PMIX_NAMESPACE", "PMIX_RANK"),),
        rank=("PMIX_RANK",),
        launch=("PMIX_NAMESPACE",),
        inside=("Kubernetes",),
        source="PMIx 5, environmental variables that a server sets for its clients",
    ),
    Launcher(
        name="Kubernetes",
        known_by=(("JOB_COMPLETION_INDEX",),),
        rank=("JOB_COMPLETION_INDEX",),
        source="kubernetes.io, Jobs, completion mode Indexed, as JobSet's jobs are",
    ),
)
"""From the inside out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFacts:
    """What one launcher says: `count` None where it does not, `least` nodes that it would go on with."""

    scheduler: Launcher
    count: int | None
    least: int
    rank: int


def nodes_here(environment: Mapping[str, str], asked: str | None = None, meet: str | None = None) -> Nodes:
    """The nodes of the run as this one sees them, from its launcher and ``--nnodes``; else this node alone.

    Args:
        environment: variables of this process.
        asked: ``--nnodes``, a number or MIN:MAX.
        meet: ``--rdzv-endpoint``, where nodes that nothing numbers do so (`executor.launch.numbers`).

    >>> nodes_here({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "1"})
    Nodes(count=2, rank=1, launch='7.0.0', least=0, come=2, announced_by='Slurm')
    """
    try:
        return _nodes_here(environment, asked, meet)
    except VariableError as error:
        alone = _or_alone(environment) if asked is None else ""
        raise InputError(error.what, error.cause, f"{error.fix}{alone}") from error


def _nodes_here(environment: Mapping[str, str], asked: str | None, meet: str | None) -> Nodes:
    """The same, without a word on what else helps."""
    least, most = node_range("--nnodes", asked) if asked is not None else (0, 0)
    place = recognised_launcher(environment)
    if place is None:
        return _alone(environment, most, least, meet)
    name = place.scheduler.name
    if place.count is None and not most:
        raise InputError(
            what=f"{name} says which node this is, and not of how many",
            cause=f"{place.scheduler.rank[0]} is {place.rank}, and no --nnodes",
            fix="give --nnodes, the same on every node (1 for this node alone)",
        )
    come = most if place.count is None else place.count
    _check_asked(name, come, asked, least, most)
    count = most or come
    if count == 1:
        return Nodes()
    if place.rank >= come:
        raise _beyond(place, environment, come)
    launch = _launch(place.scheduler, environment)
    return Nodes(
        count=count, rank=place.rank, launch=launch, least=least or place.least, come=come, announced_by=name
    )


def recognised_launcher(environment: Mapping[str, str]) -> LauncherFacts | None:
    """The innermost launcher's word; those it cannot run inside of must say the same."""
    there = [scheduler for scheduler in SCHEDULERS if _is_there(scheduler, environment)]
    if not there:
        return None
    inner = _place(there[0], environment)
    for other in there[1:]:
        if other.name not in inner.scheduler.inside:
            _check_agree(inner, _place(other, environment))
    return inner


def node_range(name: str, text: str) -> tuple[int, int]:
    """Read a number of nodes as torchrun takes it: the fewest (0 where only one number is given), the most.

    >>> node_range("--nnodes", "4"), node_range("--nnodes", "2:4")
    ((0, 4), (2, 4))
    """
    match = _RANGE.fullmatch(text)
    first, most = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
    if not 0 < first <= most:
        raise unreadable(name, text, "a number of nodes, or MIN:MAX with 0 < MIN ≤ MAX")
    return first if match is not None and match[2] else 0, most


def check_gpus(environment: Mapping[str, str], ranks: int) -> None:
    """Refuse a node that has been given fewer GPUs than it has ranks, where its launcher says how many."""
    place = recognised_launcher(environment)
    if place is None or not environment.get(place.scheduler.gpus):
        return
    name = place.scheduler.gpus
    gpus = count_of(environment, name, default=0)
    if 0 < gpus < ranks:  # SkyPilot says 0 of a node without
        raise InputError(
            what="a node of the job has fewer GPUs than the plan has ranks on it",
            cause=f"{name} is {gpus}, the plan has {ranks} ranks a node",
            fix="ask for nodes of as many GPUs, or plan again for what there is",
        )


def nodes_line(nodes: Nodes) -> str:
    """One line that says what was recognised; empty where nothing was."""
    if not nodes.announced_by or nodes.count == 1:
        return ""
    some = (
        f"{nodes.come} of at most {nodes.count} nodes" if nodes.come < nodes.count else f"{nodes.count} nodes"
    )
    how = "numbered" if nodes.announced_by == RDZV_ENDPOINT else "started"
    return f"{how} by {nodes.announced_by}: node {nodes.rank} (from 0) of {some}"


def alone_hint(nodes: Nodes, environment: Mapping[str, str], meet: str | None = None) -> str:
    """What helps where others do not come: in a job's shell Slurm starts a command on the first node alone.

    Nodes that number themselves learn who the first one is.
    """
    if nodes.announced_by == RDZV_ENDPOINT and nodes.rank:
        return f"; node 0 is the one whose address is that of {RDZV_ENDPOINT} {meet}"
    if nodes.announced_by != "Slurm" or "SLURM_STEP_ID" in environment:
        return ""
    once = next(scheduler.once for scheduler in SCHEDULERS if scheduler.name == nodes.announced_by)
    return f"; start it {once}"


def _alone(environment: Mapping[str, str], most: int, least: int, meet: str | None) -> Nodes:
    """Without a launcher's word: this node, or the place among several that the environment gives it."""
    if most == 0 and meet is None:
        _check_ranked(environment)
    elif most == 0 and PET_NNODES in environment:
        least, most = node_range(PET_NNODES, environment[PET_NNODES])
    if most <= 1:
        return Nodes()
    if NODE_RANK not in environment and meet is not None:
        launch = f"at-{re.sub('[^A-Za-z0-9_.-]', '-', meet)[:100]}"
        return Nodes(
            count=most, rank=UNNUMBERED, launch=launch, least=least, come=most, announced_by=RDZV_ENDPOINT
        )
    if NODE_RANK not in environment:
        known = ", ".join(scheduler.name for scheduler in SCHEDULERS)
        raise InputError(
            what=f"nothing says which of {most} nodes this is",
            cause=f"{NODE_RANK} is not set, and no launcher is recognised ({known})",
            fix=f"give {RDZV_ENDPOINT} HOST:PORT, by which nodes number themselves (not with --engine), "
            f"set {NODE_RANK} on each node, from 0 to {most - 1}, or leave --nnodes out",
        )
    rank = count_of(environment, NODE_RANK, default=0)
    if rank >= most:
        raise unreadable(NODE_RANK, str(rank), f"a number below --nnodes = {most}")
    return Nodes(count=most, rank=rank, launch="nodes", least=least, come=most, announced_by=NODE_RANK)


def _check_ranked(environment: Mapping[str, str]) -> None:
    """Refuse a pod of several that has no rank, as of an elastic PyTorchJob without a master."""
    text = environment.get(PET_NNODES)
    most = node_range(PET_NNODES, text)[1] if text is not None else 0
    if most > 1:
        raise InputError(
            what=f"nothing says which of {most} nodes this is",
            cause=f"{PET_NNODES} is {text}, and neither PET_NODE_RANK nor RANK is set",
            fix=f"give {RDZV_ENDPOINT} HOST:PORT, or set PET_NODE_RANK on each pod, from 0 to {most - 1}, "
            "or give --nnodes 1 for this pod alone",
        )


def _is_there(scheduler: Launcher, environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started this process."""
    return any(all(name in environment for name in names) for names in scheduler.known_by)


def _place(scheduler: Launcher, environment: Mapping[str, str]) -> LauncherFacts:
    """Read one launcher's variables."""
    _check_once(scheduler, environment)
    count_name, rank_name = _set(scheduler.count, environment), _set(scheduler.rank, environment)
    rank = count_of(environment, rank_name, default=0)
    if not count_name:
        return LauncherFacts(scheduler=scheduler, count=None, least=0, rank=rank)
    text = environment[count_name]
    least, count = node_range(count_name, text) if ":" in text else (0, 0)
    count = count or count_of(environment, count_name, default=1, least=1)
    _check_hosts(scheduler, environment, count_name, count)
    return LauncherFacts(scheduler=scheduler, count=count, least=least, rank=rank)


def _set(names: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """The first of these variables that is set, else the last name; empty where there are no names."""
    return next((name for name in names if name in environment), names[-1] if names else "")


def _check_once(scheduler: Launcher, environment: Mapping[str, str]) -> None:
    """Refuse several launchers on one node."""
    name = next((launcher for launcher in scheduler.launchers if launcher in environment), "")
    if name and any(count > 1 for count in repeated_counts(name, environment[name])):
        raise InputError(
            what=f"{scheduler.name} starts plan run more than once on a node",
            cause=f"{name} is {environment[name]!r}; one launcher starts all ranks of its node",
            fix=f"start it {scheduler.once}",
        )


def _or_alone(environment: Mapping[str, str]) -> str:
    """Which counts to unset to run on this machine alone, where that has this effect."""
    there = next((scheduler for scheduler in SCHEDULERS if _is_there(scheduler, environment)), None)
    counts = [name for name in there.count if name in environment] if there else []
    rest = {name: value for name, value in environment.items() if name not in counts}
    if not counts or any(_is_there(scheduler, rest) for scheduler in SCHEDULERS):
        return ""
    return f", or unset {' and '.join(counts)} to run on this machine alone"


def _check_hosts(scheduler: Launcher, environment: Mapping[str, str], name: str, count: int) -> None:
    """Refuse a list of hosts of another length than the count of nodes."""
    if not environment.get(scheduler.hosts):
        return
    listed = len(environment[scheduler.hosts].split())
    if listed != count:
        raise VariableError(
            what=f"{scheduler.name} contradicts itself",
            cause=f"{name} is {count}, {scheduler.hosts} lists {listed}",
            fix=f"set both as {scheduler.name} does",
        )


def _check_agree(inner: LauncherFacts, other: LauncherFacts) -> None:
    """Refuse two launchers that say different things."""
    counts = inner.count is None or other.count is None or inner.count == other.count
    if counts and inner.rank == other.rank:
        return
    values = [
        f"{place.scheduler.name} says node {place.rank}" + (f" of {place.count}" if place.count else "")
        for place in (inner, other)
    ]
    raise InputError(
        what="two launchers contradict each other",
        cause=", ".join(values),
        fix=f"unset {other.scheduler.rank[0]} or {inner.scheduler.rank[0]}, whichever did not start this",
    )


def _check_asked(name: str, come: int, asked: str | None, least: int, most: int) -> None:
    """Refuse an ``--nnodes`` that the launcher's own count is not within."""
    if asked is not None and not (least or most) <= come <= most:
        raise InputError(
            what="--nnodes contradicts what started this",
            cause=f"--nnodes {asked}, {name} says {come} nodes",
            fix=f"give --nnodes {come} or leave it out, or start as many nodes as the plan has",
        )


def _beyond(place: LauncherFacts, environment: Mapping[str, str], count: int) -> InputError:
    """A rank that no node of so many has."""
    scheduler = place.scheduler
    counted = _set(scheduler.count, environment) or "--nnodes"
    return unreadable(
        _set(scheduler.rank, environment), str(place.rank), f"a number below {counted} = {count}"
    )


def _launch(scheduler: Launcher, environment: Mapping[str, str]) -> str:
    """Name of this start of the job, fit for a folder's; the launcher's own name where it gives none."""
    if scheduler.numbered:
        return ".".join(str(count_of(environment, name, default=0)) for name in scheduler.launch)
    parts = [environment[name] for name in scheduler.launch if environment.get(name)]
    for name in scheduler.launch:
        if environment.get(name) and not (
            _SAFE.fullmatch(environment[name]) and environment[name].strip(".")
        ):
            raise unreadable(name, environment[name], "letters, digits, - _ @ and . as a name")
    return ".".join(parts) or scheduler.name.replace(" ", "-").lower()
