"""Ready-to-run commands of a serving plan.

The engine's servers in their places, the router in front of them, the client that would check it, a
Kubernetes manifest.

Only flags that the engines document are written (vLLM `vllm serve --help`, SGLang server arguments,
TensorRT-LLM `trtllm-serve`). Defaults that cost nothing are kept: every engine caches prefixes.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

from costmodel.models.catalog import hub_checkpoint, listed_model, model_names
from costmodel.models.spec import ModelSpec
from costmodel.parallel.divisions import EXPERTS
from costmodel.serving.adapters import buffer_rank
from costmodel.serving.deployment import published_weights
from costmodel.serving.engine import SchedulerDefault, scheduler_default, serving_stack
from planner.deployment.client import client_notes, client_words
from planner.deployment.kubernetes import PORT, RDMA_RESOURCE, TOKEN_SECRET, PoolWorkload, manifest
from planner.deployment.multi_node import node_commands, node_notes
from planner.deployment.placement import PlacedWorker, address, nodes_of, servers_of
from planner.deployment.remote_code import trusting
from planner.deployment.router import EVERYWHERE, router_files, router_words
from planner.serving.plan import PoolPlan, ServingPlan
from planner.serving.space import partition_words
from topology.base.units import GB, GIB, format_bytes
from topology.hardware.datasheets import sheet_named

_AT_LOAD = ("vllm", "sglang")
"""Engines that quantise a bf16 checkpoint to fp8 while they load it (`--quantization fp8`)."""
_NIXL = {"kv_connector": "NixlConnector"}
"""It pulls: a decode server fetches a cache from the prefill server that it is told of."""
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_PRODUCTS = {"attention": ("qkv_proj", "o_proj"), "mlp": ("gate_up_proj", "down_proj")}
"""Packed products that have adapters, by the block whose they are."""
_FORMATS = {"bf16": "BF16", "fp8": "FP8", "int8": "GPTQ-Int8", "int4": "AWQ", "fp4": "NVFP4"}
MOST_SHOWN = 16
"""Servers up to which every command is shown."""


def commands(plan: ServingPlan) -> dict[str, str]:
    """Every command of a plan by what it is for."""
    return {
        **{name: shlex.join(words) for name, words in _shown(plan).items()},
        **option_files(plan),
        **({"router": shlex.join(words)} if (words := router(plan)) else {}),
        **({"notes": "\n".join(values)} if (values := (*notes(plan), *client_notes(plan))) else {}),
        "benchmark": shlex.join(client_words(plan, served_checkpoint(plan))),
        "kubernetes": kubernetes(plan),
    }


def kubernetes(plan: ServingPlan, *, scaled: bool = False) -> str:
    """The manifest, with as many workers as planned, or for pools that something else scales."""
    workloads = [workload(plan, pool, role) for role, pool in plan.pools]
    if scaled and plan.request.engine == "sglang":  # its metrics page is off without the word
        workloads = [replace(item, words=(*item.words, "--enable-metrics")) for item in workloads]
    return manifest(plan, workloads, (*_pod_notes(plan), *notes(plan)), scaled=scaled)


def option_files(plan: ServingPlan) -> dict[str, str]:
    """The files that the commands name, by their name."""
    files = router_files(plan.request.engine, servers := servers_of(plan), nodes=nodes_of(servers))
    if plan.request.engine != "trtllm":
        return files
    options = {_options_file(role): trtllm_options(plan, pool, role) for role, pool in plan.pools}
    return {name: text for name, text in options.items() if text} | files


def router(plan: ServingPlan) -> list[str]:
    """The words that start what spreads requests over the servers; none before a single one."""
    servers = servers_of(plan)
    return router_words(plan.request.engine, servers, nodes=nodes_of(servers), policy=plan.request.router)


def _shown(plan: ServingPlan) -> dict[str, list[str]]:
    """The words of every server by where it runs; of a large fleet those of each pool's first worker."""
    servers = servers_of(plan)
    several = nodes_of(servers) > 1 and len(servers) > 1
    shown = {}
    for server in servers:
        if len(servers) > MOST_SHOWN and server.number:
            continue
        number = [str(server.number)] if server.pool.workers > 1 else []
        who = " ".join([*([server.role] if server.role else ["worker"] * len(number)), *number])
        by_node = server_commands(plan, server)
        for node, words in by_node.items():
            where = f"node {node}" if several or len(by_node) > 1 else ""
            place = ", ".join(part for part in (who, where) if part)
            shown[f"serve ({place})" if place else "serve"] = words
    return shown


