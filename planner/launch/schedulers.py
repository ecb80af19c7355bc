"""A plan as a job of a scheduler: Slurm, Kubeflow, SkyPilot. Each starts `plan run` on every node."""

from __future__ import annotations

from typing import Any

from planner.engines.contracts import engine_of_stack
from planner.engines.own import OWN
from planner.engines.quoting import one_line, shell, yaml
from planner.launch.machines import Exported, PlanMachines, machines_of, title_of
from planner.plan import FREE, Plan
from topology.base.errors import InputError

PLAN_FILE = "plan.json"
IMAGE = "pytorch/pytorch"
SLURM_NOTICE_S = 120
_SKYPILOT = {
    "a100-sxm-80gb": "A100-80GB", "a100-sxm-40gb": "A100", "h100-sxm": "H100", "h200-sxm": "H200",
    "b200-sxm": "B200", "l40s": "L40S", "a10g": "A10G", "rtx-4090": "RTX4090", "mi300x": "MI300X",
}  # fmt: skip


def require_own(plan: Plan, scheduler: str) -> None:
    """Refuse a plan for one engine that a scheduler's file would start another with."""
    if plan.request.stack in OWN.stacks:
        return
    engine = plan.request.engine if plan.request.engine != FREE else engine_of_stack(plan.request.stack)
    raise InputError(
        what=f"{scheduler} alone starts Meshplan's own executor, the plan is another engine's",
        cause=f"it is priced by {plan.request.stack}",
        fix=f"write it --to {engine}, or plan --for meshplan",
    )


def export_slurm(plan: Plan) -> Exported:
    """Write an sbatch script; `plan run` reads Slurm's own variables."""
    require_own(plan, "slurm")
    where = machines_of(plan)
    flags, notes = f"--notice {SLURM_NOTICE_S}", list[str]()
    if where.nodes > 1:
        flags += ' --interface "${INTERFACE:?name the network of these nodes}"'
        notes.append("ranks listen on one network: sbatch --export=ALL,INTERFACE=NAME train.sbatch")
    lines = [
        "#!/bin/bash",
        f"# {one_line(plan.request.model.name)} on {plan.layout.num_gpus} GPUs",
        f"#SBATCH --job-name={title_of(plan)}",
        f"#SBATCH --nodes={where.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={where.gpus_per_node}",
        "#SBATCH --exclusive",
        f"#SBATCH --signal=USR1@{SLURM_NOTICE_S}",
        "#SBATCH --output=%x-%j.log",
        "",
        "set -euo pipefail",
        'cd "$SLURM_SUBMIT_DIR"',
        f'exec srun --kill-on-bad-exit=1 plan run "${{PLAN:-{PLAN_FILE}}}" {flags} "$@"',
    ]
    text = "\n".join(lines) + "\n"
    return Exported(target="slurm", file_name="train.sbatch", text=text, notes=tuple(notes))


def kubeflow_job(plan: Plan) -> dict[str, Any]:
    """A Kubeflow TrainJob (trainer.kubeflow.org/v1alpha1)."""
    where = machines_of(plan)
    gpus = {"nvidia.com/gpu": str(where.gpus_per_node)}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": title_of(plan)},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": IMAGE,
                "command": ["torchrun", "-m", "executor.training.worker", "run/run.json"],
                "numNodes": where.nodes,
                "numProcPerNode": where.gpus_per_node,
                "resourcesPerNode": {"limits": gpus, "requests": gpus},
            },
        },
    }


def export_kubeflow(plan: Plan) -> Exported:
    """Write a TrainJob; the image must hold meshplan and the written run."""
    require_own(plan, "kubeflow")
    notes = ("write run/run.json first with `plan run PLAN.json --dry-run` on the shared volume",
             f"replace the image {IMAGE} by one with meshplan installed")  # fmt: skip
    text = yaml(kubeflow_job(plan))
    return Exported(target="kubeflow", file_name="trainjob.yaml", text=text, notes=notes)


def accelerators(where: PlanMachines) -> str:
    """GPUs of a node in SkyPilot's words; a GPU that it may call otherwise keeps its own name."""
    return f"{_SKYPILOT.get(where.gpu, where.gpu.upper())}:{where.gpus_per_node}"


def skypilot_task(plan: Plan) -> dict[str, Any]:
    """A SkyPilot task: nodes, accelerators and the command of each node."""
    where = machines_of(plan)
    command = " ".join(
        ["torchrun", '--nnodes="$SKYPILOT_NUM_NODES"', '--node-rank="$SKYPILOT_NODE_RANK"',
         f"--nproc-per-node={where.gpus_per_node}",
         '--master-addr="$(echo "$SKYPILOT_NODE_IPS" | head -n1)"', "--master-port=29500",
         "-m", "executor.training.worker", shell("run/run.json")]
    )  # fmt: skip
    return {
        "name": title_of(plan),
        "num_nodes": where.nodes,
        "resources": {"accelerators": accelerators(where)},
        "setup": 'pip install "meshplan[run]"',
        "run": command,
    }


def export_skypilot(plan: Plan) -> Exported:
    """Write a task."""
    require_own(plan, "skypilot")
    where = machines_of(plan)
    notes = ["write run/run.json first with `plan run PLAN.json --dry-run` on storage that nodes share"]
    if where.gpu not in _SKYPILOT:
        notes.append(f"check the accelerator's name: SkyPilot may not call it {where.gpu.upper()}")
    text = yaml(skypilot_task(plan))
    return Exported(target="skypilot", file_name="task.yaml", text=text, notes=tuple(notes))
