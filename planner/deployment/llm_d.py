"""A serving plan as llm-d runs it: values of its model service, and of the inference scheduler in front.

The scheduler picks the server with the shortest queue; of two pools a sidecar before each decode server has
its prompt computed by the prefill server that the scheduler named. vLLM alone, in workers that fit into a
node.

Values: llm-d-modelservice 0.4 (its chart's values and templates), inferencepool 1.3 (Gateway API Inference
Extension) with llm-d's inference scheduler 0.5 and the plugins of its guides (llm-d.ai, Inference Scheduling
and P/D Disaggregation).
"""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from costmodel.models.parameters import parameter_count
from costmodel.serving.deployment import weight_bytes
from planner.deployment.kubernetes import (
    DOOR,
    PORT,
    RDMA_RESOURCE,
    app_of,
    engine_image,
    needs_nvidia,
    token_variable,
)
from planner.deployment.vllm_sglang import engine_words, served_checkpoint
from planner.engines.quoting import yaml
from planner.serving.plan import PoolPlan, ServingPlan
from topology.base.errors import InputError
from topology.base.units import GIB

SERVICE_FILE, SCHEDULER_FILE = "llm-d-modelservice.yaml", "llm-d-scheduler.yaml"
_SIDECAR: Final = "ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0"
_SCHEDULER: Final = {"hub": "ghcr.io/llm-d", "name": "llm-d-inference-scheduler", "tag": "v0.5.1"}
_BEHIND_SIDECAR: Final = 8200
_HELM: Final = """\
# helm repo add llm-d-modelservice https://llm-d-incubation.github.io/llm-d-modelservice/
# helm install {app} llm-d-modelservice/llm-d-modelservice --version v0.4.1 -f {service}
# helm install {app}-scheduler oci://registry.k8s.io/gateway-api-inference-extension/charts/inferencepool \
--version v1.3.1 -f {scheduler}
# an HTTPRoute of your gateway to the InferencePool {app}-scheduler leads clients there
"""


def llm_d_files(plan: ServingPlan) -> dict[str, str]:
    """Values of both charts by their file's name."""
    _check(plan)
    head = _HELM.format(app=app_of(plan), service=SERVICE_FILE, scheduler=SCHEDULER_FILE)
    return {SERVICE_FILE: head + yaml(_service(plan)), SCHEDULER_FILE: head + yaml(_scheduler(plan))}


def _check(plan: ServingPlan) -> None:
    """Refuse what the charts cannot be told."""
    needs_nvidia(plan, "llm-d")
    wide = max(plan.nodes_of(pool) for _, pool in plan.pools)
    if plan.request.engine != "vllm":
        raise InputError(
            what=f"llm-d is not written for {plan.request.engine}",
            cause="its model service starts vllm serve, and its sidecar speaks to vLLM's connector",
            fix="use --engine vllm, or --deploy dynamo",
        )
    if wide > 1:
        raise InputError(
            what="llm-d is not written for workers over several nodes",
            cause=f"a worker of this plan spans {wide} nodes of {plan.gpus_per_node} GPUs",
            fix=f"use --deploy dynamo, or pin a layout of at most {plan.gpus_per_node} GPUs",
        )


def _service(plan: ServingPlan) -> dict[str, Any]:
    """Values of the model service; where one pool serves whole requests, the chart calls it decode."""
    name = served_checkpoint(plan)
    room = ceil(1.2 * parameter_count(plan.request.model) * weight_bytes(plan.weights) / GIB)
    pools = {role or "decode": _pool(plan, pool, role) for role, pool in plan.pools}
    return {
        "fullnameOverride": app_of(plan),
        "multinode": False,
        "modelArtifacts": {
            "name": name,
            "uri": f"hf://{name}",
            "size": f"{room}Gi",
            "labels": _labels(plan),
        },
        "accelerator": {"type": "nvidia"},
        "routing": {
            "servicePort": PORT,
            "proxy": {
                "enabled": plan.prefill is not None, "image": _SIDECAR, "targetPort": _BEHIND_SIDECAR,
                "connector": "nixlv2", "secure": False,
            },
        },
        **({"prefill": {"create": False}} | pools),
    }  # fmt: skip


def _labels(plan: ServingPlan) -> dict[str, str]:
    """Labels of the pods, by which the scheduler finds them."""
    return {"llm-d.ai/inference-serving": "true", "llm-d.ai/model": app_of(plan)}


def _pool(plan: ServingPlan, pool: PoolPlan, role: str) -> dict[str, Any]:
    """Values of a pool; its `tensor` counts the GPUs of a worker, and the chart does no more with it."""
    words = engine_words(plan, pool, role, _BEHIND_SIDECAR if role == "decode" else PORT)
    port = int(words[words.index("--port") + 1])
    host = {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container: dict[str, Any] = {
        "name": "vllm",
        "image": engine_image(plan),
        "modelCommand": "custom",
        "command": words[:2],
        "args": [*words[2:], "--host", "0.0.0.0"],  # noqa: S104  # inside a pod
        "env": [token_variable(), *([host] if role else [])],
        "ports": [{"name": DOOR, "containerPort": port}],
        "mountModelVolume": True,
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": port}, "periodSeconds": 10, "failureThreshold": 180,
        },
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108  # a volume's place
    }  # fmt: skip
    if role:
        container["resources"] = {"limits": {RDMA_RESOURCE: "1"}, "requests": {RDMA_RESOURCE: "1"}}
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    return {
        "create": True,
        "replicas": pool.workers,
        "parallelism": {"tensor": pool.layout.num_gpus},
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }


def _scheduler(plan: ServingPlan) -> dict[str, Any]:
    """Values of the inference pool and its scheduler."""
    return {
        "inferenceExtension": {
            "replicas": 1,
            "image": _SCHEDULER,
            "extProcPort": 9002,
            "flags": {"kv-cache-usage-percentage-metric": "vllm:kv_cache_usage_perc"},
            "pluginsConfigFile": "plugins.yaml",
            "pluginsCustomConfig": {"plugins.yaml": yaml(_plugins(two_pools=plan.prefill is not None))},
        },
        "inferencePool": {
            "targetPorts": [{"number": PORT}],
            "modelServerType": "vllm",
            "modelServers": {"matchLabels": _labels(plan)},
        },
    }


def _plugins(*, two_pools: bool) -> dict[str, Any]:
    """The scheduler's configuration: the shortest queue of each phase; all prompts go to prefill servers."""
    kind = {"apiVersion": "inference.networking.x-k8s.io/v1alpha1", "kind": "EndpointPickerConfig"}
    queue = {"pluginRef": "queue-scorer", "weight": 1.0}
    if not two_pools:
        return kind | {
            "plugins": [{"type": "queue-scorer"}],
            "schedulingProfiles": [{"name": "default", "plugins": [queue]}],
        }
    handler = {"type": "pd-profile-handler", "parameters": {"threshold": 0, "hashBlockSize": 5}}
    names = ("prefill-header-handler", "prefill-filter", "decode-filter", "queue-scorer")
    return kind | {
        "plugins": [*({"type": name} for name in names), handler],
        "schedulingProfiles": [
            {"name": role, "plugins": [{"pluginRef": f"{role}-filter"}, queue]}
            for role in ("prefill", "decode")
        ],
    }
