"""Ready-to-run commands of a serving plan.

The engine's server, the client that would check it, a Kubernetes manifest.

Only flags that the engines document are written (vLLM `vllm serve --help`, SGLang server arguments,
TensorRT-LLM `trtllm-serve`), and only those that differ from the defaults.
"""

from __future__ import annotations

import json
import shlex

from costmodel.models.spec import ModelSpec
from costmodel.serving.deployment import published_weights
from planner.launch.kubernetes import PORT, Workload, manifest
from planner.launch.multi_node import node_commands, node_notes
from planner.serving.plan import PoolPlan, ServingPlan

HUB = "https://huggingface.co/"
_AT_LOAD = ("vllm", "sglang")
"""Engines that quantise a bf16 checkpoint to fp8 while they load it (`--quantization fp8`)."""
_FORMATS = {"bf16": "BF16", "fp8": "FP8", "int8": "GPTQ-Int8", "int4": "AWQ", "fp4": "NVFP4"}
DRAFTER = "<draft model>"
_ROUTERS = {
    "vllm": "the proxy of vLLM's NixlConnector guide, toy_proxy_server.py",
    "sglang": "python -m sglang_router.launch_router --pd-disaggregation",
    "trtllm": "trtllm-serve disaggregated",
}


def commands(plan: ServingPlan) -> dict[str, str]:
    """Every command of a plan by what it is for."""
    found = {name: text for role, pool in pools(plan) for name, text in servers(plan, pool, role).items()}
    files = {
        _options_file(role): options
        for role, pool in pools(plan)
        if plan.request.engine == "trtllm" and (options := trtllm_options(plan, pool, role))
    }
    said = {"notes": "\n".join(notes(plan))} if notes(plan) else {}
    workloads = [_workload(plan, pool, role) for role, pool in pools(plan)]
    return {
        **found,
        **files,
        **said,
        "benchmark": benchmark(plan),
        "kubernetes": manifest(plan, workloads, notes(plan)),
    }


def pools(plan: ServingPlan) -> tuple[tuple[str, PoolPlan], ...]:
    """The plan's pools with their role ("" when there is only one)."""
    if plan.prefill is None:
        return (("", plan.decode),)
    return (("prefill", plan.prefill), ("decode", plan.decode))


def checkpoint(model: ModelSpec) -> str:
    """Name of the checkpoint on the Hugging Face hub, when the catalog knows it.

    >>> from costmodel.models.catalog import model
    >>> checkpoint(model("qwen3-32b"))
    'Qwen/Qwen3-32B'
    """
    return model.source.removeprefix(HUB) if model.source.startswith(HUB) else model.name


def served_checkpoint(plan: ServingPlan) -> str:
    """The checkpoint to serve: the published one, or a placeholder for one in the plan's precision.

    Only fp8 can be made of a bf16 checkpoint while it is loaded; other formats are quantised beforehand.
    """
    name = checkpoint(plan.request.model)
    as_published = plan.weights == published_weights(plan.request.model)
    return name if as_published or _at_load(plan) else f"<{_FORMATS[plan.weights]} checkpoint of {name}>"


def _at_load(plan: ServingPlan) -> bool:
    """Whether the engine quantises the published checkpoint while it loads it."""
    published = published_weights(plan.request.model)
    return plan.request.engine in _AT_LOAD and published == "bf16" and plan.weights == "fp8"


def servers(plan: ServingPlan, pool: PoolPlan, role: str = "") -> dict[str, str]:
    """The commands that start one worker of a pool by where they run: one, or one for each of its nodes."""
    by_node = node_commands(plan, pool, _words(plan, pool, role))
    where = {node: ", ".join(part for part in (role, node) if part) for node in by_node}
    return {
        f"serve ({where[node]})" if where[node] else "serve": shlex.join(words)
        for node, words in by_node.items()
    }


def _words(plan: ServingPlan, pool: PoolPlan, role: str) -> list[str]:
    """The words of that command."""
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[plan.request.engine](plan, pool, role)


def benchmark(plan: ServingPlan) -> str:
    """The client command that measures what the plan predicts."""
    job = plan.request.job
    load = (
        ["--max-concurrency", str(job.concurrency), "--num-prompts", str(10 * job.concurrency)]
        if job.concurrency is not None
        else ["--request-rate", f"{plan.estimate.request_rate_per_s:.4g}", "--num-prompts", "1000"]
    )
    return shlex.join([
        "vllm", "bench", "serve", "--backend", "openai", "--base-url", f"http://localhost:{PORT}",
        "--model", served_checkpoint(plan), "--dataset-name", "random",
        "--random-input-len", str(job.input_tokens),
        "--random-output-len", str(job.output_tokens),
        "--ignore-eos", *load, "--percentile-metrics", "ttft,tpot,itl,e2el",
        "--metric-percentiles", "50,90,99",
    ])  # fmt: skip


def notes(plan: ServingPlan) -> tuple[str, ...]:
    """What the commands do not start or cannot know."""
    engine, found = plan.request.engine, []
    if plan.prefill is not None:
        found.append(f"a router is needed in front of both pools: {_ROUTERS[engine]}")
    found += node_notes(plan, [pool for _, pool in pools(plan)])
    if served_checkpoint(plan).startswith("<"):
        placeholder = served_checkpoint(plan)
        found.append(f"put a checkpoint in place of {placeholder}: the published weights have another format")
    if plan.request.job.draft_tokens:
        how = f"put it in place of {DRAFTER}" if engine == "vllm" else f"give it by {engine}'s own flags"
        found.append(f"speculation needs a draft model, {how}; its time and memory are not modelled")
    return tuple(found)


