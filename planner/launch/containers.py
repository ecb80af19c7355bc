"""A bundle in pods: JobSet, PyTorchJob and TrainJob, each with a container a node that runs `start.sh`.

Where the order of nodes matters Kueue admits the job: it gives pods their nodes in the order of their index,
each so many of them (a slice) below one switch. Words: kueue.sigs.k8s.io, Topology Aware Scheduling, 0.13 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.engines.quoting import yaml
from planner.launch.entries import IMAGE, Entry
from planner.launch.machines import PlanMachines, title_of
from planner.launch.node_order import NodeOrder
from planner.plan import Plan


def _container(
    entry: Entry, where: PlanMachines, rank: str, master: str, *, gpus: int | None = None
) -> dict[str, Any]:
    """The container of a node, in an image that holds this folder at /plan."""
    command = f'export NODE_RANK="{rank}" MASTER_ADDR="{master}"; exec bash /plan/start.sh'
    named = [{"name": name, "value": ""} for name in entry.variables]  # start.sh stops while one is empty
    return {
        "name": "pytorch",
        "image": IMAGE,
        "command": ["bash", "-c", command],
        "env": named,
        "resources": {"limits": {where.maker.resource: str(gpus or where.gpus_per_node)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108  # of the container
    }


_SHARED = {"name": "shm", "emptyDir": {"medium": "Memory"}}
"""Shared memory for NCCL."""


def _pod(container: Mapping[str, Any], slices: Mapping[str, Any]) -> dict[str, Any]:
    """Its pod: never restarted alone."""
    return {
        **slices,
        "spec": {"restartPolicy": "Never", "containers": [dict(container)], "volumes": [_SHARED]},
    }


def _slices(order: NodeOrder) -> dict[str, Any]:
    """What a pod says of its neighbours."""
    if not order.blocks_suffice:
        return {}
    named = f"<node label that the {order.together} hosts of a block share>"
    slices = {
        "kueue.x-k8s.io/podset-slice-required-topology": named,
        "kueue.x-k8s.io/podset-slice-size": str(order.together),
    }
    return {"metadata": {"annotations": slices}}


def _queued(plan: Plan, where: PlanMachines, order: NodeOrder) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata of a job, and what of its spec holds it until Kueue has placed it."""
    if not order.blocks_suffice:
        return {"name": title_of(plan), **_in_one_domain(plan, where)}, {}
    queue = {"kueue.x-k8s.io/queue-name": "<LocalQueue of Kueue>"}
    return {"name": title_of(plan), "labels": queue}, {"suspend": True}


def _in_one_domain(plan: Plan, where: PlanMachines) -> dict[str, Any]:
    """What tells KAI that all nodes are one scale-up domain; of blocks within a job it has no word."""
    domain = plan.problem.cluster.hierarchy.gpus_per_node
    if plan.kind_of_stage or where.nodes == 1 or plan.layout.num_gpus > domain:
        return {}
    named = f"<node label that the {where.nodes} hosts of a scale-up domain share>"
    words = {"topology": "<Topology of KAI>", "topology-required-placement": named}
    return {"annotations": {f"kai.scheduler/{key}": value for key, value in words.items()}}


def kubernetes(plan: Plan, entry: Entry, where: PlanMachines, order: NodeOrder) -> dict[str, str]:
    """A JobSet (jobset.x-k8s.io/v1alpha2): an indexed job with a pod a node, one for each kind of node."""
    name, (metadata, held) = title_of(plan), _queued(plan, where, order)
    jobs = []
    for number, kind in enumerate(where.kinds):
        of, index = _job_name(where, number), "$JOB_COMPLETION_INDEX"
        rank = f"$(({kind.first} + JOB_COMPLETION_INDEX))" if kind.first else index
        master = f"{name}-{_job_name(where, 0)}-0-0.{name}"
        pod = _pod(_container(entry, where, rank, master, gpus=kind.ranks), _slices(order))
        if len(where.kinds) > 1:
            pod["spec"]["nodeSelector"] = {where.maker.product: f"<its value on {kind}>"}
        job = {
            "completionMode": "Indexed",
            "completions": kind.count,
            "parallelism": kind.count,
            "backoffLimit": 0,
            "template": pod,
        }
        jobs.append({"name": of, "replicas": 1, "template": {"spec": job}})
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {**held, "replicatedJobs": jobs},
    }
    return {"jobset.yaml": yaml(jobset)}


def _job_name(where: PlanMachines, number: int) -> str:
    """The name of the job of a kind of node."""
    return f"kind{number}" if len(where.kinds) > 1 else "node"


def pytorchjob(plan: Plan, entry: Entry, where: PlanMachines, _: NodeOrder) -> dict[str, str]:
    """A PyTorchJob (kubeflow.org/v1): the operator sets RANK of a pod and MASTER_ADDR."""
    pod = _pod(_container(entry, where, "$RANK", "$MASTER_ADDR"), {})
    roles = {"Master": 1, **({"Worker": where.nodes - 1} if where.nodes > 1 else {})}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": title_of(plan)},
        "spec": {
            "runPolicy": {"backoffLimit": 0},
            "pytorchReplicaSpecs": {
                role: {"replicas": count, "restartPolicy": "Never", "template": pod}
                for role, count in roles.items()
            },
        },
    }
    return {"pytorchjob.yaml": yaml(job)}


def kubeflow(plan: Plan, entry: Entry, where: PlanMachines, order: NodeOrder) -> dict[str, str]:
    """A TrainJob (trainer.kubeflow.org/v1alpha1): the runtime sets PET_NODE_RANK and PET_MASTER_ADDR."""
    metadata, held = _queued(plan, where, order)
    container = _container(entry, where, "$PET_NODE_RANK", "$PET_MASTER_ADDR")
    gpus = {where.maker.resource: str(where.gpus_per_node)}
    mounted = [{"name": "node", "volumeMounts": container["volumeMounts"]}]
    pod = {**_slices(order), "spec": {"volumes": [_SHARED], "containers": mounted}}
    patched = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": pod}}}]}
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            **held,
            "runtimeRef": {"name": "torch-distributed"},
            "runtimePatches": [
                {"manager": "meshplan.dev/export", "trainingRuntimeSpec": {"template": {"spec": patched}}}
            ],
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
