"""Pipeline stages with layers and GPUs of their own, as files start them."""

from __future__ import annotations

import pytest

from planner.audit.read import read_texts
from planner.audit.serving.server import Server, server_of
from planner.audit.serving.texts import judged
from planner.questions.flags import ServeFlags
from topology.base.errors import InputError

CODER = (
    "vllm serve Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8 --gpu-memory-utilization 0.9 --pipeline-parallel-size"
)


def served(script: str, gpu: str | None) -> Server:
    """The server of a script."""
    server = server_of(read_texts({"serve.sh": script}), model=None, gpu=gpu)
    assert isinstance(server, Server)
    return server


@pytest.mark.parametrize(
    ("layers", "stages", "read", "refused"),
    [
        ("16,32", 2, (16, 32), ""),
        ("24,24", 2, (), ""),
        ("16,16,16", 3, (), ""),
        ("24,x", 2, (), "no list of numbers"),
        ("16,32", 3, (), "has 2 stages, and the pipeline has 3"),
        ("20,32", 2, (), "sums to 52 layers"),
        ("48,0", 2, (), "no list of numbers"),
    ],
)
def test_layers_of_stages_are_read_and_those_of_another_sum_refused(
    layers: str, stages: int, read: tuple[int, ...], refused: str
) -> None:
    """`get_pp_indices` of vLLM 0.33 and SGLang 0.5.23; even ones are those that nobody names."""
    server = served(f"VLLM_PP_LAYER_PARTITION={layers} {CODER} {stages}", "rtx-5090")
    assert server.layout.layers == read
    assert refused in server.broken_stages
    assert bool(server.broken_stages) == bool(refused)


@pytest.mark.parametrize(
    "handed",
    [
        "env VLLM_PP_LAYER_PARTITION=16,32 ",
        "export VLLM_PP_LAYER_PARTITION=16,32\n",
        "docker run --gpus all -e VLLM_PP_LAYER_PARTITION=16,32 image ",
    ],
)
def test_the_variable_is_read_however_it_is_handed(handed: str) -> None:
    """Before the command, as a word of env, to a container."""
    assert served(f"{handed}{CODER} 2", "rtx-5090").layout.layers == (16, 32)


def test_a_list_that_does_not_sum_to_the_layers_does_not_start() -> None:
    """Exit code 4, with both numbers."""
    texts = {"serve.sh": f"VLLM_PP_LAYER_PARTITION=20,32 {CODER} 2"}
    audit = judged(read_texts(texts), texts, {}, ServeFlags(), {}, gpu="rtx-5090")
    assert audit.fits is False
    assert audit.start is not None
    assert "sums to 52 layers" in audit.start.why


@pytest.mark.parametrize(
    ("version", "longest"),
    [("0.13.0", 116_535), ("0.14.0", 38_845), ("0.15.1", 38_845), ("0.16.0", 116_535)],
)
def test_a_release_that_asks_stages_for_all_layers_starts_shorter_requests(
    version: str, longest: int
) -> None:
    """Issue 34076 of vLLM, 0.15: 3.18 GiB of cache beside 16 of 48 layers on 16 GB, 34,736 tokens at most.

    Of its cache and of its tokens we have 11.8 % more; before and after these releases the stage's own layers count.
    """
    texts = {"serve.sh": f"pip install vllm=={version}\nVLLM_PP_LAYER_PARTITION=16,32 {CODER} 2"}
    audit = judged(read_texts(texts), texts, {}, ServeFlags(), {}, gpu="rtx-5080,rtx-5090")
    assert audit.start is not None
    assert audit.start.starts is False
    assert audit.start.longest_tokens == pytest.approx(longest, rel=0.02)
    assert ("asks every stage for all layers" in audit.start.why) is (longest == 38_845)
    assert "stage 1 of 2, the scarcest (16 layers on rtx-5080)" in audit.start.words


def test_kinds_are_told_by_stage_by_files_or_by_flags() -> None:
    """In the order of a flag; of kinds that a file mentions, in the order in which its layers fit."""
    script = f"# one RTX 5090 and one RTX 5080\nVLLM_PP_LAYER_PARTITION=16,32 {CODER} 2"
    assert served(script, None).layout.gpus == ("rtx-5080", "rtx-5090")
    assert served(script.replace("16,32", "32,16"), None).layout.gpus == ("rtx-5090", "rtx-5080")
    assert served(script, "rtx-5090,rtx-5080").layout.gpus == ("rtx-5090", "rtx-5080")
    assert served(script, "rtx-5080,rtx-5090").gpus_in_words == "1 × rtx-5080 + 1 × rtx-5090"
    assert served(script, "l40s").layout.gpus == ()
    with pytest.raises(InputError, match="several kinds of GPU"):
        served(script, "rtx-5080,rtx-5090,l40s")


def test_unlike_stages_are_simulated_and_other_layers_proposed() -> None:
    """A load is judged; the split that holds more is one change."""
    texts = {"serve.sh": f"VLLM_PP_LAYER_PARTITION=18,30 {CODER} 2 --max-model-len 16000"}
    asked = ServeFlags(concurrency="24", input_tokens="6000", output_tokens="200")
    audit = judged(read_texts(texts), texts, {}, asked, {}, gpu="rtx-5080,rtx-5090")
    load = audit.loads[0]
    assert load.running is not None
    assert load.running.requests_per_s > 0
    assert load.best is None
    words = [word for change in load.changes for word in change.set]
    assert "VLLM_PP_LAYER_PARTITION=15,33" in words
