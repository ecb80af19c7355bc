"""vLLM: the parser of `vllm serve`, asked without a GPU; the model is not looked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from planner.parsers.commands import ASKS_FLAGS, command_words, flags_of, refuse_deprecated
from planner.parsers.hollow import Hollow, HollowEnum, pretend

ABSENT = (
    "openai", "openai_harmony", "aiohttp", "zmq", "uvloop", "fastapi", "prometheus_client",
    "partial_json_parser", "xgrammar", "llguidance", "vllm.model_executor.models",
)  # fmt: skip
"""What its parser imports and never calls."""
pretend()
sys.meta_path.insert(0, Hollow(ABSENT, HollowEnum))


def derive(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it reads in the words after `vllm serve`; a shortened flag is none."""
    import vllm.platforms

    vllm.platforms.current_platform.device_type = "cuda"
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))
    if case.get("asks") == ASKS_FLAGS:
        return flags_of(parser)
    words = command_words(case)
    args = parser.parse_args(words)
    refuse_deprecated(parser, words)
    return {
        "model": args.model_tag,
        "tp": args.tensor_parallel_size,
        "pp": args.pipeline_parallel_size,
        "attention_dp": args.data_parallel_size,
        "host": args.kv_offloading_size or 0,
        "dcp": args.decode_context_parallel_size,
        "adapters": args.max_loras if args.enable_lora else 0,
        "rank": args.max_lora_rank if args.enable_lora else 0,
        "running": args.max_num_seqs,
        "tokens": args.max_num_batched_tokens,
        "longest": args.max_model_len,
        "port": args.port,
        "cache": str(args.kv_cache_dtype),
        "transfer": args.kv_transfer_config is not None,
    }
