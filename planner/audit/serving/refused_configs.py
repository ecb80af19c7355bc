"""What an engine's own checks of its configuration refuse before it loads anything.

vLLM 0.33: `ParallelConfig`, `ModelConfig.verify_with_parallel_config`, `SchedulerConfig`, `LoRAConfig`,
`SpeculativeConfig`, `validate_parsed_serve_args`. SGLang 0.5.23: `arg_groups/validation_hook.py`.
TensorRT-LLM 1.3: `mapping.py`, `llm_args.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from planner.audit.serving.server import Server
from planner.formats.settings import Scalar, truth_of, whole_or_none

Broken = Iterator[tuple[str, str]]


def refused_configs(server: Server) -> Broken:
    """Every such check that a server's words fail, with what passes it."""
    for check in _CHECKS.get(server.engine, ()):
        yield from check(server, ServerWords(server.words))


class ServerWords:
    """Words of a server, in one spelling."""

    def __init__(self, words: Mapping[str, Scalar]) -> None:
        self.words = words

    def __contains__(self, name: str) -> bool:
        return name in self.words

    def count(self, name: str) -> int | None:
        """A word as a whole number."""
        return whole_or_none(self.words.get(name))

    def on(self, name: str) -> bool:
        """Whether a word switches something on."""
        return name in self.words and truth_of(self.words[name]) is True

    def text(self, name: str) -> str:
        """A word as it is written."""
        return str(self.words.get(name, "")).strip("'\"")

    def table(self, name: str) -> dict[str, Any]:
        """A table that is told as JSON; empty where it is told otherwise."""
        try:
            document = json.loads(self.text(name))
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


def _experts(server: Server, words: ServerWords) -> Broken:
    """Expert parallelism of a model without experts, and balancing without it."""
    if words.on("enable_expert_parallel") and not server.model.is_moe:
        name = server.checkpoint or server.model.name
        yield f"--enable-expert-parallel asks for experts, and {name} has none", "leave it out"
    if words.on("enable_eplb") and not words.on("enable_expert_parallel"):
        yield "--enable-eplb balances experts that no rank holds whole", "add --enable-expert-parallel"


def _context_ranks(server: Server, _: ServerWords) -> Broken:
    """Ranks that share the tokens of a cache are parts of tp; whose heads they hold, `refused.py` asks."""
    tp, ranks = server.layout.tp, server.layout.dcp
    if ranks > 1 and tp % ranks:
        yield f"tp {tp} is no multiple of decode context ranks {ranks}", "give a divisor of tp"


def _steps(_: Server, words: ServerWords) -> Broken:
    """Limits of a step below those of what it holds."""
    budget, running = words.count("max_num_batched_tokens"), words.count("max_num_seqs")
    if budget and running and budget < running:
        yield (
            f"a step of {budget:,} tokens has no token for each of {running:,} requests",
            f"give --max-num-batched-tokens {running} or more, or a smaller --max-num-seqs",
        )
    long, longest = words.count("long_prefill_token_threshold"), words.count("max_model_len")
    if long and longest and long > longest:
        yield (
            f"--long-prefill-token-threshold {long:,} is beyond the length of {longest:,}",
            "give at most that",
        )


def _adapters(_: Server, words: ServerWords) -> Broken:
    """More adapters on GPUs than on hosts."""
    kept, slots = words.count("max_cpu_loras"), words.count("max_loras")
    if kept and slots and kept < slots:
        yield f"--max-cpu-loras {kept} is less than --max-loras {slots}", f"give --max-cpu-loras {slots}"


def _tools(_: Server, words: ServerWords) -> Broken:
    """Calls of tools that nothing parses."""
    if words.on("enable_auto_tool_choice") and "tool_call_parser" not in words:
        yield "--enable-auto-tool-choice needs --tool-call-parser", "name the parser of the model's calls"


def _hosts(server: Server, words: ServerWords) -> Broken:
    """Ranks of one host beyond all, and hosts that Ray counts itself."""
    local, ranks = words.count("data_parallel_size_local"), words.count("data_parallel_size")
    if local and ranks and local > ranks:
        yield f"--data-parallel-size-local {local} is more than --data-parallel-size {ranks}", f"give {ranks}"
    ray = words.text("distributed_executor_backend") == "ray"
    if ray and (words.count("nnodes") or 1) > 1 and server.engine == "vllm":
        yield "--nnodes is of the executor mp, and ray counts hosts itself", "leave one of both out"


