"""SGLang: the parser of `sglang.launch_server`, asked without a GPU; the model is not looked for."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from executor.parsers.commands import refuse_deprecated, words_of
from executor.parsers.hollow import Hollow, Members, pretend

ABSENT = ("triton", "zmq", "IPython", "aiohttp")
"""What its parser imports and never calls."""
pretend()
sys.meta_path.insert(0, Hollow(ABSENT, Members))


def judge(case: Mapping[str, Any]) -> dict[str, Any]:
    """What it reads in the words after `sglang.launch_server`; a shortened flag is none."""
    from sglang.srt.server_args import ServerArgs

    words = words_of(case)
    parser = argparse.ArgumentParser(allow_abbrev=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ServerArgs.add_cli_args(parser)
        said = parser.parse_args(words)
    refuse_deprecated(parser, words)
    return {
        "model": said.model_path,
        "tp": said.tp_size,
        "pp": said.pp_size,
        "attention_dp": said.attn_dp_size,
        "host": said.hicache_size if said.enable_hierarchical_cache else 0,
        "adapters": said.max_loras_per_batch if said.enable_lora else 0,
        "rank": said.max_lora_rank if said.enable_lora else 0,
        "ep": said.ep_size,
        "running": said.max_running_requests,
        "tokens": said.chunked_prefill_size,
        "longest": said.context_length,
        "port": said.port,
        "cache": str(said.kv_cache_dtype),
        "transfer": said.disaggregation_mode,
    }
