"""A plan of Meshplan's own executor as a job of Slurm, which starts `plan run` on every node.

The launcher of a bundle trains until it is stopped; `plan run` saves at Slurm's notice and plans anew.
"""

from __future__ import annotations

from planner.engines.contracts import engine_of_stack
from planner.engines.meshplan import MESHPLAN
from planner.engines.quoting import single_line
from planner.launch.machines import Exported, PlanMachines, hosts_by_kind, require_equal, title_of
from planner.plan import FREE, Plan
from topology.base.errors import InputError

PLAN_FILE = "plan.json"
SLURM_NOTICE_S = 120


def _require_own(plan: Plan) -> None:
    """Refuse a plan for one engine that this file would start another with."""
    if plan.request.stack in MESHPLAN.stacks:
        return
    engine = plan.request.engine if plan.request.engine != FREE else engine_of_stack(plan.request.stack)
    raise InputError(
        what="slurm alone starts Meshplan's own executor, the plan is another engine's",
        cause=f"it is priced by {plan.request.stack}",
        fix=f"write it --to {engine} --launcher slurm --save-dir DIR, or plan --for meshplan",
    )


def _devices(where: PlanMachines) -> list[str]:
    """A line that names the GPUs of every node where some are broken; of unlike nodes the user must."""
    name, each = where.maker.devices, set(where.gpus_of_node or ())
    if not where.in_part:
        return []
    if len(each) == 1:
        return [f"export {name}={','.join(map(str, each.pop()))}  # the others are broken"]
    return [f': "${{{name}:?name the GPUs of a node that work on all, as 0,1,2}}"; export {name}']


def spare_nodes(plan: Plan) -> int:
    """Nodes beside the plan's own that its campaign pays for."""
    return 0 if plan.campaign is None else plan.campaign.spare_nodes


def requeue(plan: Plan) -> list[str]:
    """Lines that bring a job back after a node failed, its log kept; none where no campaign was asked."""
    return [] if plan.campaign is None else ["#SBATCH --requeue", "#SBATCH --open-mode=append"]


def export_slurm(plan: Plan) -> Exported:
    """Write an sbatch script; `plan run` reads Slurm's own variables."""
    _require_own(plan)
    where = hosts_by_kind(plan)
    require_equal(where, "plan run")
    flags, notes = f"--notice {SLURM_NOTICE_S}", list[str]()
    if where.nodes > 1:
        flags += ' --interface "${INTERFACE:?name the network of these nodes}"'
        notes.append("ranks listen on one network: sbatch --export=ALL,INTERFACE=NAME train.sbatch")
        notes.append("to go on when a node is lost for good: sbatch train.sbatch --min-gpus NUMBER")
    if spare_nodes(plan):
        notes.append(
            f"keep {spare_nodes(plan)} more nodes free in the partition: a requeued job starts on them"
        )
    lines = [
        "#!/bin/bash",
        f"# {single_line(plan.request.model.name)} on {plan.layout.num_gpus} GPUs",
        f"#SBATCH --job-name={title_of(plan)}",
        f"#SBATCH --nodes={where.nodes}",
        *requeue(plan),
        "#SBATCH --ntasks-per-node=1",
        *([] if where.in_part else [f"#SBATCH --gpus-per-node={where.gpus_per_node}"]),
        "#SBATCH --exclusive",
        "#SBATCH --no-kill",
        f"#SBATCH --signal=USR1@{SLURM_NOTICE_S}",
        "#SBATCH --output=%x-%j.log",
        "",
        "set -euo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        *_devices(where),
        # a node that fails does not end the others: they agree on how to go on, or say why they cannot
        "exec srun --no-kill --kill-on-bad-exit=0 --cpu-bind=none \\",
        f'  plan run "${{PLAN:-{PLAN_FILE}}}" {flags} "$@"',
    ]
    text = "\n".join(lines) + "\n"
    return Exported(target="slurm", file_name="train.sbatch", text=text, notes=tuple(notes))
