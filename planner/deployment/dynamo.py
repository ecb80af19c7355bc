"""A serving plan as NVIDIA Dynamo runs it: a DynamoGraphDeployment of a frontend and each pool's workers.

The frontend takes requests and spreads them by turns, as the plan was simulated (``DYN_ROUTER_MODE``);
workers start the engine by Dynamo's own module with the engine's words. A worker over several nodes is a
`multinode` component, of which the operator tells every node its part.

Fields: nvidia.com/v1beta1 and the blueprints of Dynamo's own profiler (ai-dynamo 1.6.1, `dynamo.profiler`);
flags: `dynamo.vllm`, `dynamo.sglang`, `dynamo.trtllm` of that version, which hand the rest on to the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from planner.deployment.kubernetes import (
    NVIDIA_RESOURCE,
    PORT,
    RDMA_RESOURCE,
    TOKEN_SECRET,
    app_of,
    needs_nvidia,
    token_variable,
    weights_claim,
)
from planner.deployment.kubernetes_router import document
from planner.deployment.vllm_sglang import engine_words, trtllm_options
from planner.engines.quoting import yaml
from planner.serving.plan import PoolPlan, ServingPlan

FILE: Final = "dynamo.yaml"
VERSION: Final = "1.6.1"
"""Of the images; it holds vLLM 0.31.0, SGLang 0.5.21 and TensorRT-LLM 1.3.0rc29 (its wheel's extras)."""
_RUNTIMES: Final = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
_BOOTSTRAP_PORT: Final = 12345
_OPTIONS: Final = "/etc/server-options"
_TRTLLM_FLAGS: Final = {
    "--tp_size": "--tensor-parallel-size", "--pp_size": "--pipeline-parallel-size",
    "--ep_size": "--expert-parallel-size", "--max_batch_size": "--max-batch-size",
    "--max_num_tokens": "--max-num-tokens", "--max_seq_len": "--max-seq-len",
    "--extra_llm_api_options": "--extra-engine-args",
}  # fmt: skip
"""What `dynamo.trtllm` calls the words of `trtllm-serve`."""


def dynamo_files(plan: ServingPlan) -> dict[str, str]:
    """The deployment by its file's name, with the options and the weights' claim that its workers read."""
    needs_nvidia(plan, "Dynamo")
    maps = [_options_map(plan, pool, role) for role, pool in plan.pools if _options(plan, pool, role)]
    components = [_frontend(plan), *(_worker(plan, pool, role) for role, pool in plan.pools)]
    graph = document(
        "DynamoGraphDeployment", app_of(plan), "nvidia.com/v1beta1", spec={"components": components}
    )
    head = (
        f"# clients ask port {PORT} of the Service {app_of(plan)}-frontend\n"
        f"# Dynamo {VERSION} has engines of its own versions: vLLM 0.31.0, SGLang 0.5.21, "
        "TensorRT-LLM 1.3.0rc29\n"
        f"# kubectl create secret generic {TOKEN_SECRET} --from-literal=token=... reads gated weights\n"
    )
    return {FILE: head + yaml(*maps, weights_claim(plan), graph)}


def _image(plan: ServingPlan) -> str:
    """Dynamo's image of the engine."""
    return f"nvcr.io/nvidia/ai-dynamo/{_RUNTIMES[plan.request.engine]}:{VERSION}"


def _frontend(plan: ServingPlan) -> dict[str, Any]:
    """The component that takes requests."""
    main = {
        "name": "main",
        "image": _image(plan),
        "command": ["python3", "-m", "dynamo.frontend"],
        "env": [{"name": "DYN_ROUTER_MODE", "value": "round-robin"}, token_variable()],
    }
    return {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": _pod([main])}


def _worker(plan: ServingPlan, pool: PoolPlan, role: str) -> dict[str, Any]:
    """The component of a pool; `worker` serves whole requests."""
    nodes = plan.nodes_of(pool)
    limits: dict[str, Any] = {NVIDIA_RESOURCE: str(-(-pool.layout.num_gpus // nodes))}
    mounts = [{"name": "weights", "mountPath": "/weights"}]
    volumes: list[dict[str, Any]] = [
        {"name": "weights", "persistentVolumeClaim": {"claimName": f"{app_of(plan)}-weights"}}
    ]
    main: dict[str, Any] = {
        "name": "main",
        "image": _image(plan),
        "command": ["python3", "-m", f"dynamo.{plan.request.engine}"],
        "args": worker_words(plan, pool, role),
        "env": [{"name": "HF_HOME", "value": "/weights"}, token_variable()],
    }
    if role or nodes > 1:
        limits[RDMA_RESOURCE] = "1"
        main["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    if _options(plan, pool, role):
        mounts.append({"name": "options", "mountPath": _OPTIONS})
        volumes.append({"name": "options", "configMap": {"name": _options_name(plan, role)}})
    main |= {"resources": {"limits": limits}, "volumeMounts": mounts}
    several = {"multinode": {"nodeCount": nodes}} if nodes > 1 else {}
    return {
        "name": role or "worker", "type": role or "worker", "replicas": pool.workers, **several,
        "podTemplate": _pod([main], volumes),
    }  # fmt: skip


def worker_words(plan: ServingPlan, pool: PoolPlan, role: str) -> list[str]:
    """The words of Dynamo's module: the engine's without its own server, and the pool's part."""
    words = list(engine_words(plan, pool, role))
    at = words.index("--port")
    del words[at : at + 2]
    if plan.request.engine == "vllm":
        return ["--model", *words[2:], *_mode(role)]
    if plan.request.engine == "sglang":
        where = ["--host", "0.0.0.0", "--disaggregation-bootstrap-port", str(_BOOTSTRAP_PORT)]  # noqa: S104  # a pod
        return [*_older_sglang(words[3:]), *(where if role else [])]
    return ["--model", words[1], *_renamed(words[2:], role), *_mode(role)]


def _older_sglang(words: Sequence[str]) -> list[str]:
    """Attention ranks as SGLang 0.5.21 is told them.

    >>> _older_sglang(["--tp-size", "8", "--attn-dp-size", "4", "--ep-size", "8"])
    ['--tp-size', '8', '--dp-size', '4', '--enable-dp-attention', '--ep-size', '8']
    """
    if "--attn-dp-size" not in words:
        return list(words)
    at = words.index("--attn-dp-size")
    return [*words[:at], "--dp-size", words[at + 1], "--enable-dp-attention", *words[at + 2 :]]


def _mode(role: str) -> list[str]:
    """The pool's part in the words of `dynamo.vllm` and `dynamo.trtllm`."""
    return ["--disaggregation-mode", role] if role else []


def _renamed(words: Sequence[str], role: str) -> list[str]:
    """Flags of `trtllm-serve` as `dynamo.trtllm` calls them; it knows no backend but PyTorch's."""
    renamed = []
    for flag, value in zip(words[::2], words[1::2], strict=True):
        if flag != "--backend":
            file = f"{_OPTIONS}/{role or 'server'}.yaml"
            renamed += [_TRTLLM_FLAGS[flag], file if flag == "--extra_llm_api_options" else value]
    return renamed


def _options(plan: ServingPlan, pool: PoolPlan, role: str) -> str:
    """What TensorRT-LLM reads from a file."""
    return trtllm_options(plan, pool, role) if plan.request.engine == "trtllm" else ""


def _options_name(plan: ServingPlan, role: str) -> str:
    """Name of the ConfigMap that holds it."""
    return f"{app_of(plan)}-{role or 'server'}-options"


def _options_map(plan: ServingPlan, pool: PoolPlan, role: str) -> dict[str, Any]:
    """That ConfigMap."""
    data = {f"{role or 'server'}.yaml": _options(plan, pool, role) + "\n"}
    return document("ConfigMap", _options_name(plan, role), data=data)


def _pod(containers: list[dict[str, Any]], volumes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The template of a pod."""
    return {"spec": {"containers": containers, **({"volumes": volumes} if volumes else {})}}
