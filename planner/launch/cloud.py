"""A bundle in a cloud: a training job of SageMaker or Vertex AI, or a task of SkyPilot.

Words of the requests: SageMaker's CreateTrainingJob, Vertex AI's CustomJob. Their image holds the folder at
/plan, and what a node's container runs first; what only the user knows stands in angle brackets, which both
services refuse.
"""

from __future__ import annotations

import json
from typing import Any

from planner.engines.quoting import yaml
from planner.launch.entries import IMAGE, Entry
from planner.launch.machines import PlanMachines, title_of
from planner.launch.makers import MAKERS, NVIDIA
from planner.launch.node_order import NodeOrder
from planner.plan import Plan
from topology.base.errors import InputError
from topology.base.units import DAY
from topology.hardware.datasheets import gpu_sheets, machines

VOLUME_GIB = 100
"""Of a SageMaker node, for what the container writes beside the checkpoints."""

_START = """\
#!/bin/bash
# rank of this node and host of node 0, as {service} tells them
set -euo pipefail
cd "$(dirname "$0")"
{needs}
found=$(python - <<'END'
{program}
END
)
read -r NODE_RANK MASTER_ADDR{more} <<<"$found"
export NODE_RANK MASTER_ADDR{more}
exec bash start.sh "$@"
"""

_SAGEMAKER = """\
import json, os
with open(os.environ["RESOURCES"], encoding="utf-8") as file:
    told = json.load(file)
print(told["hosts"].index(told["current_host"]), told["hosts"][0], told["network_interface_name"])"""

_VERTEX = """\
import json, os
told = json.loads(os.environ["CLUSTER_SPEC"])
pools = [(name, index) for name in sorted(told["cluster"]) for index in range(len(told["cluster"][name]))]
rank = pools.index((told["task"]["type"], int(told["task"]["index"])))
print(rank, told["cluster"]["workerpool0"][0].rpartition(":")[0])"""


def sagemaker(plan: Plan, entry: Entry, where: PlanMachines, _: NodeOrder) -> dict[str, str]:
    """The request of a training job, by `aws sagemaker create-training-job --cli-input-json`."""
    request = {
        "TrainingJobName": title_of(plan),
        "RoleArn": "<ARN of the role that the job runs as>",
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["bash", "/plan/sagemaker.sh"],
        },
        "ResourceConfig": {
            "InstanceType": _machine(plan, "aws-", "ml.", where),
            "InstanceCount": where.nodes,
            "VolumeSizeInGB": VOLUME_GIB,
        },
        "OutputDataConfig": {"S3OutputPath": "<s3:// folder for what is left in /opt/ml/model>"},
        "StoppingCondition": {"MaxRuntimeInSeconds": int(DAY)},
        "Environment": dict.fromkeys(entry.variables, ""),  # start.sh stops while one is empty
    }
    script = _START.format(
        service="SageMaker",
        needs='export RESOURCES="${RESOURCES:-/opt/ml/input/config/resourceconfig.json}"',
        program=_SAGEMAKER,
        more=" NCCL_SOCKET_IFNAME",
    )
    return {"sagemaker.json": _json(request), "sagemaker.sh": script}


def _vertex_accelerator(plan: Plan, where: PlanMachines) -> str:
    """Vertex AI's AcceleratorType: the machine's own, else its GPU's."""
    machine, sheet = machines().get(plan.request.cluster.name), gpu_sheets().get(where.gpu)
    words = [item.vertex_accelerator for item in (machine, sheet) if item is not None]
    return next((word for word in words if word), f"<accelerator type of {where.gpu}>")


def vertex(plan: Plan, entry: Entry, where: PlanMachines, _: NodeOrder) -> dict[str, str]:
    """The request of a custom job: node 0 is a pool of its own, the others are the second."""
    node = {
        "machineSpec": {
            "machineType": _machine(plan, "gcp-", "", where),
            "acceleratorType": _vertex_accelerator(plan, where),
            "acceleratorCount": where.gpus_per_node,
        },
        "containerSpec": {
            "imageUri": IMAGE,
            "command": ["bash", "/plan/vertex.sh"],
            "env": [{"name": name, "value": ""} for name in entry.variables],  # as above
        },
    }
    counts = [1, where.nodes - 1] if where.nodes > 1 else [1]
    pools = [{**node, "replicaCount": str(count)} for count in counts]
    request = {"displayName": title_of(plan), "jobSpec": {"workerPoolSpecs": pools}}
    script = _START.format(
        service="Vertex AI",
        needs=': "${CLUSTER_SPEC:?Vertex AI sets it for each node of a job}"',
        program=_VERTEX,
        more="",
    )
    return {"vertex.json": _json(request), "vertex.sh": script}


def skypilot(plan: Plan, entry: Entry, where: PlanMachines, _: NodeOrder) -> dict[str, str]:
    """A SkyPilot task: it stops where a variable that is null here is not given by --env."""
    sheet = gpu_sheets().get(where.gpu)
    name = (sheet.skypilot_accelerator if sheet else "") or where.gpu.upper()
    task = {
        "name": title_of(plan),
        "num_nodes": where.nodes,
        "workdir": ".",
        "resources": {"accelerators": f"{name}:{where.gpus_per_node}", "image_id": f"docker:{entry.image}"},
        "envs": dict.fromkeys(entry.variables),
        **({"setup": entry.install} if entry.install else {}),
        "run": 'MASTER_ADDR="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"\n'
        'export MASTER_ADDR NODE_RANK="$SKYPILOT_NODE_RANK"\nexec bash start.sh\n',
    }
    return {"task.yaml": yaml(task)}


_CLOUDS = {"aws-": "SageMaker", "gcp-": "Vertex AI"}


def _machine(plan: Plan, provider: str, prefix: str, where: PlanMachines) -> str:
    """The cloud's own name of the machine that was planned for; elsewhere what to look for.

    Raises:
        InputError: the GPU is of a maker whose GPUs the cloud does not rent.
    """
    if where.maker is not MAKERS[NVIDIA]:
        raise InputError(
            what=f"{_CLOUDS[provider]} has no machine with this GPU",
            cause=f"the plan is for {where.gpu}, it rents NVIDIA's alone",
            fix="use --launcher slurm, torchrun, mpi, ray, kubernetes, kubeflow or skypilot",
        )
    name = plan.request.cluster.name
    if name.startswith(provider) and name in machines():
        return prefix + name.removeprefix(provider)
    return f"<instance type with {where.gpus_per_node} {where.gpu}>"


def _json(request: dict[str, Any]) -> str:
    """A request as text."""
    return json.dumps(request, indent=2) + "\n"
