"""A folder that starts the engine a plan is for: settings, environment, ranks, checks and scheduler file.

Every launcher sets NODE_RANK and MASTER_ADDR and runs `start.sh` once on each node, which corrects both where
the user names the hosts in the plan's order; paths are relative to the folder, and what a user must name
stops the script with a message where it is unset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.campaign.saving import save_interval_steps
from planner.engines.contract import Contract
from planner.engines.contracts import CONTRACTS, engine_aliases
from planner.engines.formats import Files
from planner.engines.limit import Variable
from planner.engines.program import FILE
from planner.engines.quoting import shell, single_line
from planner.launch.cloud import sagemaker, skypilot, vertex
from planner.launch.containers import kubeflow, kubernetes, pytorchjob
from planner.launch.entries import ENTRIES, TORCHRUN, USUAL_SAVE_INTERVAL, Entry
from planner.launch.machines import PlanMachines, hosts_by_kind, require_equal, title_of
from planner.launch.makers import image_of
from planner.launch.node_order import (
    ANY,
    BLOCKS,
    HOSTS,
    HOSTS_ARE,
    KEEPS,
    NodeOrder,
    hosts_check,
    lookup,
    node_order,
    require_order,
)
from planner.launch.nvrx import resilience
from planner.launch.preflight import preflight
from planner.launch.programs import PLANNED_FILE, planned_script, program_lines
from planner.launch.ray import ray
from planner.launch.slurm import requeue, spare_nodes
from planner.launch.targets import TARGETS, engine_files
from planner.plan import Plan, to_json
from topology.base.errors import InputError
from topology.base.names import resolve
from topology.fabric.seats import seats


def bundle(plan: Plan, target: str, launcher: str, *, nearest: bool = False) -> tuple[Files, tuple[str, ...]]:
    """Every file of the folder, and what is left to the user.

    Args:
        plan: the plan.
        target: the engine, leniently named.
        launcher: what starts it, leniently named.
        nearest: as for `planner.launch.targets.export_plan`.
    """
    engine = resolve(target, tuple(ENTRIES), "engine", engine_aliases())
    how = resolve(launcher, tuple(LAUNCHERS), "launcher")
    contract = CONTRACTS[engine]
    where = hosts_by_kind(plan)
    entry = saving(plan, in_image(contract, ENTRIES[engine], where))
    if entry.launcher is not TORCHRUN or how not in UNEQUAL:
        require_equal(where, how if entry.launcher is TORCHRUN else contract.title)
    settings = engine_files(plan, contract, nearest=nearest)
    order = node_order(plan, where, lists_hosts=entry.lists_hosts)
    beside, values = resilience(plan, contract)
    notes = (*settings.notes, *values, *require_order(order, how, nearest=nearest))
    program = dict([entry.program]) if entry.program else {}
    if contract.program:
        program = {PLANNED_FILE: planned_script(next(iter(settings.files)), settings.files[FILE])}
    files = {
        **settings.files,
        **program,
        **beside,
        "environment.sh": environment(settings.variables, entry, where),
        "start.sh": node_script(entry, where, how),
        **lookup(order, how),
        **preflight(contract, entry, where),
        "ranks.csv": ranks(plan, where, order),
        **LAUNCHERS[how](plan, entry, where, order),
        "Dockerfile": dockerfile(entry),
        "plan.json": to_json(plan) + "\n",
    }
    return {**files, "README.md": readme(plan, contract, how, files, entry, order)}, notes


def environment(variables: Sequence[Variable], entry: Entry, where: PlanMachines) -> str:
    """Variables of the engine with why, and those that the user must name."""
    lines = ["# variables of every rank; source this file"]
    for variable in variables:
        lines += [f"# {variable.why}", f"export {variable.name}={shell(variable.value)}"]
    gpus = ",".join(map(str, range(where.gpus_per_node)))
    lines += [line.format(gpus=gpus) for line in where.maker.environment]
    lines += [f"# NUMA: {line}" for line in entry.numa]
    lines += [
        "# messages of NCCL, or of RCCL, only where something is wrong",
        'export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"',
    ]
    if where.reduces and where.nodes > 1:
        lines += [
            "# all-reduces are added up by the switches (SHARP), as the plan was priced; needs NCCL's plugin",
            'export NCCL_COLLNET_ENABLE="${NCCL_COLLNET_ENABLE:-1}"',
        ]
    for name, what in entry.variables.items():
        lines.append(f': "${{{name}:?name the {what}}}"; export {name}')
    return "\n".join(lines) + "\n"


def in_image(contract: Contract, entry: Entry, where: PlanMachines) -> Entry:
    """An engine's program with the base image of these GPUs and the last release that is described."""
    wanted = (
        f"{contract.package}=={contract.releases[-1]}.*" if entry.requirement is None else entry.requirement
    )
    return replace(entry, image=image_of(contract.engine, entry, where.maker), requirement=wanted)


