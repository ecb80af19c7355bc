"""vLLM: the parser of `vllm serve`, asked without a GPU; the model is not looked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from executor.parsers.commands import refuse_deprecated, words_of
from executor.parsers.hollow import Hollow, Members, pretend

ABSENT = (
    "openai", "openai_harmony", "aiohttp", "zmq", "uvloop", "fastapi", "prometheus_client",
    "partial_json_parser", "xgrammar", "llguidance", "vllm.model_executor.models",
)  # fmt: skip
"""What its parser imports and never calls."""
pretend()
sys.meta_path.insert(0, Hollow(ABSENT, Members))


def judge(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it reads in the words after `vllm serve`; a shortened flag is none."""
    import vllm.platforms

    vllm.platforms.current_platform.device_type = "cuda"
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words = words_of(case)
    parser = make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))
    said = parser.parse_args(words)
    refuse_deprecated(parser, words)
    return {
        "model": said.model_tag,
        "tp": said.tensor_parallel_size,
        "pp": said.pipeline_parallel_size,
        "attention_dp": said.data_parallel_size,
        "host": said.kv_offloading_size or 0,
        "dcp": said.decode_context_parallel_size,
        "adapters": said.max_loras if said.enable_lora else 0,
        "rank": said.max_lora_rank if said.enable_lora else 0,
        "running": said.max_num_seqs,
        "tokens": said.max_num_batched_tokens,
        "longest": said.max_model_len,
        "port": said.port,
        "cache": str(said.kv_cache_dtype),
        "transfer": said.kv_transfer_config is not None,
    }
