"""All of a better server against its parts, over generated servers: it is the best of what is told, or untold."""

import random

import pytest

from costmodel.kernels.tables import load_calibration
from planner.audit.read import read_texts
from planner.audit.serving.changes import LEAST_GAIN
from planner.audit.serving.texts import judged
from planner.questions.flags import ServeFlags
from tests.counts import tries

CAL = load_calibration()
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B")
LOADS = (
    ServeFlags(rate="2/s"),
    ServeFlags(rate="8/s", ttft="1s", tpot="50ms"),
    ServeFlags(concurrency="256"),
    ServeFlags(concurrency="64", input_tokens="8000", output_tokens="200"),
)


def _command(draw: random.Random) -> str:
    """A server as people start them: limits of the batch, of a step, of memory and of the length."""
    options = {
        "--data-parallel-size": (2, 4),
        "--enable-expert-parallel": ("",),
        "--max-num-seqs": (8, 32, 64, 512),
        "--max-num-batched-tokens": (1024, 2048, 16384),
        "--gpu-memory-utilization": (0.7, 0.85, 0.95),
        "--no-async-scheduling": ("",),
        "--max-model-len": (16384,),
    }
    chosen = [f"{flag} {draw.choice(values)}" for flag, values in options.items() if draw.random() < 0.35]
    return f"vllm serve {draw.choice(MODELS)} -tp {draw.choice((1, 2, 4))} {' '.join(chosen)}"


@pytest.mark.parametrize("seed", range(tries(2, 60)))
def test_all_of_it_carries_more_than_any_part_that_keeps_the_answers(seed: int) -> None:
    """Else the part alone is the advice: fewer words for as much."""
    draw = random.Random(seed)
    texts = {"serve.sh": f"# 8 x H100\n{_command(draw)}\n"}
    audit = judged(read_texts(texts), texts, {}, draw.choice(LOADS), {})
    for load in audit.loads:
        whole = [change.requests_per_s for change in load.changes if change.whole]
        parts = [change.requests_per_s for change in load.changes if not (change.whole or change.narrower)]
        now = 0.0 if load.running is None else load.running.requests_per_s
        assert all(rate > (1 + LEAST_GAIN) * max(now, *parts, 0.0) for rate in whole)
        assert all(rate > (1 + LEAST_GAIN) * now for rate in parts)