def _drafts(server: Server, words: ServerWords) -> Broken:
    """Drafts without a number, and drafters over another number of ranks."""
    table = words.table("speculative_config")
    if table.get("method") == "draft_model" and "num_speculative_tokens" not in table:
        yield "a draft model is given and no num_speculative_tokens", "say it in --speculative-config"
    ranks = whole_or_none(table.get("draft_tensor_parallel_size"))
    if ranks is not None and ranks not in (1, server.layout.tp):
        yield (
            f"the drafter's tp {ranks} is neither 1 nor the model's {server.layout.tp}",
            f"give draft_tensor_parallel_size 1 or {server.layout.tp}",
        )


METHOD_OF_FORMAT: Final[Mapping[str, str]] = {"awq": "awq", "gptq": "gptq", "fp8": "fp8"}
"""Formats in names of checkpoints that only one method of vLLM loads, with the word that its method has."""


def _formats(server: Server, words: ServerWords) -> Broken:
    """A method of quantisation that is not the checkpoint's, by its name."""
    method, name = words.text("quantization").lower(), server.checkpoint.lower()
    if not method or not name:
        return
    kept = next((word for word in METHOD_OF_FORMAT if f"-{word}" in name or f"_{word}" in name), "")
    if kept and method.startswith(tuple(METHOD_OF_FORMAT.values())) and not method.startswith(kept):
        yield (
            f"--quantization {method} is not the method of the checkpoint, by its name {kept}",
            "leave --quantization out: the checkpoint says its own",
        )


def _nodes(server: Server, words: ServerWords) -> Broken:
    """Ranks that do not divide among hosts."""
    nodes, ranks = words.count("nnodes") or 1, server.layout.num_gpus
    if ranks % nodes:
        yield f"{ranks} ranks do not divide among {nodes} nodes", "give degrees that do"


def _chunks(_: Server, words: ServerWords) -> Broken:
    """Chunks of prompts that are no whole pages."""
    chunk, page = words.count("chunked_prefill_size"), words.count("page_size")
    if chunk and page and chunk > 0 and page > 0 and chunk % page:
        yield f"--chunked-prefill-size {chunk:,} is no multiple of --page-size {page}", "give one that is"


def _names(_: Server, words: ServerWords) -> Broken:
    """Names of models with the sign that marks an adapter."""
    if ":" in (name := words.text("served_model_name")) and "://" not in name:
        yield f"--served-model-name {name} has a colon, which marks an adapter", "give a name without one"


def _caches(_: Server, words: ServerWords) -> Broken:
    """A cache in levels without the tree that fills it."""
    if words.on("enable_hierarchical_cache") and words.on("disable_radix_cache"):
        yield "--enable-hierarchical-cache needs the tree that --disable-radix-cache takes", "leave one out"


def _expert_ranks(server: Server, words: ServerWords) -> Broken:
    """Expert ranks and tensor ranks of experts that do not multiply to all."""
    ranks, split = server.layout.stage_gpus, words.count("moe_tensor_parallel_size")
    experts = words.count("ep_size") or words.count("moe_expert_parallel_size") or 1
    if split and split * experts != ranks:
        yield (
            f"moe_tensor_parallel_size {split} times {experts} expert ranks are not tp {ranks}",
            f"give degrees that multiply to {ranks}",
        )


def _graphs(_: Server, words: ServerWords) -> Broken:
    """Sizes of CUDA graphs whose largest is not their stated limit."""
    most, listed = (
        words.count("cuda_graph_config.max_batch_size"),
        words.text("cuda_graph_config.batch_sizes"),
    )
    sizes = [whole_or_none(part.strip(" []")) or 0 for part in listed.split(",") if part.strip(" []")]
    if most and sizes and max(sizes) != most:
        yield (
            f"cuda_graph_config has max_batch_size {most} and batch_sizes up to {max(sizes)}",
            "give one of them, or the same limit",
        )


def _dense_ranks(server: Server, words: ServerWords) -> Broken:
    """Tensor ranks of dense layers beside experts: one or all."""
    dense, ranks = words.count("moe_dense_tp_size"), server.layout.stage_gpus
    if dense not in (None, 1, ranks):
        yield f"--moe-dense-tp-size {dense} is neither 1 nor tp {ranks}", "give 1, or leave it out"


_CHECKS: Final[Mapping[str, tuple[Callable[[Server, ServerWords], Broken], ...]]] = {
    "vllm": (_experts, _context_ranks, _steps, _adapters, _tools, _hosts, _drafts, _formats),
    "sglang": (_nodes, _chunks, _names, _caches, _dense_ranks),
    "trtllm": (_expert_ranks, _graphs),
}
