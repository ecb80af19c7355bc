"""Ranks with the same heads that hold a part of the tokens each: what they hold, read, and say to one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.kernels.collectives import collective_time
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.serving.memory import kv_bytes_per_token, weights_bytes
from costmodel.serving.ops import decode_attention_s, joining_s, prefill_attention_s
from planner.serving.space import serving_layouts
from topology.base.errors import InputError
from topology.builders import default_cluster

CAL = load_calibration()


def deployed(name: str, tp: int, dcp: int = 1) -> Deployment:
    """One replica on H200."""
    return Deployment(
        model=model(name),
        hierarchy=default_cluster("h200-sxm", 64).hierarchy,
        layout=ServingLayout(tp=tp, dcp=dcp),
        stack=serving_stack("vllm"),
    )


@pytest.mark.parametrize(
    ("name", "tp", "dcp"), [("deepseek-r1", 8, 8), ("deepseek-r1", 8, 2), ("qwen3-235b", 8, 2)]
)
def test_a_rank_holds_a_part_of_the_tokens_and_all_its_weights(name: str, tp: int, dcp: int) -> None:
    """So a cache holds dcp times as many; and what is read of one token, all ranks together, is its cache once."""
    one, many = deployed(name, tp), deployed(name, tp, dcp)
    assert kv_bytes_per_token(one) == pytest.approx(dcp * kv_bytes_per_token(many))
    assert weights_bytes(one) == weights_bytes(many)


def test_attention_of_the_ranks_is_that_of_all_their_heads_on_a_part_of_the_tokens() -> None:
    """Of tp 8, dcp 8 each reads what one rank with every head does of an eighth of the tokens, and then they join."""
    batch, context = np.array([1.0, 32.0, 256.0]), 32_000.0
    apart, alone = deployed("deepseek-r1", 8, 8), deployed("deepseek-r1", 1)
    joined = apart.stack.kernel_level * apart.model.num_layers * joining_s(CAL, apart, batch)
    assert decode_attention_s(CAL, apart, batch, context) - joined == pytest.approx(
        decode_attention_s(CAL, alone, batch, context / 8)
    )
    assert (joined > 0).all()


def test_long_contexts_gain_and_short_ones_lose() -> None:
    """What is read falls, what is exchanged does not depend on the context."""
    times = {
        context: [float(decode_attention_s(CAL, deployed("deepseek-r1", 8, n), 64, context)) for n in (1, 8)]
        for context in (500, 64_000)
    }
    assert times[500][0] < times[500][1]
    assert times[64_000][0] > times[64_000][1]


def test_what_is_exchanged_is_queries_log_sums_and_outputs() -> None:
    """DeepSeek-R1: 128 heads, queries of 576 and outputs of 512 numbers in bf16, four bytes a sum."""
    apart, rows = deployed("deepseek-r1", 8, 8), np.array([64.0])
    fabric = apart.hierarchy
    by_hand = (
        collective_time(CAL, fabric, "all_gather", rows * 128 * 576 * 2, 8, 1)
        + collective_time(CAL, fabric, "all_gather", rows * 128 * 4, 8, 1)
        + collective_time(CAL, fabric, "reduce_scatter", rows * 128 * 512 * 2, 8, 1)
    )
    assert joining_s(CAL, apart, rows) == pytest.approx(by_hand)
    assert joining_s(CAL, replace(apart, draft_tokens=1), rows / 2) == pytest.approx(by_hand)
    assert joining_s(CAL, deployed("deepseek-r1", 8), rows) == 0


def test_a_prompt_after_others_gathers_what_is_cached_of_them() -> None:
    """And one without a past nothing."""
    apart, whole = deployed("deepseek-r1", 8, 8), deployed("deepseek-r1", 8)
    first = [float(prefill_attention_s(CAL, one, 2048, 0)) for one in (apart, whole)]
    later = [float(prefill_attention_s(CAL, one, 2048, 16_384)) for one in (apart, whole)]
    assert first[0] == first[1]
    assert later[0] > later[1]


def allowed(heads: int, groups: int, tp: int, dcp: int) -> bool:
    """Whether vLLM 0.33 starts it: `ModelConfig.verify_with_parallel_config`, written down apart."""
    if tp % dcp:
        return False
    return groups == 1 or (tp > groups and dcp <= tp // groups and heads // groups % dcp == 0)


@pytest.mark.parametrize(
    ("name", "groups"), [("deepseek-r1", 1), ("qwen3-235b", 4), ("qwen3-30b-a3b", 4), ("70b", 8), ("405b", 8)]
)
def test_degrees_are_those_that_the_engine_starts(name: str, groups: int) -> None:
    """Every pinned one that it does and no other; unpinned the largest."""
    spec = model(name)
    space = {"most_gpus": 16, "domain_gpus": 16, "host_gpus": 16}
    for dcp in (2, 4, 8, 16):
        found = {one.tp for one in serving_layouts(spec, **space, pins={"dcp": dcp}, shares_cache=True)}
        offered = {one.tp for one in serving_layouts(spec, **space)}
        assert found == {tp for tp in offered if allowed(spec.num_attention_heads, groups, tp, dcp)}
    free = [one for one in serving_layouts(spec, **space, shares_cache=True) if one.dcp > 1]
    assert {(one.tp, one.dcp) for one in free} == {(tp, tp // groups) for tp in (2, 4, 8, 16) if tp > groups}
    assert all(one.dcp == 1 for one in serving_layouts(spec, **space))


def test_layers_that_keep_a_window_are_left_whole() -> None:
    """gpt-oss has 8 heads of keys and values; every other layer keeps 128 tokens."""
    found = serving_layouts(
        model("gpt-oss-120b"), most_gpus=16, domain_gpus=16, host_gpus=16, shares_cache=True
    )
    assert all(one.dcp == 1 for one in found)


def test_a_degree_that_does_not_divide_is_refused() -> None:
    """Three lines."""
    with pytest.raises(InputError, match="possible"):
        ServingLayout(tp=8, dcp=3)
