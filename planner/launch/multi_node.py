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

from planner.serving.plan import PoolPlan, ServingPlan

HEAD = "<address of node 0>"
RPC_PORT, INIT_PORT = 13345, 20000


def nodes_of(plan: ServingPlan, pool: PoolPlan) -> int:
    """Nodes that one worker of a pool spans."""
    return -(-pool.layout.num_gpus // plan.gpus_per_node)


def node_commands(plan: ServingPlan, pool: PoolPlan, words: Sequence[str]) -> dict[str, list[str]]:
    """The words of the server on every node, by the node's name; one command without a name for one node."""
    nodes = nodes_of(plan, pool)
    if nodes == 1:
        return {"": list(words)}
    if plan.request.engine == "trtllm":
        return {"": [*_srun(nodes, pool.layout.num_gpus), *words]}
    told = {"vllm": _vllm, "sglang": _sglang}[plan.request.engine]
    return {f"node {rank}": [*words, *told(pool, nodes, rank)] for rank in range(nodes)}


def _vllm(pool: PoolPlan, nodes: int, rank: int) -> list[str]:
    """Flags of one node of vLLM."""
    headless = ["--headless"] if rank else []
    ranks = pool.layout.attention_dp
    if ranks == 1:
        return ["--nnodes", str(nodes), "--node-rank", str(rank), "--master-addr", HEAD, *headless]
    local = ranks // nodes
    start = ["--data-parallel-start-rank", str(rank * local)] if rank else []
    address = ["--data-parallel-address", HEAD, "--data-parallel-rpc-port", str(RPC_PORT)]
    return ["--data-parallel-size-local", str(local), *start, *address, *headless]


def _sglang(_pool: PoolPlan, nodes: int, rank: int) -> list[str]:
    """Flags of one node of SGLang."""
    return [
        "--nnodes", str(nodes), "--node-rank", str(rank), "--dist-init-addr", f"{HEAD}:{INIT_PORT}",
    ]  # fmt: skip


def _srun(nodes: int, gpus: int) -> list[str]:
    """The launcher of TensorRT-LLM under Slurm, one task a GPU."""
    here = gpus // nodes
    return [
        "srun", "-N", str(nodes), "--ntasks", str(gpus), f"--ntasks-per-node={here}", "--mpi=pmix",
        f"--gres=gpu:{here}", "trtllm-llmapi-launch",
    ]  # fmt: skip


def node_notes(plan: ServingPlan, pools: Sequence[PoolPlan]) -> tuple[str, ...]:
    """What the commands of several nodes need."""
    widest = max(nodes_of(plan, pool) for pool in pools)
    if widest == 1:
        return ()
    if plan.request.engine == "trtllm":
        return (f"a worker spans {widest} nodes: srun starts it in a Slurm allocation of that many",)
    where = f"start its command on each of them, with {HEAD} filled in"
    return (f"a worker spans {widest} nodes: {where}; clients and the benchmark talk to node 0",)
