"""What stands in front of two pools in Kubernetes, so that a request meets both.

vLLM's and SGLang's routers watch the pods of a namespace by their labels (`vllm-router`, `sglang_router`:
--service-discovery); `trtllm-serve disaggregated` reads a file with one address a pool, whose Service
spreads over its pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from planner.engines.quoting import LiteralBlock, yaml

Document: TypeAlias = dict[str, Any]
"""An object of Kubernetes, or a part of one."""
ROUTER: Final = "router"
PACKAGES: Final[Mapping[str, str]] = {"vllm": "vllm-router==0.1.17", "sglang": "sglang-router==0.3.2"}
"""Routers as Python packages (as of 2026-11-23); neither has an image of the engine's version."""
IMAGE: Final = "python:3.12-slim"
_START: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("vllm-router", "--vllm-pd-disaggregation"),
    "sglang": ("python", "-m", "sglang_router.launch_router", "--pd-disaggregation"),
}
BOOTSTRAP_ANNOTATION: Final = "sglang.ai/bootstrap-port"
BOOTSTRAP_PORT: Final = 8998
"""SGLang's own default, which the annotation tells the router."""


def router_documents(engine: str, app: str, image: str, port: int) -> list[Document]:
    """The documents of the router of two pools."""
    name = f"{app}-{ROUTER}"
    if engine not in PACKAGES:
        words = ["trtllm-serve", "disaggregated", "-c", "/etc/router/router.yaml"]
        container = _container(image, words, port)
        container["volumeMounts"] = [{"name": "addresses", "mountPath": "/etc/router"}]
        pod = {"containers": [container], "volumes": [{"name": "addresses", "configMap": {"name": name}}]}
        pools = [service(f"{app}-{role}", {"app": app, "pool": role}, port) for role in ("prefill", "decode")]
        addresses = document(
            "ConfigMap", name, data={"router.yaml": LiteralBlock(yaml(_addresses(app, port)))}
        )
        return [*pools, addresses, _deployment(app, pod)]
    words = [*_START[engine], "--host", "0.0.0.0", "--port", str(port), "--policy", "round_robin"]  # noqa: S104  # a pod
    words += ["--service-discovery", "--service-discovery-port", str(port)]
    words += ["--service-discovery-namespace", "$(NAMESPACE)"]
    for role in ("prefill", "decode"):
        words += [f"--{role}-selector", f"app={app}", f"pool={role}"]
    script = f"pip install --no-cache-dir {PACKAGES[engine]} && exec {' '.join(words)}"
    script = script.replace("$(NAMESPACE)", '"$NAMESPACE"')
    container = _container(IMAGE, ["sh", "-c", script], port)
    container["env"] = [{"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}]
    return [*_account(name), _deployment(app, {"serviceAccountName": name, "containers": [container]})]


def document(kind: str, name: str, version: str = "v1", **parts: object) -> Document:
    """An object of Kubernetes.

    >>> document("ConfigMap", "options", data={"a": "b"})["metadata"]
    {'name': 'options'}
    """
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **parts}


def service(name: str, selector: Mapping[str, str], port: int) -> Document:
    """The Service in front of the pods that a selector names."""
    ports = [{"port": port, "targetPort": port}]
    return document("Service", name, spec={"selector": dict(selector), "ports": ports})


def readiness(port: int) -> Document:
    """Half an hour for a server to load its weights."""
    return {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 10, "failureThreshold": 180}


def _account(name: str) -> list[Document]:
    """What lets a router watch the pods of its namespace."""
    group, version = "rbac.authorization.k8s.io", "rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    role = {"apiGroup": group, "kind": "Role", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": name}]
    return [
        document("ServiceAccount", name),
        document("Role", name, version, rules=rules),
        document("RoleBinding", name, version, roleRef=role, subjects=subjects),
    ]


def _deployment(app: str, pod: Document) -> Document:
    """One router."""
    labels = {"app": app, "pool": ROUTER}
    template = {"metadata": {"labels": labels}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return document("Deployment", f"{app}-{ROUTER}", "apps/v1", spec=spec)


def _container(image: str, command: list[str], port: int) -> Document:
    """The router's container."""
    return {
        "name": ROUTER, "image": image, "command": command, "ports": [{"containerPort": port}],
        "readinessProbe": readiness(port),
    }  # fmt: skip


def _addresses(app: str, port: int) -> Document:
    """What `trtllm-serve disaggregated` reads: the Service of each pool."""
    pools = {
        f"{stage}_servers": {"num_instances": 1, "urls": [f"{app}-{role}:{port}"]}
        for stage, role in (("context", "prefill"), ("generation", "decode"))
    }
    return {"hostname": "0.0.0.0", "port": port, "backend": "pytorch", **pools}  # noqa: S104  # inside a pod