def _workload(plan: ServingPlan, pool: PoolPlan, role: str) -> Workload:
    """What the manifest runs in a pool."""
    options = trtllm_options(plan, pool, role) if plan.request.engine == "trtllm" else ""
    return Workload(
        role=role,
        pool=pool,
        words=tuple(_words(plan, pool, role)),
        options_file=_options_file(role) if options else "",
        options=options,
    )


def _vllm(plan: ServingPlan, pool: PoolPlan, role: str) -> list[str]:
    """`vllm serve`."""
    layout, job = pool.layout, plan.request.job
    words = ["vllm", "serve", served_checkpoint(plan), "--port", str(PORT)]
    words += _given("--tensor-parallel-size", layout.tp) + _given("--pipeline-parallel-size", layout.pp)
    words += _given("--data-parallel-size", layout.attention_dp)
    words += ["--enable-expert-parallel"] if layout.ep > 1 else []
    words += ["--max-num-seqs", str(-(-pool.max_batch // layout.attention_dp))]
    words += ["--max-num-batched-tokens", str(pool.token_budget), "--max-model-len", str(_longest(plan))]
    words += _quantization(plan) + (["--kv-cache-dtype", "fp8"] if plan.kv_dtype == "fp8" else [])
    words += ["--no-enable-prefix-caching"] if job.cached_share == 0 else ["--enable-prefix-caching"]
    words += _speculation(plan)
    if role:
        words += ["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
    return words


def _sglang(plan: ServingPlan, pool: PoolPlan, role: str) -> list[str]:
    """`python -m sglang.launch_server`; its tp size counts all GPUs that share the experts.

    The server divides the size of a prompt chunk by the attention ranks.
    """
    layout = pool.layout
    words = ["python", "-m", "sglang.launch_server", "--model-path", served_checkpoint(plan)]
    words += ["--port", str(PORT), *_given("--tp-size", layout.stage_gpus), *_given("--pp-size", layout.pp)]
    if layout.attention_dp > 1:
        words += ["--dp-size", str(layout.attention_dp), "--enable-dp-attention"]
    words += _given("--ep-size", layout.ep)
    words += ["--max-running-requests", str(pool.max_batch)]
    words += ["--chunked-prefill-size", str(pool.token_budget * layout.attention_dp)]
    words += ["--context-length", str(_longest(plan)), *_quantization(plan)]
    words += ["--kv-cache-dtype", "fp8_e4m3"] if plan.kv_dtype == "fp8" else []
    words += ["--disable-radix-cache"] if plan.request.job.cached_share == 0 else []
    if role:
        words += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
    return words


def _trtllm(plan: ServingPlan, pool: PoolPlan, role: str) -> list[str]:
    """`trtllm-serve`; what has no flag is in its options file. The batch is that of an attention rank."""
    layout = pool.layout
    words = ["trtllm-serve", served_checkpoint(plan), "--backend", "pytorch", "--port", str(PORT)]
    words += (
        _given("--tp_size", layout.stage_gpus)
        + _given("--pp_size", layout.pp)
        + _given("--ep_size", layout.ep)
    )
    words += ["--max_batch_size", str(-(-pool.max_batch // layout.attention_dp))]
    words += ["--max_num_tokens", str(pool.token_budget)]
    words += ["--max_seq_len", str(_longest(plan))]
    if trtllm_options(plan, pool, role):
        words += ["--extra_llm_api_options", _options_file(role)]
    return words


def trtllm_options(plan: ServingPlan, pool: PoolPlan, role: str) -> str:
    """The YAML of what `trtllm-serve` has no flag for: attention ranks, the cache, and its transfer."""
    lines = ["enable_attention_dp: true"] if pool.layout.attention_dp > 1 else []
    cache = ["  dtype: fp8"] if plan.kv_dtype == "fp8" else []
    cache += ["  enable_block_reuse: false"] if plan.request.job.cached_share == 0 else []
    lines += ["kv_cache_config:", *cache] if cache else []
    lines += ["cache_transceiver_config:", "  backend: DEFAULT"] if role else []
    lines += ["disable_overlap_scheduler: true"] if role == "prefill" else []
    return "\n".join(lines)


def _options_file(role: str) -> str:
    """Name of that file."""
    return f"{role or 'server'}-options.yaml"


def _given(flag: str, value: int) -> list[str]:
    """A flag with its value, unless that is the default of one."""
    return [flag, str(value)] if value > 1 else []


def _quantization(plan: ServingPlan) -> list[str]:
    """The flag that quantises at load time; checkpoints that are quantised already say so themselves."""
    return ["--quantization", "fp8"] if _at_load(plan) else []


def _speculation(plan: ServingPlan) -> list[str]:
    """Speculative decoding of vLLM."""
    tokens = plan.request.job.draft_tokens
    config = json.dumps({"model": DRAFTER, "num_speculative_tokens": tokens})
    return ["--speculative-config", config] if tokens else []


def _longest(plan: ServingPlan) -> int:
    """Longest request the server must hold, in tokens."""
    job = plan.request.job
    return (job.input_tokens_p99 or job.input_tokens) + (job.output_tokens_p99 or job.output_tokens) + 1