def saving(plan: Plan, entry: Entry) -> Entry:
    """An engine's program that saves as often as the plan's campaign says, unless told SAVE_INTERVAL."""
    steps = save_interval_steps(plan)
    if steps is None:
        return entry
    return replace(entry, words=entry.words.replace(USUAL_SAVE_INTERVAL, f"${{SAVE_INTERVAL:-{steps}}}"))


def dockerfile(entry: Entry) -> str:
    """The image of a container: a base by version, the engine, and this folder."""
    install = [f"RUN {entry.install}"] if entry.install else []
    return "\n".join([f"FROM {entry.image}", *install, "WORKDIR /plan", "COPY . /plan", ""])


def node_script(entry: Entry, where: PlanMachines, launcher: str) -> str:
    """The script of one node."""
    source = ["source environment.sh", *([f"source {entry.sourced}"] if entry.sourced else [])]
    if KEEPS[launcher] == HOSTS:
        source.append("source hosts.sh")
    each = '"$ranks_here"' if where.unequal else where.gpus_per_node
    counts = {"nodes": where.nodes, "each": each, "all": sum(where.ranks_of_node)}
    return "\n".join([
        "#!/bin/bash",
        "# the ranks of this node; launchers set NODE_RANK and MASTER_ADDR",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        *source,
        ': "${NODE_RANK:?rank of this node, from 0}" "${MASTER_ADDR:?host of node 0}"',
        'export NODE_RANK MASTER_ADDR MASTER_PORT="${MASTER_PORT:-29500}"',
        *_ranks_here(where),
        *(_devices(where) if KEEPS[launcher] == HOSTS else ()),
        '[ -n "${SKIP_PREFLIGHT:-}" ] || bash preflight.sh  # SKIP_PREFLIGHT=1 starts all the same',
        *(line.format(**counts) for line in entry.before),
        f'exec {entry.launcher.format(**counts)} {entry.words} "$@"',
        "",
    ])  # fmt: skip


def _ranks_here(where: PlanMachines) -> Iterator[str]:
    """Lines that count the ranks of this node, where nodes have unlike numbers of them."""
    for kind in where.kinds if where.unequal else ():
        yield f'[ "$NODE_RANK" -lt {kind.first} ] || ranks_here={kind.ranks}'


def _devices(where: PlanMachines) -> Iterator[str]:
    """Lines that name the GPUs of a node of which some are broken; pods are given none of those."""
    name = where.maker.devices
    if where.gpus_of_node is None:
        yield f': "${{{name}:?name the GPUs of this node that work, as 0,1,2}}"; export {name}'
        return
    for node, gpus in enumerate(where.gpus_of_node):
        if gpus != tuple(range(len(gpus))):
            listed = ",".join(map(str, gpus))
            yield f'[ "$NODE_RANK" != {node} ] || export {name}={listed}  # the others are broken'


def ranks(plan: Plan, where: PlanMachines, order: NodeOrder) -> str:
    """Rank, node of the cluster, GPU of the node, name of the host: the placement that was estimated."""
    named = ",host" if order.hosts else ""
    node_of = [node for node, count in enumerate(where.ranks_of_node) for _ in range(count)]
    gpu_of = [gpu for gpus in where.gpus_of_node or () for gpu in gpus]
    rows = [
        f"{seat.rank},{node_of[seat.rank]},{seat.node},{gpu_of[seat.rank] if gpu_of else seat.gpu}"
        + (named and f",{seat.host}")
        for seat in seats(plan.mesh, plan.problem.cluster.spec)
    ]
    return "\n".join([f"rank,node_rank,node_of_cluster,gpu_of_node{named}", *rows]) + "\n"


