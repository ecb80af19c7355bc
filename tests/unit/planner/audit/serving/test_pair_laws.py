"""What two pools must have alike or apart: laws of engines and connectors, from files that break one each."""

from __future__ import annotations

import json

import pytest

from app.reports.audit.server import server_answer
from planner.audit.read import read_texts
from planner.audit.serving.pools import Pools, pools_of
from planner.audit.serving.server import Server, server_of
from planner.audit.serving.texts import audited_server_texts
from planner.questions.flags import ServeFlags

NIXL = '--kv-transfer-config \'{{"kv_connector":"NixlConnector","kv_role":"{role}"{more}}}\''
SIDE = "VLLM_NIXL_SIDE_CHANNEL_PORT={port}"


def vllm(prefill: str = "", decode: str = "", *, more: str = "", model: str = "Qwen/Qwen3-32B") -> str:
    """Two pools of vLLM over NIXL on one host, with these words besides."""
    one, other = (NIXL.format(role=role, more=more) for role in ("kv_producer", "kv_consumer"))
    return (
        f"{SIDE.format(port=5557)} vllm serve {model} --port 8100 {one} {prefill} &\n"
        f"{SIDE.format(port=5558)} vllm serve {model} --port 8200 {other} {decode} &\n"
    )


def sglang(prefill: str = "", decode: str = "") -> str:
    """Two pools of SGLang on one host."""
    start = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --disaggregation-mode"
    return f"{start} prefill --port 30000 {prefill} &\n{start} decode --port 30001 {decode} &\n"


def laws_of(text: str) -> list[tuple[str, bool]]:
    """Laws that two pools break, and whether each is sure."""
    pools = pools_of({"serve.sh": text}, {}, model=None, gpu="h100-sxm")
    assert isinstance(pools, Pools)
    return [(law.why, law.certain) for law in pools.broken]


@pytest.mark.parametrize(
    ("text", "words", "certain"),
    [
        (vllm("--kv-cache-dtype fp8"), "in fp8 and that of decode in auto", True),
        (vllm("--kv-cache-dtype fp8", more=',"kv_connector_extra_config":{{"enforce_handshake_compat":false}}'.replace("{{", "{").replace("}}", "}")), "in fp8", False),
        (vllm(decode="-tp 2").replace("NixlConnector", "PyNcclConnector"), "joins ranks of one number", True),
        (sglang("--kv-cache-dtype fp8_e4m3"), "in fp8_e4m3", True),
        (sglang("--page-size 16", "--page-size 64"), "hold 16 tokens and those of decode 64", True),
        (vllm("--block-size 64", "--block-size 16"), "no multiple", True),
        (vllm("--dtype float16", "--dtype bfloat16"), "computes in float16", True),
        (vllm("-tp 4", "-tp 3", model="Qwen/Qwen2.5-72B"), "divides", True),
        (vllm("-tp 16", "-tp 4"), "8 heads of keys several times", True),
        (sglang("--pp-size 2", "--tp-size 2 --pp-size 4"), "4 pipeline stages and prefill 2", True),
        (sglang(decode="--disaggregation-transfer-backend nixl"), "by mooncake, and decode takes them by nixl", True),
        (vllm().replace("8200", "8100"), "2 servers of serve.sh listen at port 8100", True),
        (vllm().replace("5558", "5557"), "listen at port 5557", False),
        (vllm().replace(SIDE.format(port=5557), "").replace(SIDE.format(port=5558), ""), "port 5600", False),
        (sglang().replace("--port 30001", ""), "listen at port 30000", True),
    ],
)  # fmt: skip
def test_pools_that_break_one_law_are_told_so(text: str, words: str, *, certain: bool) -> None:
    """Each law by a file that is legal but for it."""
    broken = laws_of(text)
    assert len(broken) == 1, broken
    assert words in broken[0][0]
    assert broken[0][1] is certain


