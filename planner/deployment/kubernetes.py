"""The Kubernetes manifest of a serving plan.

A Deployment for each pool (a LeaderWorkerSet when a worker spans nodes), the options file of an engine that
needs one as a ConfigMap, a router in front of two pools, a Service that clients ask, and a claim for the
weights that every pod reads. Images are of the versions whose flags are checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.deployment.kubernetes_router import (
    BOOTSTRAP_ANNOTATION,
    BOOTSTRAP_PORT,
    ROUTER,
    Document,
    document,
    readiness,
    router_documents,
    service,
)
from planner.engines.quoting import LiteralBlock, yaml
from planner.launch.makers import maker_of
from planner.serving.plan import PoolPlan, ServingPlan
from topology.base.errors import InputError
from topology.hardware.datasheets import sheet_named

PORT = 8000
DOOR = "http"
"""Name of that port in a pod."""
NO_MANIFEST = "# no manifest"
BY_TURNS = ("", "round-robin")
"""Routers whose requests a Service sends as well."""
OPTIONS_DIRECTORY = "/etc/server-options"
_IMAGES = {
    "vllm": "vllm/vllm-openai:v0.33.0",
    "sglang": "lmsysorg/sglang:v0.5.23",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
}
NVIDIA_RESOURCE = "nvidia.com/gpu"
RDMA_RESOURCE = "rdma/rdma_shared_device_a"
"""What the RDMA shared device plugin's own example calls its devices; a cluster may name them otherwise."""
TOKEN_SECRET = "hf-token"  # noqa: S105  # the name of a secret, not one
_SGLANG_NODES = (
    "--nnodes", "$(LWS_GROUP_SIZE)", "--node-rank", "$(LWS_WORKER_INDEX)",
    "--dist-init-addr", "$(LWS_LEADER_ADDRESS):20000",
)  # fmt: skip
"""Leader and worker run one command; the LeaderWorkerSet controller sets these variables in every pod."""
_SEVERAL_NODES = {
    "vllm": "starts other commands on the first node and on the others",
    "trtllm": "is started over several nodes by Slurm or MPI",
}
"""How engines without a manifest start on several nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWorkload:
    """What one pool runs: its role ("" when there is only one), the server's words, and its options file."""

    role: str
    pool: PoolPlan
    words: tuple[str, ...]
    options_file: str = ""
    options: str = ""


def manifest(
    plan: ServingPlan, workloads: Sequence[PoolWorkload], notes: Sequence[str] = (), *, scaled: bool = False
) -> str:
    """The documents of a plan, or three lines that say why there are none.

    Of pools that are `scaled` by another object it does not say how many workers they have.
    """
    engine = plan.request.engine
    if plan.request.router not in BY_TURNS:
        return _refused_router(plan)
    if any(workload.pool.layout.is_uneven for workload in workloads):
        return _refused_stages()
    if engine in _SEVERAL_NODES and any(plan.nodes_of(workload.pool) > 1 for workload in workloads):
        return _refusal(plan)
    head = "".join(f"# {note}\n" for note in notes)
    maps = [_options_map(plan, workload) for workload in workloads if workload.options]
    front = (
        router_documents(engine, app_of(plan), engine_image(plan), PORT) if plan.prefill is not None else []
    )
    pods = [_workload(plan, workload, scaled=scaled) for workload in workloads]
    return head + yaml(*maps, weights_claim(plan), *pods, *front, _service(plan, workloads))


def engine_image(plan: ServingPlan) -> str:
    """The engine's image for the maker of the GPUs."""
    engine, maker = plan.request.engine, maker_of(sheet_named(plan.request.gpu).gpu())
    return maker.images.get(engine, _IMAGES[engine])


def _refused_stages() -> str:
    """Why there is none: pods are placed on nodes of any kind."""
    return f"{NO_MANIFEST}: its stages have layers or GPUs of their own\n# run the commands of each node\n"


def _refused_router(plan: ServingPlan) -> str:
    """Why there is none: a Service knows no prefixes."""
    return (
        f"{NO_MANIFEST}: a Service sends requests by turns, this plan counts a {plan.request.router} router\n"
        "# run the commands, or ask for --router round-robin\n"
    )


def _refusal(plan: ServingPlan) -> str:
    """Why a worker over several nodes of this engine has no manifest."""
    engine = plan.request.engine
    return (
        f"{NO_MANIFEST}: a worker of this plan spans nodes of {plan.gpus_per_node} GPUs\n"
        f"# {engine} {_SEVERAL_NODES[engine]}\n"
        f"# start it by the commands of the plan, or pin a layout of at most {plan.gpus_per_node} GPUs\n"
    )


def app_of(plan: ServingPlan) -> str:
    """Name of the application."""
    return _slug(plan.request.model.name)


def weights_claim(plan: ServingPlan) -> Document:
    """The claim for the weights that every pod reads."""
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "2Ti"}}}
    return document("PersistentVolumeClaim", f"{app_of(plan)}-weights", spec=spec)