def _slurm(plan: Plan, _: Entry, where: PlanMachines, order: NodeOrder) -> dict[str, str]:
    """An sbatch script: one task a node, nodes in the order of HOSTS, else of Slurm's own list."""
    together = _nodes_together(plan)
    all_gpus = where.unequal or where.in_part  # nodes differ, or those that work are not the first
    spares = 0 if where.unequal or together > 1 else spare_nodes(plan)
    alone = (
        f" --nodes={where.nodes} --ntasks={where.nodes}" if spares else ""
    )  # spares wait in the allocation
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={title_of(plan)}",
        f"#SBATCH --nodes={where.nodes}" + (f"-{where.nodes + spares}" if spares else ""),
        *requeue(plan),
        "#SBATCH --ntasks-per-node=1",
        *([] if all_gpus else [f"#SBATCH --gpus-per-node={where.gpus_per_node}"]),
        "#SBATCH --exclusive",
        *([f"#SBATCH --segment={together}"] if together > 1 else []),
        "#SBATCH --output=%x-%j.log",
        "set -euo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        *hosts_check(order),
        'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        "export MASTER_ADDR",
        "told=()",
        f'if [ "${{HOSTS:-{ANY}}}" != {ANY} ]; then',
        '  export SLURM_HOSTFILE="hosts-$SLURM_JOB_ID"  # Slurm numbers its tasks in this order too',
        '  awk \'$1 ~ "^[^#]" { print $1 }\' "$HOSTS" > "$SLURM_HOSTFILE"',
        "  told=(--distribution=arbitrary)",
        "fi",
        "# shellcheck disable=SC2016  # a node's own shell reads them",
        # its own binding would keep all ranks of a node on the cores of one task
        f'exec srun{alone} --kill-on-bad-exit=1 --cpu-bind=none ${{told[@]+"${{told[@]}}"}} \\',
        '  bash -c \'NODE_RANK="$SLURM_PROCID" exec bash start.sh "$@"\' start "$@"',
    ]
    return {"train.sbatch": "\n".join(lines) + "\n"}


def _nodes_together(plan: Plan) -> int:
    """Nodes of one scale-up domain, which the scheduler must hand out whole; 1 where nodes are alone.

    Of unlike kinds too: their domains are of unlike sizes, and HOSTS names each node.
    """
    if plan.kind_of_stage:
        return 1
    hierarchy = plan.problem.cluster.hierarchy
    per_machine = plan.request.cluster.nodes[0].gpus_per_node
    return min(hierarchy.gpus_per_node, plan.layout.num_gpus) // per_machine or 1


def _torchrun(*_: Any) -> dict[str, str]:
    """Nothing more: `start.sh` runs torchrun, by the rank of the node's own line in HOSTS where named."""
    return {}


def _mpi(_: Plan, entry: Entry, where: PlanMachines, order: NodeOrder) -> dict[str, str]:
    """One process a node by Open MPI, nodes in the order of HOSTS: from Open MPI 5 by a rankfile."""
    text = "\n".join([
        "#!/bin/bash",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        *(hosts_check(order) or [f': "${{HOSTS:?name a {HOSTS_ARE}}}"']),
        'MASTER_ADDR="$(awk \'$1 ~ "^[^#]" { print $1; exit }\' "$HOSTS")"',
        "export MASTER_ADDR HOSTS",
        "map=(--map-by ppr:1:node)  # in the order of the file, unless a scheduler gives the hosts another",
        "version=$(mpirun --version | sed -n 's/.*(Open MPI) \\([0-9]*\\).*/\\1/p')",
        'if [ "${version:-0}" -ge 5 ]; then',
        '  awk \'$1 ~ "^[^#]" { print "rank " n++ "=" $1 " slot=*" }\' "$HOSTS" > rankfile',
        "  map=(--map-by rankfile:file=rankfile)",
        "fi",
        "told=()  # mpirun sends no other variables to the hosts",
        f"for name in MASTER_ADDR HOSTS {' '.join((*entry.variables, *_OPTIONAL))}; do",
        '  [ -z "${!name:-}" ] || told+=(-x "$name")',
        "done",
        "# shellcheck disable=SC2016  # a node's own shell reads them",
        # as above: two processes are bound to a core each, more to a socket
        f'exec mpirun --hostfile "$HOSTS" -np {where.nodes} "${{map[@]}}" --bind-to none \\',
        '  "${told[@]}" \\',
        '  bash -c \'NODE_RANK="$OMPI_COMM_WORLD_RANK" exec bash start.sh "$@"\' start "$@"',
        "",
    ])  # fmt: skip
    return {"mpirun.sh": text}


