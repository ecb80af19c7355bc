"""A bundle in pods: JobSet, PyTorchJob and TrainJob, each with a container a node that runs `start.sh`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.engines.quoting import yaml
from planner.launch.entries import IMAGE, Entry
from planner.launch.machines import PlanMachines, title_of
from planner.plan import Plan


def _container(entry: Entry, where: PlanMachines, rank: str, master: str) -> dict[str, Any]:
    """The container of a node, in an image that holds this folder at /plan."""
    command = f'export NODE_RANK="{rank}" MASTER_ADDR="{master}"; exec bash /plan/start.sh'
    named = [{"name": name, "value": ""} for name in entry.variables]  # start.sh stops while one is empty
    return {
        "name": "pytorch",
        "image": IMAGE,
        "command": ["bash", "-c", command],
        "env": named,
        "resources": {"limits": {"nvidia.com/gpu": where.gpus_per_node}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108  # of the container
    }


def _pod(container: Mapping[str, Any]) -> dict[str, Any]:
    """Its pod: never restarted alone, with shared memory for NCCL."""
    shared = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    return {"spec": {"restartPolicy": "Never", "containers": [dict(container)], "volumes": [shared]}}


def kubernetes(plan: Plan, entry: Entry, where: PlanMachines) -> dict[str, str]:
    """A JobSet (jobset.x-k8s.io/v1alpha2): an indexed job with a pod a node."""
    name = title_of(plan)
    container = _container(entry, where, "$JOB_COMPLETION_INDEX", f"{name}-node-0-0.{name}")
    job = {
        "completionMode": "Indexed",
        "completions": where.nodes,
        "parallelism": where.nodes,
        "backoffLimit": 0,
        "template": _pod(container),
    }  # fmt: skip
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}]},
    }
    return {"jobset.yaml": yaml(jobset)}


def pytorchjob(plan: Plan, entry: Entry, where: PlanMachines) -> dict[str, str]:
    """A PyTorchJob (kubeflow.org/v1): the operator sets RANK of a pod and MASTER_ADDR."""
    pod = _pod(_container(entry, where, "$RANK", "$MASTER_ADDR"))
    roles = {"Master": 1, **({"Worker": where.nodes - 1} if where.nodes > 1 else {})}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": title_of(plan)},
        "spec": {
            "pytorchReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "Never", "template": pod}
                for role, count in roles.items()
            }
        },
    }
    return {"pytorchjob.yaml": yaml(job)}


def kubeflow(plan: Plan, entry: Entry, where: PlanMachines) -> dict[str, str]:
    """A TrainJob (trainer.kubeflow.org/v1alpha1): the runtime sets PET_NODE_RANK and PET_MASTER_ADDR."""
    container = _container(entry, where, "$PET_NODE_RANK", "$PET_MASTER_ADDR")
    gpus = {"nvidia.com/gpu": str(where.gpus_per_node)}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": title_of(plan)},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": container["image"],
                "command": container["command"],
                "env": container["env"],
                "numNodes": where.nodes,
                "numProcPerNode": where.gpus_per_node,
                "resourcesPerNode": {"limits": gpus, "requests": gpus},
            },
        },
    }
    return {"trainjob.yaml": yaml(job)}
