"""What engines refuse at load whatever it takes: rests of heads, cut blocks, lengths beyond positions."""

import pytest

from app.reports.audit.server import server_answer
from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.audit import ServingAudit, audited_server
from planner.audit.serving.load import ServedLoad
from planner.audit.serving.server import Server, server_of
from planner.questions.flags import ServeFlags

CAL = load_calibration()
HEADS = "Qwen/Qwen2.5-7B-Instruct"
MOE = "Qwen/Qwen3-30B-A3B"
VLLM, SGLANG = "vllm serve", "python3 -m sglang.launch_server --model-path"
LONG = f"{VLLM} {MOE} --tensor-parallel-size 4 --max-model-len 131072"
LOAD = ServedLoad(source="flags", flags=ServeFlags(concurrency="8", input_tokens="512", output_tokens="64"))


def audit(words: str, *loads: ServedLoad) -> ServingAudit:
    """What is said of a command."""
    server = server_of(read_texts({"serve.sh": words}), model=None, gpu="h100-sxm")
    assert isinstance(server, Server)
    return audited_server(CAL, read_texts({"serve.sh": words}), server, loads)


@pytest.mark.parametrize(
    ("words", "why", "fix"),
    [
        (f"{VLLM} {HEADS} --tensor-parallel-size 8", "28 heads do not divide by tp 8", "set tp 4"),
        (f"{SGLANG} {HEADS} --tp 8", "28 heads do not divide by tp 8", "set tp 4"),
        (f"trtllm-serve {HEADS} --tp_size 8", "28 heads do not divide by tp 8", "set tp 4"),
        (f"{VLLM} {MOE}-FP8 --tensor-parallel-size 8", "768 / 8 = 96", "--enable-expert-parallel"),
        (f"{VLLM} {MOE}-FP8 --tensor-parallel-size 4", "768 / 4 = 192", "over 2 ranks"),
        (f"{SGLANG} {MOE}-FP8 --tp 8", "768 / 8 = 96", "--ep-size 8"),
        (f"{VLLM} Qwen/Qwen3-32B-FP8 --tensor-parallel-size 16", "25,600 / 16 = 1600", "over 8 ranks"),
        (LONG, "131,072 tokens go beyond the 40,960 positions", "--hf-overrides"),
    ],
)
@pytest.mark.parametrize("loads", [(), (LOAD,)])
def test_an_engine_refuses_what_its_laws_forbid(words, why, fix, loads):
    """With or without a load: vllm issue 25292 has the blocks."""
    given = audit(words, *loads)
    assert given.fits is False
    assert given.start is not None
    assert given.start.starts is False
    assert given.start.finding is not None
    assert why in given.start.finding[0]
    assert fix in given.start.finding[1]
    assert "does not start" in server_answer(given).headline


@pytest.mark.parametrize(
    "words",
    [
        f"{VLLM} {HEADS} --tensor-parallel-size 4",
        f"{VLLM} {MOE} --tensor-parallel-size 8",
        f"{VLLM} {MOE}-FP8 --tensor-parallel-size 2",
        f"{VLLM} {MOE}-FP8 --tensor-parallel-size 8 --enable-expert-parallel",
        f"{VLLM} {MOE} --tensor-parallel-size 4 --max-model-len 40960",
        f"export VLLM_ALLOW_LONG_MAX_MODEL_LEN=1\n{LONG}",
        f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {LONG}",
        f'{LONG} --rope-scaling \'{{"rope_type":"yarn","factor":4.0}}\'',
        f'{LONG} --hf-overrides \'{{"rope_parameters":{{"factor":4.0}}}}\'',
        f"{VLLM} {MOE}-Instruct-2507 --tensor-parallel-size 4 --max-model-len 262144",
    ],
)
def test_what_keeps_the_laws_starts(words):
    """A later release of a model may have more positions than the one that is catalogued."""
    given = audit(words).start
    assert given is not None
    assert given.starts is True
    assert given.refusal is None
