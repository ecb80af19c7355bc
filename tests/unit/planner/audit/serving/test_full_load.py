"""What is taken for a server of which no file says its load, its model or its GPUs."""

from dataclasses import replace

from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import on_gpus_that_hold
from planner.audit.serving.full_load import full_load
from planner.audit.serving.server import Server, server_of
from planner.questions.flags import ServeFlags
from planner.questions.serving.lengths import ALIKE


def _server(name: str, text: str) -> Server:
    server = server_of(read_texts({name: text}), model=None, gpu=None)
    assert isinstance(server, Server)
    return server


def test_the_name_of_a_file_of_options_tells_the_model() -> None:
    """Options of a server name no checkpoint: that is an argument of its command."""
    options = "enable_attention_dp: false\ntensor_parallel_size: 8\nprint_iter_log: true\n"
    server = _server("deepseek-r1-h200-1k1k_tp8.yaml", options)
    assert (server.model.name, server.gpu) == ("deepseek-r1", "h200-sxm")
    assert any(note.startswith("the model is deepseek-r1, by the name of") for note in server.assumed)


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
