"""A serving plan behind Triton Inference Server: its model repository, and a script of every node.

TensorRT-LLM's backend for Triton runs the LLM API; keys of ``model.yaml`` are arguments of `LLM()`, and the
backend's Python files are those of the TensorRT-LLM in the image. Engines that were built ahead
(`trtllm-build`) are deprecated there, and FasterTransformer, whose successor this is, has ended.

Files: TensorRT-LLM, triton_backend/all_models/llmapi; docs.nvidia.com, Triton Inference Server 26.09
(Deploying an LLM with Triton and TRT-LLM).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from planner.deployment.placement import PlacedWorker, nodes_of, servers_of
from planner.deployment.vllm_sglang import balance, served_checkpoint
from planner.engines.quoting import single_line, yaml
from planner.serving.plan import PoolPlan, ServingPlan
from topology.base.errors import InputError

IMAGE: Final = "nvcr.io/nvidia/tritonserver:26.09-trtllm-python-py3"
REPOSITORY: Final = "triton-models"
_MODEL: Final = "tensorrt_llm"
_PORT, _APART = 8000, 10
"""HTTP, gRPC and metrics of a server are the port and the two after it."""
_SOURCE: Final = "https://github.com/NVIDIA/TensorRT-LLM"

_INPUTS: Final = (
    ("text_input", "TYPE_STRING", -1, False), ("streaming", "TYPE_BOOL", 1, True),
    ("sampling_param_temperature", "TYPE_FP32", 1, True), ("sampling_param_top_k", "TYPE_INT32", 1, True),
    ("sampling_param_top_p", "TYPE_FP32", 1, True), ("sampling_param_max_tokens", "TYPE_INT32", 1, True),
    ("sampling_param_stop", "TYPE_STRING", -1, True), ("sampling_param_seed", "TYPE_UINT64", 1, True),
    ("sampling_param_exclude_input_from_output", "TYPE_BOOL", 1, True),
    ("return_finish_reason", "TYPE_BOOL", 1, True), ("return_stop_reason", "TYPE_BOOL", 1, True),
    ("return_cumulative_logprob", "TYPE_BOOL", 1, True), ("stop", "TYPE_BOOL", 1, True),
)  # fmt: skip
_OUTPUTS: Final = (
    ("text_output", "TYPE_STRING"), ("finish_reason", "TYPE_STRING"), ("stop_reason", "TYPE_STRING"),
    ("cumulative_logprob", "TYPE_FP32"),
)  # fmt: skip
"""Tensors of the backend that a request for text needs; it sends others only when asked for them."""


def triton_files(plan: ServingPlan) -> dict[str, str]:
    """The model repository, and what starts it, by their path in the folder."""
    _check(plan)
    servers = servers_of(plan)
    place = f"{REPOSITORY}/{_MODEL}"
    return {
        f"{place}/config.pbtxt": config(),
        f"{place}/1/model.yaml": yaml(model_yaml(plan, plan.decode)),
        **{
            f"triton-node{node}.sh": _script(node, [server for server in servers if server.nodes == (node,)])
            for node in range(nodes_of(servers))
        },
    }


def _check(plan: ServingPlan) -> None:
    """Refuse what the backend cannot be told."""
    engine, nodes = plan.request.engine, plan.nodes_of(plan.decode)
    if engine != "trtllm":
        raise InputError(
            what=f"Triton is not written for {engine}",
            cause="the model repository is of TensorRT-LLM's backend",
            fix="use --engine trtllm, or --deploy scripts,kubernetes",
        )
    if plan.prefill is not None or nodes > 1:
        cause = "prompts and outputs run in two pools" if plan.prefill else f"a worker spans {nodes} nodes"
        raise InputError(
            what="Triton cannot run this fleet",
            cause=f"{cause}; one Triton server runs one whole TensorRT-LLM in one node",
            fix="use --mode aggregated and a layout that fits a node, or --deploy dynamo",
        )


def model_yaml(plan: ServingPlan, pool: PoolPlan) -> dict[str, Any]:
    """Arguments of TensorRT-LLM's `LLM()`, and what Triton is told of the model."""
    layout = pool.layout
    cache = {"kv_cache_config": {"dtype": "fp8"}} if plan.kv_dtype == "fp8" else {}
    experts = {"moe_expert_parallel_size": layout.ep} if layout.ep > 1 else {}
    return {
        "model": served_checkpoint(plan),
        "backend": "pytorch",
        "tensor_parallel_size": layout.stage_gpus,
        "pipeline_parallel_size": layout.pp,
        **experts,
        **({"enable_attention_dp": True} if layout.attention_dp > 1 else {}),
        **({"attention_dp_config": waits} if (waits := balance(pool)) else {}),
        "max_batch_size": -(-pool.max_batch // layout.attention_dp),
        "max_num_tokens": pool.token_budget,
        "max_seq_len": plan.request.longest,
        **cache,
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }


def config() -> str:
    """The tensors of the model as Triton's protobuf text; batches and streaming are told in model.yaml."""
    inputs = ",\n".join(
        _tensor(name, kind, dims) + ("    optional: true\n  }" if optional else "  }")
        for name, kind, dims, optional in _INPUTS
    )
    outputs = ",\n".join(_tensor(name, kind, -1) + "  }" for name, kind in _OUTPUTS)
    return (
        f'name: "{_MODEL}"\nbackend: "python"\n\n'
        "instance_group [\n  {\n    count: 1\n    kind: KIND_CPU\n  }\n]\n\n"
        f"input [\n{inputs}\n]\n\noutput [\n{outputs}\n]\n"
    )


def _tensor(name: str, kind: str, dims: int) -> str:
    """One tensor, its last brace left open."""
    return f'  {{\n    name: "{name}"\n    data_type: {kind}\n    dims: [ {dims} ]\n'


def _script(node: int, servers: Sequence[PlacedWorker]) -> str:
    """What starts the servers of a node inside the image, beside each other."""
    doors = ", ".join(str(_door(server)) for server in servers)
    what = f"node {node}: run in {IMAGE}; servers answer on ports {doors}"
    files = f"{REPOSITORY}/{_MODEL}/1"
    lines = [
        "#!/bin/bash",
        f"# {single_line(what)}",
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")"',
        f"if [ ! -e {files}/model.py ]; then",
        "  version=$(python3 -c 'import tensorrt_llm; print(tensorrt_llm.__version__)' | tail -n 1)",
        f'  git clone --quiet --depth 1 --branch "v$version" {_SOURCE} tensorrt-llm',
        f"  cp tensorrt-llm/triton_backend/all_models/llmapi/{_MODEL}/1/*.py {files}/",
        "fi",
        "pids=()",
        "trap 'kill \"${pids[@]}\" 2>/dev/null || true' EXIT",
    ]
    for server in servers:
        ports = " ".join(
            f"--{name}-port {_door(server) + n}" for n, name in enumerate(("http", "grpc", "metrics"))
        )
        gpus = ",".join(map(str, server.gpus))
        lines += [
            f"CUDA_VISIBLE_DEVICES={gpus} tritonserver --model-repository {REPOSITORY} {ports} &",
            'pids+=("$!")',
        ]
    return "\n".join([*lines, "wait -n", ""])


def _door(server: PlacedWorker) -> int:
    """The HTTP port of a server."""
    return _PORT + _APART * server.gpus[0]
