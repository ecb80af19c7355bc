"""What each node of a worker that spans several must run.

vLLM: `vllm serve` on every node, headless on all but the first. Tensor and pipeline ranks are told by
``--nnodes --node-rank --master-addr`` (docs.vllm.ai, Parallelism and Scaling, Running vLLM with
MultiProcessing), attention ranks by ``--data-parallel-size-local --data-parallel-start-rank`` and the address
of the first node (Data Parallel Deployment, Internal Load Balancing).
SGLang: the same server on every node with ``--nnodes --node-rank --dist-init-addr`` (docs.sglang.io,
Multi-Node Deployment).
TensorRT-LLM: one `srun` starts a process a GPU through ``trtllm-llmapi-launch``
(nvidia.github.io/TensorRT-LLM, trtllm-serve, Multi-node Serving with Slurm).
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.deployment.placement import PlacedWorker, address, nodes_of
from planner.serving.plan import ServingPlan

RPC_PORT, INIT_PORT = 13345, 20000


def node_commands(plan: ServingPlan, server: PlacedWorker, words: Sequence[str]) -> dict[int, list[str]]:
    """The words of a server on every node that runs a command of it, by the node's number."""
    nodes = server.nodes
    if len(nodes) == 1:
        return {nodes[0]: list(words)}
    if plan.request.engine == "trtllm":
        return {nodes[0]: [*_srun(len(nodes), server.pool.layout.num_gpus), *words]}
    result = {"vllm": _vllm, "sglang": _sglang}[plan.request.engine]
    return {node: [*words, *result(server, rank)] for rank, node in enumerate(nodes)}


def _vllm(server: PlacedWorker, rank: int) -> list[str]:
    """Flags of one node of vLLM."""
    nodes, head = len(server.nodes), address(server.nodes[0])
    headless = ["--headless"] if rank else []
    ranks = server.pool.layout.attention_dp
    if ranks == 1:
        return ["--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", head, *headless]
    local = ranks // nodes
    start = ["--data-parallel-start-rank", str(rank * local)] if rank else []
    where = ["--data-parallel-address", head, "--data-parallel-rpc-port", str(RPC_PORT)]
    return ["--data-parallel-size-local", str(local), *start, *where, *headless]


def _sglang(server: PlacedWorker, rank: int) -> list[str]:
    """Flags of one node of SGLang."""
    nodes, head = str(len(server.nodes)), address(server.nodes[0])
    return ["--nnodes", nodes, "--node-rank", str(rank), "--dist-init-addr", f"{head}:{INIT_PORT}"]


def _srun(nodes: int, gpus: int) -> list[str]:
    """The launcher of TensorRT-LLM under Slurm, one task a GPU."""
    here = gpus // nodes
    return [
        "srun", "-N", str(nodes), "--ntasks", str(gpus), f"--ntasks-per-node={here}", "--mpi=pmix",
        f"--gres=gpu:{here}", "trtllm-llmapi-launch",
    ]  # fmt: skip


def node_notes(plan: ServingPlan, servers: Sequence[PlacedWorker]) -> tuple[str, ...]:
    """What the commands of several nodes need."""
    widest = max(len(server.nodes) for server in servers)
    if widest == 1 or plan.request.engine != "trtllm":
        return by_hand(plan, servers)
    srun = f"a worker spans {widest} nodes: srun starts it in a Slurm allocation of that many"
    return (srun, *by_hand(plan, servers))


def by_hand(plan: ServingPlan, servers: Sequence[PlacedWorker]) -> tuple[str, ...]:
    """What of that a folder's own scripts do: each is a step of its README already."""
    nodes, widest = nodes_of(servers), max(len(server.nodes) for server in servers)
    result = []
    if widest > 1 and plan.request.engine != "trtllm":
        result.append(f"a worker spans {widest} nodes: start its command on each of them")
    if nodes > 1 and not (len(servers) == 1 and plan.request.engine == "trtllm"):
        result.append(
            f"fill in {address(0)} and those of the others; clients and the benchmark talk to node 0"
        )
    return tuple(result)
