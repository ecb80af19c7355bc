"""SGLang: the parser of `sglang.launch_server`, asked without a GPU; the model is not looked for."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from planner.parsers.commands import ASKS_FLAGS, command_words, flags_of, refuse_deprecated
from planner.parsers.hollow import Hollow, HollowEnum, pretend

ABSENT = ("triton", "zmq", "IPython", "aiohttp")
"""What its parser imports and never calls."""
pretend()
sys.meta_path.insert(0, Hollow(ABSENT, HollowEnum))


def derive(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it reads in the words after `sglang.launch_server`; a shortened flag is none."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(allow_abbrev=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ServerArgs.add_cli_args(parser)
        if case.get("asks") == ASKS_FLAGS:
            return flags_of(parser)
        words = command_words(case)
        options = parser.parse_args(words)
    refuse_deprecated(parser, words)
    return {
        "model": options.model_path,
        "tp": options.tp_size,
        "pp": options.pp_size,
        "attention_dp": options.attn_dp_size,
        "host": options.hicache_size if options.enable_hierarchical_cache else 0,
        "adapters": options.max_loras_per_batch if options.enable_lora else 0,
        "rank": options.max_lora_rank if options.enable_lora else 0,
        "ep": options.ep_size,
        "running": options.max_running_requests,
        "tokens": options.chunked_prefill_size,
        "longest": options.context_length,
        "port": options.port,
        "cache": str(options.kv_cache_dtype),
        "transfer": options.disaggregation_mode,
    }