_OPTIONAL = ("MASTER_PORT", "SKIP_PREFLIGHT", "NUMA_BINDING", "NCCL_DEBUG", "SAVE_INTERVAL")
"""Variables of a bundle that a user may name."""


LAUNCHERS: Mapping[str, Callable[[Plan, Entry, PlanMachines, NodeOrder], dict[str, str]]] = {
    "slurm": _slurm,
    "torchrun": _torchrun,
    "mpi": _mpi,
    "kubernetes": kubernetes,
    "pytorchjob": pytorchjob,
    "kubeflow": kubeflow,
    "skypilot": skypilot,
    "ray": ray,
    "sagemaker": sagemaker,
    "vertex": vertex,
}
"""What can start a bundle."""
UNEQUAL = ("slurm", "torchrun", "mpi", "kubernetes")
"""Launchers that start unlike numbers of ranks on nodes, if torchrun starts them there."""
STARTS: Mapping[str, str] = {
    "slurm": "sbatch --export=ALL train.sbatch",
    "torchrun": "HOSTS=hosts bash start.sh on every node; or NODE_RANK=0 MASTER_ADDR=HOST, each its own rank",
    "mpi": "HOSTS=hosts bash mpirun.sh",
    "kubernetes": "kubectl apply -f jobset.yaml, with the image and the values in it named",
    "pytorchjob": "kubectl apply -f pytorchjob.yaml, with the image and the values in it named",
    "kubeflow": "kubectl apply -f trainjob.yaml, with the image and the values in it named",
    "skypilot": "sky launch task.yaml, with --env NAME=VALUE for each of them",
    "ray": "python ray_train.py, on a host of the Ray cluster",
    "sagemaker": "aws sagemaker create-training-job --cli-input-json file://sagemaker.json, all <> named",
    "vertex": "projects.locations.customJobs.create with vertex.json, all <> and values in it named",
}
"""How it does, in the words of its README."""


def readme(
    plan: Plan, contract: Contract, launcher: str, files: Files, entry: Entry, order: NodeOrder
) -> str:
    """What is in the folder and how it is started."""
    together = _nodes_together(plan)
    program = program_lines(contract.program, files[FILE]) if contract.program else []
    needs = [f"- `{name}`: {what}" for name, what in entry.variables.items()]
    if KEEPS[launcher] == HOSTS and (hosts_check(order) or launcher == "mpi"):
        also = "; give it to sbatch --nodefile too" if launcher == "slurm" else ""
        needs.append(f"- `HOSTS`: {HOSTS_ARE}{also}" + (", `hosts` if not named" if order.hosts else ""))
    kept = "." if order.kinds or not order.matters else _KEPT[KEEPS[launcher]]
    rack = f" Ask for nodes that share a rack by {together}." if together > 1 else ""
    if order.kinds and launcher == "kubernetes":
        needs.append("- the labels in `jobset.yaml` by which nodes of each kind are selected")
    title = f"{single_line(plan.request.model.name)} on {plan.layout.num_gpus} GPUs by {contract.title}"
    return "\n".join([
        f"# {title}", "", f"Start it: `{STARTS[launcher]}`", "",
        "Name these in the environment:", "", *needs, "", *program,
        f"`{next(iter(files))}` holds the plan in {contract.title}'s words, `plan.json` the plan itself;",
        "`preflight.sh` says what of a node differs from it, `ranks.csv` where each rank was planned."
        + ("" if launcher == "slurm" else rack),
        f"{order.why[0].upper()}{order.why[1:]}{kept}", "",
    ])  # fmt: skip


_KEPT = {
    HOSTS: ".",
    BLOCKS: ".\nName the queue of Kueue and the topology label of its blocks in the manifest.",
    **dict.fromkeys(set(KEEPS.values()) - {HOSTS, BLOCKS}, "; this launcher does not keep it."),
}


def require_launcher(target: str, launcher: str | None, folder: object | None) -> None:
    """Refuse a launcher as the target, and one without a folder: it is more than one file."""
    if target in LAUNCHERS and (folder is not None or target not in TARGETS):
        raise InputError(
            what=f"{target} starts an engine and is none",
            cause=f"--to names what trains: {', '.join(ENTRIES)}",
            fix=f"use --to ENGINE --launcher {target} --save-dir DIR; meshplan is an engine too",
        )
    if launcher is not None and folder is None:
        raise InputError(
            what="a launcher needs a folder",
            cause=f"--launcher {launcher} writes several files",
            fix="add --save-dir DIR",
        )
