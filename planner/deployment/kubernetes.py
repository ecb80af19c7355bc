"""The Kubernetes manifest of a serving plan.

A Deployment for each pool (a LeaderWorkerSet when a worker spans nodes), the options file of an engine that
needs one as a ConfigMap, a router in front of two pools, a Service that clients ask, and a claim for the
weights that every pod reads. Images are of the versions whose flags are checked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.deployment.kubernetes_router import (
    BOOTSTRAP_ANNOTATION,
    BOOTSTRAP_PORT,
    ROUTER,
    router_documents,
)
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
class Workload:
    """What one pool runs: its role ("" when there is only one), the server's words, and its options file."""

    role: str
    pool: PoolPlan
    words: tuple[str, ...]
    options_file: str = ""
    options: str = ""


def manifest(
    plan: ServingPlan, workloads: Sequence[Workload], notes: Sequence[str] = (), *, scaled: bool = False
) -> str:
    """The documents of a plan, or three lines that say why there are none.

    Of pools that are `scaled` by another object it does not say how many workers they have.
    """
    engine = plan.request.engine
    if plan.request.router not in BY_TURNS:
        return _refused_router(plan)
    if engine in _SEVERAL_NODES and any(plan.nodes_of(one.pool) > 1 for one in workloads):
        return _refusal(plan)
    head = "".join(f"# {note}\n" for note in notes)
    maps = [_options_map(plan, one) for one in workloads if one.options]
    front = (
        router_documents(engine, app_of(plan), engine_image(plan), PORT) if plan.prefill is not None else []
    )
    pods = [_workload(plan, one, scaled=scaled) for one in workloads]
    return head + "---\n".join([*maps, weights_claim(plan), *pods, *front, _service(plan, workloads)])


def engine_image(plan: ServingPlan) -> str:
    """The engine's image for the maker of the GPUs."""
    engine, maker = plan.request.engine, maker_of(sheet_named(plan.request.gpu).gpu())
    return maker.images.get(engine, _IMAGES[engine])


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


def weights_claim(plan: ServingPlan) -> str:
    """The claim for the weights that every pod reads."""
    return _CLAIM.format(app=app_of(plan))


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


