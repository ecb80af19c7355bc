"""How servers and engines are started elsewhere than by a plain command, and what is said of other servers."""

import time

import pytest

from planner.audit.read import read_texts
from planner.audit.serving.load import loads_of
from planner.audit.serving.server import Server, Unknown, server_of
from planner.questions.flags import ServeFlags
from topology.base.errors import InputError

BUILT = """# on H100
from vllm import LLM
llm = LLM("Qwen/Qwen3-32B", tensor_parallel_size=2, max_model_len=8192)
"""
ENGINE = """# on H100
import sglang as sgl
llm = sgl.Engine(model_path="Qwen/Qwen3-32B", tp_size=2, context_length=8192)
"""
MODAL = """# on H100
import subprocess
N = 2
def serve():
    words = ["vllm", "serve", "Qwen/Qwen3-32B"]
    words += ["--tensor-parallel-size", str(N)]
    words.extend(["--max-model-len", "8192"])
    subprocess.Popen(words)
"""
SKY = """resources:
  accelerators: H100:2
run: |
  vllm serve Qwen/Qwen3-32B --max-model-len 8192 \\
    --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE
"""
KSERVE = """kind: LLMInferenceService
spec:
  model: {uri: "hf://Qwen/Qwen3-32B", name: chat}
  parallelism: {tensor: 2}
  template:
    nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
    containers:
      - name: main
        env:
          - name: VLLM_ADDITIONAL_ARGS
            value: "--max-model-len 8192"
"""
COUNTED = """# 2x H100
N=$(nvidia-smi -L | wc -l)
vllm serve Qwen/Qwen3-32B --max-model-len 8192 -tp $N
"""
UNIT = """[Unit]
Description=chat on H100
[Service]
ExecStart=/opt/bin/vllm serve Qwen/Qwen3-32B \\
  --tensor-parallel-size 2 --max-model-len 8192
Restart=always
"""
TMUX = 'tmux new-session -d "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 8192" # H100'
MAP = """kind: ConfigMap
data:
  o.yaml: |
    tensor-parallel-size: 2
    max-model-len: 8192
---
kind: Pod
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
  containers:
    - image: vllm/vllm-openai:v0.11.0
      args: ["--model", "Qwen/Qwen3-32B", "--config", "/etc/o.yaml"]
      resources: {limits: {nvidia.com/gpu: 2}}
"""
OFFLINE = "# H100\nvllm bench latency --model Qwen/Qwen3-32B -tp 2 --max-model-len 8192 --input-len 1 --batch-size 8"


def found(name: str, text: str, given: dict[str, str] | None = None) -> Server | Unknown:
    """The server of a file."""
    return server_of(read_texts({name: text}, given), model=None, gpu=None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", BUILT),
        ("a.py", ENGINE),
        ("a.py", MODAL),
        ("a.yaml", SKY),
        ("a.yaml", KSERVE),
        ("a.sh", COUNTED),
        ("a.sh", OFFLINE),
        ("a.sh", TMUX),
        ("a.service", UNIT),
        ("a.yaml", MAP),
    ],
)
def test_one_server_in_every_form(name: str, text: str) -> None:
    """Qwen3-32B on two H100, for requests of up to 8,192 tokens."""
    server = found(name, text)
    assert isinstance(server, Server)
    told = (server.model.name, server.layout.tp, server.longest, server.gpu)
    assert told == ("qwen3-32b", 2, 8192, "h100-sxm")


def test_a_misspelt_keyword_of_an_engine_stops_it() -> None:
    """As its constructor does."""
    server = found("a.py", BUILT.replace("max_model_len", "max_model_le"))
    assert isinstance(server, Server)
    assert server.unread.misspelt == (("max_model_le", "max_model_len"),)


def test_no_verdict_hangs_on_a_degree_that_only_a_run_knows() -> None:
    """One rank in its place would hold other weights; a variable that is given says it."""
    uncounted = COUNTED.replace("2x ", "")
    unknown = found("a.sh", uncounted)
    assert isinstance(unknown, Unknown)
    assert unknown.missing == (
        "the tensor parallel degree (line 3), which only a run knows: --env NAME=VALUE says it",
    )
    told = found("a.sh", uncounted, {"N": "2"})
    assert isinstance(told, Server)
    assert told.layout.tp == 2


