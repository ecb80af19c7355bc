"""What engines' own checks of their configuration refuse: each with one beside it that passes."""

import pytest

from planner.audit.read import read_texts
from planner.audit.serving.audit import _start
from planner.audit.serving.refused_configs import refused_configs
from planner.audit.serving.server import Server, server_of

DENSE, MOE = "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B"
VLLM, SGLANG = "# 8x H100\nvllm serve", "# 8x H100\npython -m sglang.launch_server --model-path"
TRT = "# 8x H100\ntrtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8"
DRAFT = '--speculative-config \'{"method": "draft_model", "model": "a/b"%s}\''


def server(text: str) -> Server:
    """The server of a command."""
    found = server_of(read_texts({"s.sh": text}), model=None, gpu=None)
    assert isinstance(found, Server)
    return found


@pytest.mark.parametrize(
    ("broken", "kept", "why"),
    [
        (f"{VLLM} {DENSE} --enable-expert-parallel -tp 8", f"{VLLM} {MOE} --enable-expert-parallel -tp 8", "has none"),
        (f"{VLLM} {MOE} -tp 8 --enable-eplb", f"{VLLM} {MOE} -tp 8 --enable-eplb --enable-expert-parallel", "eplb"),
        (f"{VLLM} {DENSE} --max-num-batched-tokens 128 --max-num-seqs 256", f"{VLLM} {DENSE} --max-num-batched-tokens 256 --max-num-seqs 256", "no token for each"),
        (f"{VLLM} {DENSE} --long-prefill-token-threshold 9000 --max-model-len 8192", f"{VLLM} {DENSE} --long-prefill-token-threshold 8192 --max-model-len 8192", "beyond"),
        (f"{VLLM} {DENSE} --enable-lora --max-loras 4 --max-cpu-loras 2", f"{VLLM} {DENSE} --enable-lora --max-loras 4 --max-cpu-loras 4", "max-cpu-loras"),
        (f"{VLLM} {DENSE} --enable-auto-tool-choice", f"{VLLM} {DENSE} --enable-auto-tool-choice --tool-call-parser hermes", "tool-call-parser"),
        (f"{VLLM} {MOE} -dp 2 --data-parallel-size-local 4", f"{VLLM} {MOE} -dp 4 --data-parallel-size-local 4", "is more than"),
        (f"{VLLM} {DENSE} -tp 8 --nnodes 2 --distributed-executor-backend ray", f"{VLLM} {DENSE} -tp 8 --nnodes 2 --distributed-executor-backend mp", "ray counts"),
        (f"{VLLM} {DENSE}-AWQ --quantization fp8", f"{VLLM} {DENSE}-AWQ --quantization awq_marlin", "by its name awq"),
        (f"{SGLANG} {DENSE} --tp 8 --nnodes 3", f"{SGLANG} {DENSE} --tp 8 --nnodes 2", "do not divide among 3"),
        (f"{SGLANG} {DENSE} --chunked-prefill-size 1000 --page-size 64", f"{SGLANG} {DENSE} --chunked-prefill-size 1024 --page-size 64", "no multiple of --page-size"),
        (f"{SGLANG} {DENSE} --served-model-name qwen3:32b", f"{SGLANG} {DENSE} --served-model-name qwen3-32b", "colon"),
        (f"{SGLANG} {DENSE} --enable-hierarchical-cache --disable-radix-cache", f"{SGLANG} {DENSE} --enable-hierarchical-cache", "tree"),
        (f"{SGLANG} {MOE} --tp 8 --moe-dense-tp-size 2", f"{SGLANG} {MOE} --tp 8 --moe-dense-tp-size 1", "neither 1 nor tp 8"),
        (f"{TRT} --ep_size 4 --set moe_tensor_parallel_size=4", f"{TRT} --ep_size 4 --set moe_tensor_parallel_size=2", "are not tp 8"),
        (f"cat > o.yaml <<EOF\ncuda_graph_config:\n  max_batch_size: 64\n  batch_sizes: [1, 8, 32]\nEOF\n{TRT} --config o.yaml", f"{TRT} --max_batch_size 64", "batch_sizes up to 32"),
    ],
)  # fmt: skip
def test_a_check_of_an_engine_is_asked(broken: str, kept: str, why: str) -> None:
    """The server does not start for this reason; its neighbour fails no such check."""
    refused = [said for said, _ in refused_configs(server(broken))]
    assert any(why in said for said in refused)
    start = _start(server(broken))
    assert start.starts is False
    assert not list(refused_configs(server(kept)))


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_drafter_lies_on_one_rank_or_on_all(ranks: int) -> None:
    """As the model does."""
    table = '{"method": "mtp", "num_speculative_tokens": 1, "draft_tensor_parallel_size": %d}'
    command = f"{VLLM} deepseek-ai/DeepSeek-R1 -tp 8 --speculative-config '{table}'"
    assert not list(refused_configs(server(command % ranks)))
    (broken,) = refused_configs(server(command % 2))
    assert "the drafter's tp 2" in broken[0]


@pytest.mark.parametrize("engine", ["vllm serve", "trtllm-serve"])
def test_bf16_needs_ampere_on_every_engine_that_says_so(engine: str) -> None:
    """Both have the check."""
    flag = {"vllm serve": "--dtype bfloat16"}.get(engine, "--set dtype=bfloat16")
    start = _start(server(f"# one Tesla T4\n{engine} Qwen/Qwen3-8B {flag}"))
    assert "bfloat16 needs compute capability 8.0" in start.why


@pytest.mark.parametrize(
    ("image", "flag", "starts"),
    [
        ("vllm/vllm-openai:v0.11.0", "--num-scheduler-steps 8", False),
        ("vllm/vllm-openai:v0.8.5", "--num-scheduler-steps 8", True),
        ("vllm/vllm-openai:v0.10.0", "--enable-reasoning", False),
        ("vllm/vllm-openai:v0.11.0", "--speculative-model '[ngram]' --num-speculative-tokens 4", False),
        ("vllm/vllm-openai:v0.11.0", "--swap-space 4", True),
        ("vllm/vllm-openai:v0.33.0", "--swap-space 4", False),
        ("lmsysorg/sglang:v0.5.23", "--swap-space 4", None),
    ],
)
def test_a_flag_is_judged_by_the_release_of_the_image(image: str, flag: str, starts: bool | None) -> None:
    """One that its release lacks stops it; where that is not known, nothing does."""
    text = f"# one H100\ndocker run --gpus 1 {image} --model Qwen/Qwen3-8B {flag}"
    if starts is None:
        text = f"# one H100\nvllm serve Qwen/Qwen3-8B {flag}"
    found = server_of(read_texts({"s.sh": text}), model=None, gpu=None)
    if not isinstance(found, Server):  # a drafter that is not priced
        assert "speculation" in found.missing[0]
        return
    start = _start(found)
    assert start.starts is (starts is not False)
    if starts is False:
        assert f"has no {flag.partition(' ')[0]}" in start.why
    told = any("whose parser stops there" in words for words in found.assumed)
    assert told is (starts is None)
