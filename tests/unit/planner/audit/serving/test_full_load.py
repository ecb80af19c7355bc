"""What is taken for a server of which no file says its load, its model or its GPUs."""

from dataclasses import replace

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import audited_server, on_gpus_that_hold
from planner.audit.serving.full_load import full_load
from planner.audit.serving.load import ServedLoad
from planner.audit.serving.running import CLUMPED
from planner.audit.serving.server import Server, Unknown, server_of
from planner.questions.flags import ServeFlags
from planner.questions.serving.lengths import ALIKE


def _server(name: str, text: str) -> Server:
    server = server_of(read_texts({name: text}), model=None, gpu=None)
    assert isinstance(server, Server)
    return server


def test_the_name_of_a_file_of_options_tells_a_model_and_decides_none() -> None:
    """Options of a server name no checkpoint: that is an argument of its command, and is asked for."""
    options = "enable_attention_dp: false\ntensor_parallel_size: 8\nprint_iter_log: true\n"
    reading = read_texts({"deepseek-r1-h200-1k1k_tp8.yaml": options})
    assert reading.gpus == ("h200-sxm",)
    unknown = server_of(reading, model=None, gpu=None)
    assert isinstance(unknown, Unknown)
    assert unknown.missing == ("--model (the name of deepseek-r1-h200-1k1k_tp8 tells deepseek-r1)",)


def test_a_guess_of_gpus_refuses_nobodys_server() -> None:
    """Where no file names a kind, the first of fleets whose memory holds the model is taken, and said."""
    moved = on_gpus_that_hold(_server("serve.sh", "vllm serve deepseek-ai/DeepSeek-R1 -tp 8\n"))
    assert (moved.gpu, moved.knows_gpu) == ("h200-sxm", False)
    assert moved.assumed[-1].startswith("on h200-sxm: no file names a kind of GPU, and h100-sxm does not")


def test_gpus_that_are_named_stay() -> None:
    named = _server("serve.sh", "# 8 x H100\nvllm serve deepseek-ai/DeepSeek-R1 -tp 8\n")
    assert on_gpus_that_hold(named) is named


def test_a_load_that_nobody_says_is_one_that_the_server_takes() -> None:
    """TensorRT-LLM refuses prompts beyond a step: those that are taken for granted are as long as that."""
    name = "trtllm-serve nvidia/DeepSeek-R1-FP4 --tp_size 8 --max_num_tokens 1024"
    server = replace(_server("serve.sh", f"# 8 x B200\n{name}\n"), token_budget=1024)
    assert server.longest_prompt == 1024
    (load,) = full_load(load_calibration(), server, ServeFlags(), 10**6)
    assert (load.flags.input_tokens, load.flags.input_p99) == ("1024", ALIKE)


@pytest.mark.parametrize(("p99", "tells"), [(None, True), (ALIKE, False), ("1100", False)])
def test_a_closed_loop_of_one_length_says_that_it_runs_in_step(p99: str | None, *, tells: bool) -> None:
    """Its band covers first tokens of lengths that spread by a tenth, unless somebody says how they do."""
    text = (
        "# one H100\npython3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --chunked-prefill-size 2048\n"
    )
    reading = read_texts({"serve.sh": text})
    flags = ServeFlags(concurrency="32", input_tokens="1000", output_tokens="200", input_p99=p99)
    loads = (ServedLoad(flags=flags, source="as asked", compares=False),)
    (load,) = audited_server(load_calibration(), reading, _server("serve.sh", text), loads).loads
    assert (load.in_step is not None) is tells
    assert load.running is not None
    first = load.running.plan.estimate.ttft
    assert first.lower_s < first.p50_s < first.upper_s
    if tells:
        assert first.lower_s < first.p50_s / CLUMPED
