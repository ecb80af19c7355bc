"""The share of its memory that SGLang says it takes where it is told none, in logs and threads, to the last digit."""

from __future__ import annotations

import pytest

from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import at_version, serving_stack
from costmodel.serving.memory_share import memory_share
from topology.builders import default_cluster


def share(version: str, gpu: str, name: str, layout: ServingLayout, tokens: int, drafts: int = 0) -> float:
    """What is computed of a server with steps of so many tokens on each attention rank."""
    deployed = Deployment(
        model=model(name),
        hierarchy=default_cluster(gpu, 8).hierarchy,
        layout=layout,
        stack=at_version(serving_stack("sglang"), version),
        draft_tokens=drafts,
    )
    return memory_share(deployed, token_budget=tokens)


@pytest.mark.parametrize(
    ("version", "gpu", "tp", "printed", "source"),
    [
        ("0.3.6", "h100-sxm", 16, 0.79, "server_args.py: by the degree alone"),
        ("0.4.5", "h100-sxm", 8, 0.81, "pull 5893: 80 GB - 80 GB * 0.81"),
        ("0.5.6", "h100-sxm", 1, 0.835, "server_args of its notebooks, before prompts are captured"),
        ("0.5.12", "h100-sxm", 1, 0.83, "the same since"),
        ("0.5.13", "h100-sxm", 2, 0.828, "issue 29092"),
    ],
)
def test_a_share_is_what_the_engine_prints(
    version: str, gpu: str, tp: int, printed: float, source: str
) -> None:
    """Three digits, as the engine rounds it."""
    assert share(version, gpu, "qwen3-32b", ServingLayout(tp=tp), 8192) == pytest.approx(printed), source


def test_a_step_is_that_of_one_attention_rank_since_it_was_mended() -> None:
    """Eight attention ranks of an H200 with chunks of 32,768 tokens: 0.484 before, about 0.78 after (pull 28884).

    Its command is not whole there: the 0.296 between the two are 1.5 MiB of 28,672 tokens, whatever else it has.
    """
    ranks = ServingLayout(attention_dp=8, ep=8)
    before, after = (share(each, "h200-sxm", "glm-5.2", ranks, 4096) for each in ("0.5.13", "0.5.14"))
    assert after - before == pytest.approx(0.78 - 0.484, abs=0.005)
    assert after == pytest.approx(0.78, abs=0.025)


def test_what_is_captured_and_drafted_is_kept_free() -> None:
    """Fewer captured requests leave the cache more; a drafter of the releases that count it leaves less."""
    stack = at_version(serving_stack("sglang"), "0.5.12")
    one = ServingLayout(tp=8)
    assert share("0.5.12", "h200-sxm", "qwen3-32b", one, 8192, drafts=3) < share(
        "0.5.12", "h200-sxm", "qwen3-32b", one, 8192
    )
    assert stack.reserves[-1].tiers[1].batch == 512


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_other_engines_have_one_number(engine: str) -> None:
    """Whatever the layout."""
    stack = serving_stack(engine)
    for tp in (1, 8):
        deployed = Deployment(
            model=model("qwen3-32b"),
            hierarchy=default_cluster("h100-sxm", 8).hierarchy,
            layout=ServingLayout(tp=tp),
            stack=stack,
        )
        assert memory_share(deployed, token_budget=8192) == stack.memory_fraction
