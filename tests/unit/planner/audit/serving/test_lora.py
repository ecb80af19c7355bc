"""Adapters of a server: ranks beyond its buffers stop it, and what its buffers take is in its prices."""

import json

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import ServingAudit, audited_server
from planner.audit.serving.server import Server, server_of

CAL = load_calibration()
BASE = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"


def audit(words: str, rank: int = 0) -> ServingAudit:
    """What is said of a command, with the configuration of an adapter of this rank if there is one."""
    texts = {"serve.sh": words}
    if rank:
        texts["sql/adapter_config.json"] = json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank})
    reading = read_texts(texts)
    server = server_of(reading, model=None, gpu="h100-sxm")
    assert isinstance(server, Server)
    return audited_server(CAL, reading, server, ())


@pytest.mark.parametrize(
    ("flags", "rank", "why"),
    [
        ("--enable-lora --lora-modules sql=./sql", 64, "rank 64, more than --max-lora-rank 16"),
        ("--enable-lora --lora-modules sql=./sql --max-lora-rank 64", 64, ""),
        ("--enable-lora --lora-modules sql=./sql", 16, ""),
        ("--enable-lora --max-lora-rank 24", 0, "none of"),
    ],
)
def test_a_rank_that_buffers_lack_does_not_start(flags: str, rank: int, why: str) -> None:
    """Buffers of vLLM have rank 16 unless told (vllm issue 2847)."""
    start = audit(f"{BASE} {flags}", rank).start
    assert start is not None
    assert start.starts is not bool(why)
    assert why in start.why


def test_buffers_take_memory_and_more_adapters_than_slots_wait() -> None:
    """More slots leave less cache; a server without adapters says nothing of them."""
    plain, one, eight = (
        audit(f"{BASE} {flags}")
        for flags in (
            "",
            "--enable-lora --lora-modules a=/a b=/b",
            "--enable-lora --max-loras 8 --max-lora-rank 64 --lora-modules a=/a b=/b",
        )
    )
    caches = [found.start.cache_bytes for found in (plain, one, eight) if found.start is not None]
    assert caches == sorted(caches, reverse=True)
    assert len(set(caches)) == len(caches)
    assert [bool(found.slowing) for found in (plain, one, eight)] == [False, True, False]
    assert one.slowing[0][1] == "give --max-loras 2"


def test_adapters_that_are_not_priced_are_said() -> None:
    """Those of experts have one each."""
    found = audit("vllm serve Qwen/Qwen3-30B-A3B --enable-lora --lora-modules a=/a")
    assert any("not in these figures" in what for what, _ in found.slowing)
