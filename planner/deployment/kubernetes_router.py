"""What stands in front of two pools in Kubernetes, so that a request meets both.

vLLM's and SGLang's routers watch the pods of a namespace by their labels (`vllm-router`, `sglang_router`:
--service-discovery); `trtllm-serve disaggregated` reads a file with one address a pool, whose Service
spreads over its pods.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

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


def router_documents(engine: str, app: str, image: str, port: int) -> list[str]:
    """The documents of the router of two pools."""
    if engine not in PACKAGES:
        return [
            *(_POOL_SERVICE.format(app=app, role=role, port=port) for role in ("prefill", "decode")),
            _ADDRESSES.format(app=app, port=port),
            _DEPLOYMENT.format(
                app=app, image=image, port=port, account="", extra=_MOUNT.format(app=app),
                command=json.dumps(["trtllm-serve", "disaggregated", "-c", "/etc/router/router.yaml"]),
            ),
        ]  # fmt: skip
    words = [*_START[engine], "--host", "0.0.0.0", "--port", str(port), "--policy", "round_robin"]  # noqa: S104  # a pod
    words += ["--service-discovery", "--service-discovery-port", str(port)]
    words += ["--service-discovery-namespace", "$(NAMESPACE)"]
    for role in ("prefill", "decode"):
        words += [f"--{role}-selector", f"app={app}", f"pool={role}"]
    script = f"pip install --no-cache-dir {PACKAGES[engine]} && exec {' '.join(words)}"
    script = script.replace("$(NAMESPACE)", '"$NAMESPACE"')
    return [
        _ACCOUNT.format(app=app),
        _DEPLOYMENT.format(
            app=app, image=IMAGE, port=port, account=f"      serviceAccountName: {app}-router\n",
            command=json.dumps(["sh", "-c", script]), extra=_NAMESPACE,
        ),
    ]  # fmt: skip


_ACCOUNT = """\
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {app}-router
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {app}-router
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {app}-router
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {app}-router
subjects:
- kind: ServiceAccount
  name: {app}-router
"""

_DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {app}-router
spec:
  replicas: 1
  selector:
    matchLabels: {{app: {app}, pool: router}}
  template:
    metadata:
      labels: {{app: {app}, pool: router}}
    spec:
{account}      containers:
      - name: router
        image: {image}
        command: {command}
        ports:
        - containerPort: {port}
        readinessProbe:
          httpGet: {{path: /health, port: {port}}}
          periodSeconds: 10
          failureThreshold: 180
{extra}"""

_NAMESPACE = """\
        env:
        - name: NAMESPACE
          valueFrom:
            fieldRef: {fieldPath: metadata.namespace}
"""

_MOUNT = """\
        volumeMounts:
        - {{name: addresses, mountPath: /etc/router}}
      volumes:
      - name: addresses
        configMap: {{name: {app}-router}}
"""

_POOL_SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: {app}-{role}
spec:
  selector: {{app: {app}, pool: {role}}}
  ports:
  - port: {port}
    targetPort: {port}
"""

_ADDRESSES = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {app}-router
data:
  router.yaml: |
    hostname: 0.0.0.0
    port: {port}
    backend: pytorch
    context_servers:
      num_instances: 1
      urls:
      - "{app}-prefill:{port}"
    generation_servers:
      num_instances: 1
      urls:
      - "{app}-decode:{port}"
"""