@pytest.mark.parametrize(
    "text",
    [
        vllm(),
        vllm("-tp 2", "-tp 8"),
        vllm("-tp 8", "-tp 2"),
        vllm("--block-size 16", "--block-size 64"),
        vllm("--kv-cache-dtype fp8", "--kv-cache-dtype fp8"),
        vllm()
        .replace("VLLM_NIXL_SIDE_CHANNEL_PORT=5558 ", "")
        .replace("vllm serve", "export A=1; vllm serve", 1),
        sglang("--tp-size 8", "--tp-size 2"),
        sglang("--pp-size 4"),
        sglang("--page-size 64", "--page-size 64"),
        sglang().replace("python -m", "ssh one python -m", 1).replace("--port 30001", "--port 30000"),
    ],
)
def test_pools_that_may_differ_break_nothing(text: str) -> None:
    """Unlike degrees, whole multiples of pages, the same port on two hosts."""
    assert laws_of(text) == []


def test_pools_that_cannot_hand_over_are_no_server_and_the_first_lines_say_why() -> None:
    """Exit code 4, `starts` false, and the law before anything else."""
    audit = audited_server_texts(
        {"serve.sh": vllm("-tp 2 --kv-cache-dtype fp8", "-tp 2")}, ServeFlags(), {}, gpu="h100-sxm"
    )
    assert audit is not None
    assert audit.fits is False
    answer = server_answer(audit)
    assert "do not work together" in answer.headline
    assert answer.sections[0].pairs[0][0] == "pools"  # type: ignore[union-attr]  # the first section is of pairs
    document = json.loads(answer.document())
    assert document["starts"] is False
    assert "no request is handed over" in document["why"]


def test_a_connector_without_a_role_does_not_start() -> None:
    """`KVTransferConfig` of vLLM: a role must stand beside a connector."""
    text = vllm("-tp 2", "-tp 2").splitlines()[0].replace(',"kv_role":"kv_producer"', "").rstrip(" &")
    audit = audited_server_texts({"serve.sh": text}, ServeFlags(), {}, gpu="h100-sxm")
    assert audit is not None
    assert audit.missing == ()
    assert audit.fits is False


def test_a_cache_on_the_host_makes_no_pool() -> None:
    """LMCache and vLLM's own offloading serve whole requests (`kv_both`); NIXL with it is one of two pools."""
    serve = "vllm serve Qwen/Qwen3-32B -tp 2 --kv-transfer-config"
    for connector, is_whole in (
        ("LMCacheConnectorV1", True),
        ("OffloadingConnector", True),
        ("NixlConnector", False),
    ):
        text = f'{serve} \'{{"kv_connector":"{connector}","kv_role":"kv_both"}}\''
        reading = read_texts({"serve.sh": text})
        server = server_of(reading, model=None, gpu="h100-sxm")
        assert isinstance(server, Server)
        assert server.is_half is not is_whole, connector