def server_commands(plan: ServingPlan, server: PlacedWorker) -> dict[int, list[str]]:
    """The words that start one server, by node: what it must not share with others, and its command."""
    nodes = nodes_of(servers_of(plan))
    words = engine_words(plan, server.pool, server.role, server.port)
    if server.role == "prefill" and plan.request.engine == "sglang":
        words += ["--disaggregation-bootstrap-port", str(server.bootstrap_port)]
    if nodes > 1 and not server.alone:
        words += ["--host", EVERYWHERE]
    return {
        node: [*_environment(plan, server, address(node) if nodes > 1 else "127.0.0.1"), *command]
        for node, command in node_commands(plan, server, words).items()
    }


def _environment(plan: ServingPlan, server: PlacedWorker, host: str) -> list[str]:
    """Variables before a command: its GPUs where it shares the node, and where others fetch its caches."""
    gpus = ",".join(map(str, server.gpus))
    layers = server.pool.layout.layers
    staged = [partition_words(plan.request.engine, layers)] if layers else []
    environment = [f"CUDA_VISIBLE_DEVICES={gpus}"] if len(server.nodes) == 1 and not server.alone else []
    if server.role and plan.request.engine == "vllm":
        environment.append(f"VLLM_NIXL_SIDE_CHANNEL_HOST={host}")
        environment.append(f"VLLM_NIXL_SIDE_CHANNEL_PORT={server.side_channel_port}")
    environment = [*staged, *environment]
    return ["env", *environment] if environment else []


def checkpoint(model: ModelSpec) -> str:
    """Name of the checkpoint on the Hugging Face hub, when the catalog knows it; else the model's.

    >>> from costmodel.models.catalog import model
    >>> checkpoint(model("qwen3-32b"))
    'Qwen/Qwen3-32B'
    """
    return hub_checkpoint(model) or model.name


def _is_named(model: ModelSpec) -> bool:
    """Whether a server can be told what to load: not of a catalogued model without a checkpoint of a hub."""
    return bool(hub_checkpoint(model)) or model.name not in model_names()


def served_checkpoint(plan: ServingPlan) -> str:
    """The checkpoint to serve: the published one, or a placeholder for one in the plan's precision.

    Only fp8 can be made of a bf16 checkpoint while it is loaded; other formats are quantised beforehand. No
    checkpoint is named of a model that no hub has.
    """
    name = checkpoint(plan.request.model)
    as_published = plan.weights == published_weights(plan.request.model)
    known = _is_named(plan.request.model) and (as_published or _at_load(plan))
    return name if known else f"<{_FORMATS[plan.weights]} checkpoint of {name}>"


def _at_load(plan: ServingPlan) -> bool:
    """Whether the engine quantises the published checkpoint while it loads it."""
    published = published_weights(plan.request.model)
    return plan.request.engine in _AT_LOAD and published == "bf16" and plan.weights == "fp8"


def engine_words(plan: ServingPlan, pool: PoolPlan, role: str, port: int = PORT) -> list[str]:
    """The words of the server of a pool."""
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[plan.request.engine](plan, pool, role, port)


def _pod_notes(plan: ServingPlan) -> tuple[str, ...]:
    """What a cluster must have before the manifest starts."""
    token = f"kubectl create secret generic {TOKEN_SECRET} --from-literal=token=... reads gated weights"
    rdma = f"{RDMA_RESOURCE} is the RDMA device plugin's own example: put your cluster's name in its place"
    wide = plan.prefill is not None or any(plan.nodes_of(pool) > 1 for _, pool in plan.pools)
    return (token, rdma) if wide else (token,)


def notes(plan: ServingPlan) -> tuple[str, ...]:
    """What the commands do not start or cannot know."""
    servers = servers_of(plan)
    result = list(node_notes(plan, servers))
    if len(servers) > MOST_SHOWN:
        result.append(f"{len(servers)} servers: --save-dir DIR writes a script for every node")
    if served_checkpoint(plan).startswith("<"):
        placeholder = served_checkpoint(plan)
        known = _is_named(plan.request.model)
        why = "the published weights have another format" if known else "none is known here by name"
        result.append(f"put a checkpoint in place of {placeholder}: {why}")
    if (head := drafter_checkpoint(plan)).startswith("<"):
        result.append(f"put a drafter that was trained for the model in place of {head}")
    if host := plan.request.host_cache_bytes:
        result.append(f"every server keeps {format_bytes(host)} of caches in the memory of its hosts")
    if plan.request.job.adapter is not None:
        result.append(
            "name your adapters: --lora-modules NAME=PATH of vLLM, --lora-paths NAME=PATH of SGLang"
        )
    return tuple(result)


def workload(plan: ServingPlan, pool: PoolPlan, role: str) -> PoolWorkload:
    """What the manifest runs in a pool."""
    options = trtllm_options(plan, pool, role) if plan.request.engine == "trtllm" else ""
    return PoolWorkload(
        role=role,
        pool=pool,
        words=tuple(engine_words(plan, pool, role)),
        options_file=_options_file(role) if options else "",
        options=options,
    )