@pytest.mark.parametrize("name", ["a.sh", "a.yaml"])
def test_no_verdict_hangs_on_a_file_of_options_that_nobody_gave(name: str) -> None:
    """It may say anything."""
    text = "# H100\nvllm serve Qwen/Qwen3-8B --config o.yaml"
    server = found(name, text if name == "a.sh" else MAP.partition("---")[2])
    assert isinstance(server, Server)
    assert server.unread.uncounted == ("o.yaml",)


CONNECTOR = '{"kv_connector": "%s", "kv_role": "%s"}'


@pytest.mark.parametrize(
    ("connector", "role", "priced"),
    [
        ("LMCacheConnectorV1", "kv_both", True),
        ("OffloadingConnector", "kv_both", True),
        ("LMCacheConnectorV1", "kv_producer", False),
        ("NixlConnector", "kv_both", False),
    ],
)
def test_a_store_of_caches_is_no_pool(connector: str, role: str, priced: bool) -> None:
    """Only a connector that hands caches to another server makes one of two pools."""
    words = f"# H100\nvllm serve Qwen/Qwen3-8B --kv-transfer-config '{CONNECTOR % (connector, role)}'"
    server = found("a.sh", words)
    assert isinstance(server, Server)
    assert (not server.unpriced) is priced


@pytest.mark.parametrize(
    ("client", "load"),
    [
        ("genai-perf profile --synthetic-input-tokens-mean 90 --output-tokens-mean 9 --concurrency 4", "4 None"),
        ("aiperf profile --isl 90 --osl 9 --request-rate 2.5", "None 2.5/s"),
        ('guidellm benchmark --rate-type constant --rate 3 --data "prompt_tokens=90,output_tokens=9"', "None 3/s"),
        ('guidellm benchmark --rate-type concurrent --rate 8 --data \'{"prompt_tokens":90,"output_tokens":9}\'', "8 None"),
        ("python benchmark_serving.py --random-input-len 90 --random-output-len 9 --request-rate 3", "None 3/s"),
        ("python token_benchmark_ray.py --mean-input-tokens 90 --mean-output-tokens 9 --num-concurrent-requests 6", "6 None"),
        ("vllm bench throughput --model x --input-len 90 --output-len 9 --num-prompts 50", "50 None"),
        ("python -m sglang.bench_one_batch --model x --batch-size 7 --input-len 90 --output-len 9", "7 None"),
    ],
)  # fmt: skip
def test_every_client_says_its_load(client: str, load: str) -> None:
    """Lengths, and requests in flight or a second."""
    (told,) = loads_of({}, {"c.sh": client}, ServeFlags(), {})
    assert f"{told.flags.concurrency} {told.flags.rate}" == load
    assert (told.flags.input_tokens, told.flags.output_tokens) == ("90", "9")


def test_a_client_alone_is_no_server() -> None:
    """What answers is not said."""
    with pytest.raises(InputError, match=r"c\.sh starts a client of a server"):
        read_texts({"c.sh": "vllm bench serve --model a/b --random-input-len 9 --random-output-len 9"})


@pytest.mark.parametrize(
    ("text", "like"),
    [
        ("docker run \\\n  ghcr.io/huggingface/text-generation-inference:3 --model-id a/b --num-shard 2", "a/b --tensor-parallel-size 2"),
        ("CUDA_VISIBLE_DEVICES=0 lmdeploy serve api_server a/b --session-len 4096", "a/b --max-model-len 4096"),
        ("docker run -e NIM_TENSOR_PARALLEL_SIZE=4 nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8", "llama-3.1-8b-instruct --tensor-parallel-size 4"),
        ("mlx_lm.server --model a/b-4bit", "a/b-4bit"),
    ],
)  # fmt: skip
def test_a_server_that_is_not_covered_is_answered_by_the_command_that_is(text: str, like: str) -> None:
    """Of vLLM, with what it was told of model, split and length."""
    with pytest.raises(InputError, match="not covered") as refused:
        read_texts({"s.sh": text})
    assert f'plan audit "vllm serve {like}"' in refused.value.fix


def test_hostile_lines_before_a_server_take_no_time() -> None:
    """Of many that begin containers."""
    began = time.process_time()
    with pytest.raises(InputError):
        read_texts({"s.sh": ("docker run " * 300 + "\n") * 30})
    assert time.process_time() - began < 2
