"""What keeps requests waiting for their first token stands first: cache, batch or prompts."""

from dataclasses import replace

import pytest

from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import audited_server
from planner.audit.serving.load import ServedLoad
from planner.audit.serving.server import Server, server_of
from planner.questions.flags import ServeFlags

CAL = load_calibration()
SMALL = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"


@pytest.mark.parametrize(
    ("words", "gpu", "flight", "binds"),
    [
        (SMALL, "l4", 64, "the cache is full"),
        (f"{SMALL} --max-num-seqs 4", "h100-sxm", 64, "the batch is full"),
        (f"{SMALL} --max-num-seqs 256", "h100-sxm", 8, ""),
    ],
)
def test_what_binds_is_the_first_line(words: str, gpu: str, flight: int, binds: str) -> None:
    """With how many wait and how many run; nothing is said where requests hardly wait."""
    load = ServeFlags(concurrency=str(flight), input_tokens="1024", output_tokens="64")
    reading = read_texts({"serve.sh": words})
    server = server_of(reading, model=None, gpu=gpu)
    assert isinstance(server, Server)
    found = audited_server(CAL, reading, server, [ServedLoad(source="flags", flags=load, compares=False)])
    told = found.loads[0].binds
    assert (told is not None) is bool(binds)
    if told is not None:
        assert told[0].startswith(binds)
        assert f"of {flight} requests in flight wait" in told[0]
        first = server_answer(found).sections[0].pairs[0]  # type: ignore[union-attr]  # it is of pairs
        assert first == ("binds", f"{told[0]}: {told[1]}")


@pytest.mark.parametrize(
    ("flags", "prompt", "fits"),
    [
        ("--max_num_tokens 4096", 5000, False),  # TensorRT-LLM issue 9277
        ("--max_num_tokens 4096", 4000, True),
        ("--max_num_tokens 4096 --enable_chunked_prefill", 5000, True),
        ("", 5000, True),
    ],
)
def test_a_prompt_longer_than_a_step_that_is_not_cut_is_refused(flags: str, prompt: int, fits: bool) -> None:
    """TensorRT-LLM computes prompts whole unless it is told to cut them."""
    words = f"trtllm-serve meta-llama/Llama-3.1-8B-Instruct --backend pytorch {flags}"
    reading = read_texts({"serve.sh": words})
    server = server_of(reading, model=None, gpu="h100-sxm")
    assert isinstance(server, Server)
    load = ServeFlags(concurrency="2", input_tokens=str(prompt), output_tokens="16", input_p99="alike")
    load = replace(load, output_p99="alike")
    found = audited_server(CAL, reading, server, [ServedLoad(source="flags", flags=load, compares=False)])
    assert found.fits is fits
    assert ("max_num_tokens is 4,096" in str(server_answer(found).sections[0])) is not fits