LOOPS = """MODEL=meta-llama/Llama-3.1-8B-Instruct
PREFILL_GPUS=${PREFILL_GPUS:-0}
DECODE_GPUS=${DECODE_GPUS:-1,2,3}
DECODE_PORTS=${DECODE_PORTS:-20005,20007,20009}
start() {
  IFS=',' read -ra PREFILLS <<< "$PREFILL_GPUS"
  IFS=',' read -ra DECODES <<< "$DECODE_GPUS"
  IFS=',' read -ra PORTS <<< "$DECODE_PORTS"
  for i in "${!PREFILLS[@]}"; do
    CUDA_VISIBLE_DEVICES=${PREFILLS[$i]} vllm serve $MODEL --port $((20003 + i)) --kv-transfer-config \
      "{\\"kv_connector\\":\\"P2pNcclConnector\\",\\"kv_role\\":\\"kv_producer\\",\\"kv_port\\":\\"$((21001 + i))\\"}" &
  done
  for i in "${!DECODES[@]}"; do
    CUDA_VISIBLE_DEVICES=${DECODES[$i]} vllm serve $MODEL --port ${PORTS[$i]} --kv-transfer-config \
      "{\\"kv_connector\\":\\"P2pNcclConnector\\",\\"kv_role\\":\\"kv_consumer\\",\\"kv_port\\":\\"$((22001 + i))\\"}" &
  done
}
for load in 1 8 64; do start; done
"""
BOTH = """model: meta-llama/Llama-3.1-8B-Instruct
hostname: localhost
port: 8000
context_servers:
  num_instances: 1
  tensor_parallel_size: 1
  kv_cache_config: {free_gpu_memory_fraction: 0.2}
  urls: ["localhost:8001"]
generation_servers:
  tensor_parallel_size: 2
  urls: ["localhost:8002", "localhost:8003", "localhost:8004"]
"""
SORTED = """apiVersion: v1
kind: ConfigMap
metadata: {name: engine}
data:
  decode.yaml: |-
    model-path: Qwen/Qwen3-32B
    tp-size: 4
    mem-fraction-static: 0.8
    disaggregation-mode: decode
  prefill.yaml: |-
    model-path: Qwen/Qwen3-32B
    tp-size: 2
    disaggregation-mode: prefill
---
kind: DynamoGraphDeployment
spec:
  components:
  - name: Frontend
    podTemplate: {spec: {containers: [{args: [--http-port, "8000"], command: [python3, -m, dynamo.frontend]}]}}
    replicas: 1
  - name: PrefillWorker
    podTemplate:
      spec:
        containers:
        - args: [--config, /etc/engine/prefill.yaml]
          command: [python3, -m, dynamo.sglang]
    replicas: 2
    type: prefill
  - name: DecodeWorker
    podTemplate:
      spec:
        containers:
        - args: [--config, /etc/engine/decode.yaml]
          command: [python3, -m, dynamo.sglang]
    replicas: 3
    type: decode
"""
TENSORRT = """kind: DynamoGraphDeployment
spec:
  services:
    TRTLLMPrefillWorker:
      replicas: 1
      extraPodSpec:
        mainContainer:
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.trtllm --model-path Qwen/Qwen3-32B --disaggregation-mode prefill 2>&1 | tee log"]
    TRTLLMDecodeWorker:
      replicas: 2
      extraPodSpec:
        mainContainer:
          command: [/bin/sh, -c]
          args: ["python3 -m dynamo.trtllm --model-path Qwen/Qwen3-32B --disaggregation-mode decode 2>&1 | tee log"]
"""
CHART = """modelArtifacts: {uri: "hf://Qwen/Qwen3-32B", name: Qwen/Qwen3-32B}
decode:
  replicas: 2
  parallelism: {tensor: 4}
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
    modelCommand: vllmServe
    args: [--block-size, "128", --kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
prefill:
  replicas: 4
  containers:
  - name: vllm
    image: ghcr.io/llm-d/llm-d-cuda:v0.5.0
    modelCommand: vllmServe
    args: [--block-size, "128", --kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
"""


@pytest.mark.parametrize(
    ("name", "text", "workers", "tp"),
    [
        ("serve.sh", LOOPS, (1, 3), (1, 1)),
        ("disagg_config.yaml", BOTH, (1, 3), (1, 2)),
        ("graph.yaml", SORTED, (2, 3), (2, 4)),
        ("graph.yaml", TENSORRT, (1, 2), (1, 1)),
        ("values.yaml", CHART, (4, 2), (1, 4)),
    ],
)
def test_workers_are_counted_and_told_apart_in_each_form(
    name: str, text: str, workers: tuple[int, int], tp: tuple[int, int]
) -> None:
    """Loops over arrays, one file of both phases, files that a manifest mounts, keys in any order."""
    pools = pools_of({name: text}, {}, model=None, gpu="h200-sxm")
    assert isinstance(pools, Pools), pools
    assert (pools.prefill.replicas, pools.decode.replicas) == workers
    assert (pools.prefill.layout.tp, pools.decode.layout.tp) == tp
    if name == "disagg_config.yaml":
        assert (pools.prefill.memory_fraction, pools.decode.memory_fraction) == (0.2, None)
    if text is SORTED:
        assert (pools.prefill.memory_fraction, pools.decode.memory_fraction) == (None, 0.8)
