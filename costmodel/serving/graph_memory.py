"""Memory of captured graphs, as an engine's profile counts it before it sizes its cache.

vLLM captures the first two sizes of a kind and takes all others to be as large as the second (pull 30515). A
graph holds no activations of its own, since all share a pool; it holds nodes, as many as its layers launch:

    bytes = b + e·[experts] + c·L·(P + F)

Legend: ``L`` layers of a stage, ``P`` and ``F`` sizes captured in pieces and whole, ``s`` requests, ``w``
tokens of a request's decode step; b, e, c of `GraphMemory`.
"""

from __future__ import annotations

from costmodel.serving.deployment import Deployment, layers_of_stages
from topology.hardware.datasheets import generation_of

MOST_CAPTURED = 512
"""Tokens of the largest graph, unless a server is told (vLLM v0.20 to v0.33, config/vllm.py)."""
_SEVERAL_TOKENS = ("9.0", "10.0", "10.3")
_STEPS = ((8, 8), (256, 16))


def captured_sizes(most: int) -> tuple[int, ...]:
    """Sizes in tokens of the graphs up to `most`: 1, 2, 4, by 8 below 256, by 16 from there.

    >>> [len(captured_sizes(most)) for most in (0, 4, 128, 256, 512)]
    [0, 3, 19, 35, 51]
    """
    (first, fine), (middle, coarse) = _STEPS
    sizes = (1, 2, 4, *range(first, middle, fine), *range(middle, most + 1, coarse))
    return tuple(size for size in sizes if size <= most)


def captured_graphs(requests: int, width: int, most: int = MOST_CAPTURED, *, whole: bool = True) -> int:
    """Graphs of steps in pieces, up to 2·s·w tokens, and of `whole` decode steps, up to s·w.

    Logs of 0.19 to 0.26 print 51 and 35 of 256 requests, 35 and 19 of 128, 1 and 1 where one is the most.

    >>> captured_graphs(256, 1), captured_graphs(128, 1), captured_graphs(1, 1, 1)
    (86, 54, 2)
    >>> captured_graphs(2, 4, whole=False)
    5
    """
    tokens = requests * width
    pieces = len(captured_sizes(min(2 * tokens, most)))
    return pieces + len(captured_sizes(min(tokens, most))) * whole


def captures_whole_steps(deployment: Deployment) -> bool:
    """Whether graphs hold whole decode steps, of several tokens a request where it is drafted for.

    An eight-bit cache of other GPUs than Hopper's and B200's is FlashInfer's, whose graphs take one token a
    request: "FULL_AND_PIECEWISE is not supported with spec-decode" (logs of RTX 3090 and RTX 5090).
    """
    built, compressed = generation_of(deployment.hierarchy.gpu), deployment.model.compression is not None
    several = built.compute_capability in _SEVERAL_TOKENS or compressed or built.maker != "nvidia"
    return several or not deployment.draft_tokens or deployment.kv_dtype != "fp8"


def graphs_bytes(deployment: Deployment, max_batch: float) -> float:
    """Bytes that the engine counts of its graphs on one GPU, `max_batch` requests at once over all ranks.

    Printed (public threads): Qwen2.5-72B on four L40S 2.73 GiB, Qwen3.5-35B-A3B on a GB10 1.65,
    Qwen3.8-27B on a GB10 1.56 and on an L40S 1.11, Qwen3.6-35B-A3B with one size 0.43.

    >>> from dataclasses import replace
    >>> from topology.builders import default_cluster
    >>> from costmodel.models.catalog import model
    >>> from costmodel.serving.deployment import ServingLayout
    >>> from costmodel.serving.engine import at_version, serving_stack
    >>> deployed = Deployment(
    ...     model=model("qwen3.5-35b-a3b"),
    ...     hierarchy=default_cluster("h100-sxm", 8).hierarchy,
    ...     layout=ServingLayout(),
    ...     stack=serving_stack("vllm"),
    ... )
    >>> versions = ("0.19.1", "0.20.0", "0.31.0")
    >>> stacks = [at_version(serving_stack("vllm"), version) for version in versions]
    >>> [round(graphs_bytes(replace(deployed, stack=stack), 256) / 2**30, 2) for stack in stacks]
    [0.0, 1.13, 0.62]
    """
    stack, layout, model = deployment.stack, deployment.layout, deployment.model
    if not stack.graphs or stack.graph_batch == 0:
        return 0.0
    counted = stack.graphs[-1]
    if not (counted.counts_plain or model.is_moe or model.recurrence):
        return 0.0
    width = 1 + deployment.draft_tokens
    most = MOST_CAPTURED if stack.graph_batch is None else stack.graph_batch * width
    requests, whole = int(max_batch / layout.attention_dp), captures_whole_steps(deployment)
    graphs = captured_graphs(requests, width, min(most, MOST_CAPTURED), whole=whole)
    layers, stage = layers_of_stages(deployment), deployment.stage
    held = max(layers) if stage is None else layers[stage]
    each = counted.shared_layer_bytes if layout.stage_gpus > 1 else counted.layer_bytes
    return counted.base_bytes + counted.expert_bytes * model.is_moe + each * held * graphs