def needs_nvidia(plan: ServingPlan, what: str) -> None:
    """Refuse what only runs on NVIDIA's GPUs for a plan on others."""
    if maker_of(sheet_named(plan.request.gpu).gpu()).resource != NVIDIA_RESOURCE:
        raise InputError(
            what=f"{what} cannot run this fleet",
            cause=f"its images are CUDA's, and {plan.request.gpu} is not NVIDIA's",
            fix="use --deploy scripts,kubernetes, or a GPU of NVIDIA",
        )


def pool_name(plan: ServingPlan, role: str) -> str:
    """Name of a pool's objects."""
    return f"{app_of(plan)}-{role}" if role else app_of(plan)


def _workload(plan: ServingPlan, workload: PoolWorkload, *, scaled: bool) -> Document:
    """One Deployment, or one LeaderWorkerSet when a worker needs several nodes."""
    nodes, pool = plan.nodes_of(workload.pool), workload.pool
    if nodes > 1:
        workload = replace(workload, words=(*workload.words, *_SGLANG_NODES))
    name, labels = pool_name(plan, workload.role), {"app": app_of(plan), "pool": workload.role or "all"}
    workers = {} if scaled else {"replicas": pool.workers}
    pod = {"metadata": {"labels": labels}, "spec": _pod(plan, workload, -(-pool.layout.num_gpus // nodes))}
    if nodes > 1:
        template = {"size": nodes, "workerTemplate": pod}
        return document(
            "LeaderWorkerSet", name, "leaderworkerset.x-k8s.io/v1",
            spec={**workers, "leaderWorkerTemplate": template},
        )  # fmt: skip
    if plan.request.engine == "sglang" and workload.role == "prefill":  # its router must know of it
        pod["metadata"]["annotations"] = {BOOTSTRAP_ANNOTATION: str(BOOTSTRAP_PORT)}
    return document(
        "Deployment", name, "apps/v1",
        spec={**workers, "selector": {"matchLabels": labels}, "template": pod},
    )  # fmt: skip


def _pod(plan: ServingPlan, workload: PoolWorkload, gpus: int) -> Document:
    """The pod of a worker, with its GPUs, shared memory and options.

    Servers listen on every address, or the probe and the Service could not reach them.
    """
    engine, maker = plan.request.engine, maker_of(sheet_named(plan.request.gpu).gpu())
    path = f"{OPTIONS_DIRECTORY}/{workload.options_file}"
    words = [path if word == workload.options_file else word for word in workload.words]
    if engine == "sglang" and workload.role == "prefill":
        words += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)]
    container: Document = {
        "name": engine,
        "image": engine_image(plan),
        "command": [*words, "--host", "0.0.0.0"],  # noqa: S104  # inside a pod
        "ports": [{"name": DOOR, "containerPort": PORT}],
        "env": [{"name": "HF_HOME", "value": "/weights"}, token_variable()],
        "resources": {"limits": {maker.resource: gpus}},
        "readinessProbe": readiness(PORT),
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  # inside a pod
            {"name": "weights", "mountPath": "/weights"},
        ],
    }
    volumes: list[Document] = [
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "weights", "persistentVolumeClaim": {"claimName": f"{app_of(plan)}-weights"}},
    ]
    if workload.role and engine == "vllm":
        container["env"].append(_SIDE_CHANNEL)
    if workload.role or plan.nodes_of(workload.pool) > 1:
        container["resources"]["limits"][RDMA_RESOURCE] = 1
        container["securityContext"] = _PINS
    if workload.options:
        name = f"{pool_name(plan, workload.role)}-options"
        container["volumeMounts"].append({"name": "options", "mountPath": OPTIONS_DIRECTORY})
        volumes.append({"name": "options", "configMap": {"name": name}})
    return {"containers": [container], "volumes": volumes}


_SIDE_CHANNEL = {
    "name": "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
}
"""Where other pods fetch a cache: vLLM says localhost otherwise."""

_PINS = {"capabilities": {"add": ["IPC_LOCK"]}}
"""What moving caches, and stages over nodes, pin and send; without it they go through TCP."""


def token_variable() -> Document:
    """The variable by which gated weights are read, where its secret is there."""
    key = {"name": TOKEN_SECRET, "key": "token", "optional": True}
    return {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}


def _options_map(plan: ServingPlan, workload: PoolWorkload) -> Document:
    """The options file of a pool."""
    text = "".join(f"{line}\n" for line in workload.options.splitlines())
    name = f"{pool_name(plan, workload.role)}-options"
    return document("ConfigMap", name, data={workload.options_file: LiteralBlock(text)})


def _service(plan: ServingPlan, workloads: Sequence[PoolWorkload]) -> Document:
    """The Service in front of the pool that takes requests; of several nodes the leader takes them."""
    front = workloads[0]
    selector = {"app": app_of(plan), "pool": ROUTER if front.role else "all"}
    if not front.role and plan.nodes_of(front.pool) > 1:
        selector["leaderworkerset.sigs.k8s.io/worker-index"] = "0"
    return service(app_of(plan), selector, PORT)


def _slug(name: str) -> str:
    """A name that Kubernetes accepts.

    >>> _slug("llama-3.1-70b")
    'llama-3-1-70b'
    """
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
