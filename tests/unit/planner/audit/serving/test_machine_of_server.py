"""Releases hand flags to a server, and pods give it GPUs: neither is lost, and both are compared."""

import pytest

from planner.audit.read import read_texts
from planner.audit.serving.refused import refusal_of
from planner.audit.serving.server import Server, server_of

RELEASE = """# nodes of A100-SXM4-40GB
servingEngineSpec:
  modelSpec:
  - name: "m"
    repository: "vllm/vllm-openai"
    tag: "v0.11.0"
    modelURL: "Qwen/Qwen3-32B"
    requestGPU: {gpus}
    vllmConfig:
      maxModelLen: 16384
      extraArgs: {extra}
"""
RAY = """    raySpec:
      headNode: {requestGPU: 2}
"""
POD = """spec:
  containers:
    - image: vllm/vllm-openai:v0.11.0
      args: ["--model", "Qwen/Qwen3-32B", "--tensor-parallel-size", "{tp}"]
      resources: {{limits: {{nvidia.com/gpu: "{gpus}"}}}}
"""
COMPOSE = """services:
  m:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-32B --tensor-parallel-size {tp}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, {devices}}}]}}}}}}
"""
GROUP = """spec:
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        containers:
          - command: ["bash", "-c", "vllm serve Qwen/Qwen3-32B -tp 8 -pp 2"]
            resources: {limits: {nvidia.com/gpu: 8}}
"""
SGLANG = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --dist-init-addr h:1"
SERVE = "vllm serve Qwen/Qwen3-32B --tensor-parallel-size"


def server(text: str, name: str) -> Server:
    """The server of a file."""
    found = server_of(read_texts({name: text}), model=None, gpu="h100-sxm")
    assert isinstance(found, Server), found
    return found


@pytest.mark.parametrize(
    "extra",
    [
        '["--tensor-parallel-size", "4", "--gpu-memory-utilization", "0.85"]',
        "[--tensor-parallel-size=4, --gpu-memory-utilization=0.85]",
        '"--tensor-parallel-size 4 --gpu-memory-utilization 0.85"',
        "\n        - --tensor-parallel-size\n        - '4'\n        - --gpu-memory-utilization\n        - '0.85'",
    ],
)
def test_flags_of_a_release_are_those_of_its_command(extra: str) -> None:
    """Whether they are a list, words with values or a text; the tag of its image is a version."""
    found = server(RELEASE.format(gpus=4, extra=extra), "values.yaml")
    assert (found.layout.tp, found.memory_fraction, found.version) == (4, 0.85, "0.11.0")


def test_flags_of_a_release_that_nothing_reads_are_named() -> None:
    """As those of a command are."""
    found = server(RELEASE.format(gpus=1, extra='["--hf-overrides", "{}"]'), "values.yaml")
    assert found.unread.memory == ("--hf-overrides",)


DYNAMO = """kind: DynamoGraphDeployment
spec:
  services:
    Other:
      resources: {{limits: {{gpu: "1"}}}}
    Worker:
      extraPodSpec:
        mainContainer:
          args: ["python -m dynamo.vllm --model Qwen/Qwen3-32B --tensor-parallel-size {tp}"]
      resources: {{limits: {{gpu: "2"}}}}
"""


@pytest.mark.parametrize(
    ("name", "text", "fits"),
    [
        ("pod.yaml", POD.format(tp=8, gpus=4), False),
        ("pod.yaml", POD.format(tp=4, gpus=4), True),
        ("compose.yaml", COMPOSE.format(tp=4, devices="count: 2"), False),
        ("compose.yaml", COMPOSE.format(tp=4, devices="count: all"), True),
        ("compose.yaml", COMPOSE.format(tp=4, devices='device_ids: ["0", "2"]'), False),
        ("compose.yaml", COMPOSE.format(tp=2, devices='device_ids: ["0", "2"]'), True),
        ("values.yaml", RELEASE.format(gpus=2, extra='["-tp", "4"]'), False),
        ("values.yaml", RELEASE.format(gpus=2, extra='["-tp", "4"]') + RAY, True),
        ("group.yaml", GROUP, True),
        ("s.sh", f"CUDA_VISIBLE_DEVICES=0,1 {SERVE} 4", False),
        ("s.sh", f"export CUDA_VISIBLE_DEVICES=0,1\n{SERVE} 4", False),
        ("s.sh", f"export CUDA_VISIBLE_DEVICES=0,1\n{SERVE} 2", True),
        ("s.sh", "docker run --gpus '\"device=0,1\"' vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B -tp 4", False),
        ("s.sh", "docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-32B -tp 4", True),
        ("s.sh", f"# one node, 8 x H100\n{SERVE} 8 -dp 2 --data-parallel-size-local 2", False),
        ("s.sh", f"# 2 nodes of 8 x H100\n{SERVE} 8 -dp 2 --data-parallel-size-local 1", True),
        ("s.sh", f"# 2 x HGX H100\n{SERVE} 8 -dp 2 --data-parallel-size-local 1", True),
        ("graph.yaml", DYNAMO.format(tp=4), False),
        ("graph.yaml", DYNAMO.format(tp=4) + "      multinode: {nodeCount: 2}\n", True),
        ("graph.yaml", DYNAMO.format(tp=2), True),
        ("s.sh", f"#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n{SERVE} 8 -pp 2", True),
        ("s.sh", f"CUDA_VISIBLE_DEVICES=0,1,2,3 {SGLANG} --tp 8 --nnodes 2 --node-rank 0", True),
    ],
)  # fmt: skip
def test_degrees_beyond_the_gpus_of_a_server_do_not_start(name: str, text: str, fits: bool) -> None:
    """Of its pods, its service, its container, or those that it is shown, times its hosts."""
    found = server(text, name)
    law = refusal_of(found)
    assert (law is None) is fits
    assert bool(found.beyond_machine) is not fits


def test_gpus_that_degrees_leave_idle_are_said() -> None:
    """A pod of four whose server takes one."""
    found = server(POD.format(tp=1, gpus=4), "pod.yaml")
    assert any("takes 1 of its GPUs, and the rest is idle" in words for words in found.assumed)