def _vllm(plan: ServingPlan, pool: PoolPlan, role: str, port: int) -> list[str]:
    """`vllm serve`; it takes requests as long as its cache and its model can hold."""
    layout = pool.layout
    words = ["vllm", "serve", served_checkpoint(plan), "--port", str(port)]
    words += _given("--tensor-parallel-size", layout.tp) + _given("--pipeline-parallel-size", layout.pp)
    words += _given("--data-parallel-size", layout.attention_dp)
    words += ["--enable-expert-parallel"] if layout.ep > 1 else []
    if copies := EXPERTS.short(plan.request.model.num_experts, layout.ep):
        words += ["--enable-eplb", "--eplb-config", json.dumps({"num_redundant_experts": copies})]
    words += _given("--decode-context-parallel-size", layout.dcp)
    default = _default(plan)
    words += _unless(default.max_batch, "--max-num-seqs", -(-pool.max_batch // layout.attention_dp))
    words += _unless(default.token_budget, "--max-num-batched-tokens", pool.token_budget)
    words += ["--max-model-len", "auto", *trusting("vllm", words[2])]
    words += _quantization(plan) + (["--kv-cache-dtype", "fp8"] if plan.kv_dtype == "fp8" else [])
    words += _memory("--gpu-memory-utilization", plan) + _speculation(plan)
    words += _adapted(plan, "--max-loras")
    if host := plan.request.host_cache_bytes:
        words += ["--kv-offloading-size", f"{host / GIB:g}"]
    if role:
        config = _NIXL | {"kv_role": _KV_ROLES[role]}
        words += ["--kv-transfer-config", json.dumps(config, separators=(",", ":"))]
    return words


def _sglang(plan: ServingPlan, pool: PoolPlan, role: str, port: int) -> list[str]:
    """`python -m sglang.launch_server`; its tp size counts all GPUs that share the experts.

    It takes requests as long as its model can hold, and divides the size of a prompt chunk by the attention
    ranks.
    """
    layout = pool.layout
    words = ["python", "-m", "sglang.launch_server", "--model-path", served_checkpoint(plan)]
    words += [*trusting("sglang", words[-1]), "--port", str(port)]
    words += [*_given("--tp-size", layout.stage_gpus), *_given("--pp-size", layout.pp)]
    if layout.attention_dp > 1:
        words += ["--attn-dp-size", str(layout.attention_dp)]
    words += _given("--ep-size", layout.ep)
    if copies := EXPERTS.short(plan.request.model.num_experts, layout.ep):
        words += ["--ep-num-redundant-experts", str(copies)]
    words += ["--max-running-requests", str(pool.max_batch)]
    chunk = pool.token_budget * layout.attention_dp
    words += _unless(_default(plan).token_budget, "--chunked-prefill-size", chunk)
    words += _quantization(plan) + _memory("--mem-fraction-static", plan) + _drafted_by_sglang(plan)
    words += _adapted(plan, "--max-loras-per-batch")
    if host := plan.request.host_cache_bytes:
        of_a_rank = max(int(host / GB / layout.num_gpus), 1)
        words += ["--enable-hierarchical-cache", "--hicache-size", str(of_a_rank)]
    words += ["--kv-cache-dtype", "fp8_e4m3"] if plan.kv_dtype == "fp8" else []
    if role:
        words += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
    return words


def _trtllm(plan: ServingPlan, pool: PoolPlan, role: str, port: int) -> list[str]:
    """`trtllm-serve`; what has no flag is in its options file. The batch is that of an attention rank."""
    layout = pool.layout
    words = ["trtllm-serve", served_checkpoint(plan), "--backend", "pytorch", "--port", str(port)]
    words += trusting("trtllm", words[1])
    words += (
        _given("--tp_size", layout.stage_gpus)
        + _given("--pp_size", layout.pp)
        + _given("--ep_size", layout.ep)
    )
    words += ["--max_batch_size", str(-(-pool.max_batch // layout.attention_dp))]
    words += ["--max_num_tokens", str(pool.token_budget)]
    words += ["--max_seq_len", str(plan.request.longest)]
    words += _memory("--kv_cache_free_gpu_memory_fraction", plan)
    if trtllm_options(plan, pool, role):
        words += ["--extra_llm_api_options", _options_file(role)]
    return words


def balance(pool: PoolPlan) -> dict[str, bool | int]:
    """TensorRT-LLM's `attention_dp_config`: how many steps prompts wait for those of other ranks."""
    if not (pool.balance_steps or pool.gather_steps):
        return {}
    return {
        "enable_balance": True,
        "timeout_iters": pool.balance_steps,
        "batching_wait_iters": pool.gather_steps,
    }


def trtllm_options(plan: ServingPlan, pool: PoolPlan, role: str) -> str:
    """The YAML of what `trtllm-serve` has no flag for: attention ranks, the cache, and its transfer."""
    lines = ["enable_attention_dp: true"] if pool.layout.attention_dp > 1 else []
    waits = balance(pool)
    lines += ["attention_dp_config:"] if waits else []
    lines += [f"  {key}: {json.dumps(value)}" for key, value in waits.items()]
    cache = ["  dtype: fp8"] if plan.kv_dtype == "fp8" else []
    lines += ["kv_cache_config:", *cache] if cache else []
    lines += ["cache_transceiver_config:", "  backend: DEFAULT"] if role else []
    lines += ["disable_overlap_scheduler: true"] if role == "prefill" else []
    job = plan.request.job
    if job.drafter == "mtp":
        lines += ["speculative_config:", "  decoding_type: MTP"]
        lines += [f"  num_nextn_predict_layers: {job.draft_tokens}"]
    return "\n".join(lines)


def _options_file(role: str) -> str:
    """Name of that file."""
    return f"{role or 'server'}-options.yaml"


def _default(plan: ServingPlan) -> SchedulerDefault:
    """What the server takes by itself on the plan's GPUs."""
    return scheduler_default(serving_stack(plan.request.engine), sheet_named(plan.request.gpu).gpu())


def _unless(default: int, flag: str, value: int) -> list[str]:
    """A flag with its value, unless that is what the server takes by itself."""
    return [] if value == default else [flag, str(value)]


def _given(flag: str, value: int) -> list[str]:
    """A flag with its value, unless that is the default of one."""
    return [flag, str(value)] if value > 1 else []


def _quantization(plan: ServingPlan) -> list[str]:
    """The flag that quantises at load time; checkpoints that are quantised already say so themselves."""
    return ["--quantization", "fp8"] if _at_load(plan) else []


def _memory(flag: str, plan: ServingPlan) -> list[str]:
    """The engine's memory setting, where it was asked for; else the engine takes its default.

    SGLang's is no constant: it would size the cache otherwise than was planned.
    """
    stack, fraction = serving_stack(plan.request.engine), plan.request.job.memory_fraction
    if fraction is None and stack.fraction_of == "static":
        fraction = stack.memory_fraction
    return [] if fraction is None else [flag, f"{fraction:g}"]


def drafter_checkpoint(plan: ServingPlan) -> str:
    """The checkpoint that drafts: none of its own (mtp, n-grams), one to be put in, or a model's."""
    job = plan.request.job
    if not job.draft_tokens or job.drafter in ("", "mtp"):
        return ""
    if job.drafter == "eagle3":
        return f"<EAGLE-3 head of {checkpoint(plan.request.model)}>"
    drafter = listed_model(job.drafter)
    return checkpoint(drafter) if _is_named(drafter) else f"<checkpoint of {drafter.name}>"


def _adapted(plan: ServingPlan, slots: str) -> list[str]:
    """Adapters of requests: slots of a batch, and the rank and the products of their buffers."""
    job = plan.request.job
    if job.adapter is None:
        return []
    rank = buffer_rank(serving_stack(plan.request.engine), job.adapter)
    products = [name for target in job.adapter.targets for name in _PRODUCTS[target]]
    words = ["--enable-lora", slots, str(job.adapters), "--max-lora-rank", str(rank)]
    return [*words, "--lora-target-modules", *products]


def _speculation(plan: ServingPlan) -> list[str]:
    """Speculative decoding of vLLM."""
    job, model = plan.request.job, drafter_checkpoint(plan)
    if not job.draft_tokens:
        return []
    method = {"": "ngram", "mtp": "mtp", "eagle3": "eagle3"}.get(job.drafter, "draft_model")
    config = {"method": method, **({"model": model} if model else {})}
    return ["--speculative-config", json.dumps({**config, "num_speculative_tokens": job.draft_tokens})]


def _drafted_by_sglang(plan: ServingPlan) -> list[str]:
    """Speculative decoding of SGLang: a chain of drafts, as simulated, and not a tree of them.

    It verifies the drafts together with the token before them.
    """
    job, model = plan.request.job, drafter_checkpoint(plan)
    if not job.draft_tokens:
        return []
    algorithm = {"": "NGRAM", "mtp": "EAGLE", "eagle3": "EAGLE3"}.get(job.drafter, "STANDALONE")
    words = ["--speculative-algorithm", algorithm]
    words += ["--speculative-draft-model-path", model] if model else []
    if job.drafter:
        words += ["--speculative-num-steps", str(job.draft_tokens), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(job.draft_tokens + 1)]