def _workload(plan: ServingPlan, workload: Workload, *, scaled: bool) -> str:
    """One Deployment, or one LeaderWorkerSet when a worker needs several nodes."""
    nodes, pool = plan.nodes_of(workload.pool), workload.pool
    if nodes > 1:
        workload = replace(workload, words=(*workload.words, *_SGLANG_NODES))
    container = _container(plan, workload, -(-pool.layout.num_gpus // nodes))
    name, labels = pool_name(plan, workload.role), f"{{app: {app_of(plan)}, pool: {workload.role or 'all'}}}"
    workers = "" if scaled else f"  replicas: {pool.workers}\n"
    if nodes == 1:
        return _DEPLOYMENT.format(
            name=name,
            labels=labels,
            workers=workers,
            container=_indented(container, 6),
            notes=_annotations(plan, workload),
        )
    return _WORKER_SET.format(
        name=name, labels=labels, workers=workers, pods=nodes, container=_indented(container, 8)
    )


def _annotations(plan: ServingPlan, workload: Workload) -> str:
    """What SGLang's router must know of a prefill pod."""
    if plan.request.engine != "sglang" or workload.role != "prefill":
        return ""
    return f'      annotations: {{{BOOTSTRAP_ANNOTATION}: "{BOOTSTRAP_PORT}"}}\n'


_DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
{workers}  selector:
    matchLabels: {labels}
  template:
    metadata:
      labels: {labels}
{notes}    spec:
{container}"""

_WORKER_SET = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {name}
spec:
{workers}  leaderWorkerTemplate:
    size: {pods}
    workerTemplate:
      metadata:
        labels: {labels}
      spec:
{container}"""

_CONTAINER = """\
containers:
- name: {engine}
  image: {image}
  command: {command}
  ports:
  - name: {door}
    containerPort: {port}
  env:
  - name: HF_HOME
    value: /weights
  - name: HF_TOKEN
    valueFrom:
      secretKeyRef: {{name: {secret}, key: token, optional: true}}
{environment}  resources:
    limits:
      {resource}: {gpus}
{rdma}  readinessProbe:
    httpGet: {{path: /health, port: {port}}}
    periodSeconds: 10
    failureThreshold: 180
  volumeMounts:
  - {{name: shm, mountPath: /dev/shm}}
  - {{name: weights, mountPath: /weights}}
{mounts}volumes:
- name: shm
  emptyDir: {{medium: Memory}}
- name: weights
  persistentVolumeClaim: {{claimName: {app}-weights}}
{volumes}"""

_SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector: {selector}
  ports:
  - port: {port}
    targetPort: {port}
"""

_CLAIM = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: {app}-weights
spec:
  accessModes: [ReadWriteMany]
  resources:
    requests:
      storage: 2Ti
"""

_SIDE_CHANNEL = """\
  - name: VLLM_NIXL_SIDE_CHANNEL_HOST
    valueFrom:
      fieldRef: {fieldPath: status.podIP}
"""
"""Where other pods fetch a cache: vLLM says localhost otherwise."""

_RDMA = """\
      {resource}: 1
  securityContext:
    capabilities: {{add: [IPC_LOCK]}}
"""
"""What moving caches, and stages over nodes, pin and send; without it they go through TCP."""

_OPTIONS_MAP = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}-options
data:
  {file}: |
{text}"""


def _container(plan: ServingPlan, workload: Workload, gpus: int) -> str:
    """The container of a worker, with its GPUs, shared memory and options (a JSON list is YAML).

    Servers listen on every address, or the probe and the Service could not reach them.
    """
    name, maker = pool_name(plan, workload.role), maker_of(sheet_named(plan.request.gpu).gpu())
    mounts = f"  - {{name: options, mountPath: {OPTIONS_DIRECTORY}}}\n"
    volumes = f"- name: options\n  configMap: {{name: {name}-options}}\n"
    path = f"{OPTIONS_DIRECTORY}/{workload.options_file}"
    words = [path if word == workload.options_file else word for word in workload.words]
    if plan.request.engine == "sglang" and workload.role == "prefill":
        words += ["--disaggregation-bootstrap-port", str(BOOTSTRAP_PORT)]
    apart = bool(workload.role) or plan.nodes_of(workload.pool) > 1
    return _CONTAINER.format(
        engine=plan.request.engine,
        image=engine_image(plan),
        app=app_of(plan),
        secret=TOKEN_SECRET,
        environment=_SIDE_CHANNEL if workload.role and plan.request.engine == "vllm" else "",
        rdma=_RDMA.format(resource=RDMA_RESOURCE) if apart else "",
        command=json.dumps([*words, "--host", "0.0.0.0"]),  # noqa: S104  # inside a pod
        port=PORT,
        door=DOOR,
        resource=maker.resource,
        gpus=gpus,
        mounts=mounts if workload.options else "",
        volumes=volumes if workload.options else "",
    )


def _options_map(plan: ServingPlan, workload: Workload) -> str:
    """The options file of a pool."""
    return _OPTIONS_MAP.format(
        name=pool_name(plan, workload.role), file=workload.options_file, text=_indented(workload.options, 4)
    )


def _indented(text: str, spaces: int) -> str:
    """A block of YAML moved to the right."""
    return "".join(f"{' ' * spaces}{line}\n" for line in text.splitlines())


def _service(plan: ServingPlan, workloads: Sequence[Workload]) -> str:
    """The Service in front of the pool that takes requests; of several nodes the leader takes them."""
    front = workloads[0]
    if front.role:
        return _SERVICE.format(
            name=app_of(plan), selector=f"{{app: {app_of(plan)}, pool: {ROUTER}}}", port=PORT
        )
    leader = ', leaderworkerset.sigs.k8s.io/worker-index: "0"' if plan.nodes_of(front.pool) > 1 else ""
    selector = f"{{app: {app_of(plan)}, pool: {front.role or 'all'}{leader}}}"
    return _SERVICE.format(name=app_of(plan), selector=selector, port=PORT)


def _slug(name: str) -> str:
    """A name that Kubernetes accepts.

    >>> _slug("llama-3.1-70b")
    'llama-3-1-70b'
    """
    return "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
