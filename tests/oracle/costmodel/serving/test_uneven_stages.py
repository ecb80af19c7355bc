"""Stages with layers and GPUs of their own, beside every split counted out and a line of machines played out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import Deployment, ServingLayout, layers_of_stages, stage_layers
from costmodel.serving.engine import serving_stack
from costmodel.serving.graph_memory import graphs_bytes
from costmodel.serving.memory import cache_left_bytes, kv_capacity_tokens, positions_bytes, weights_bytes
from costmodel.serving.partition import roomiest_layers
from costmodel.serving.step import round_of, step_times
from tests.counts import tries
from topology.base.errors import InputError
from topology.builders import default_cluster

KINDS = ("rtx-5080", "rtx-5090", "rtx-4090", "l40s", "h100-sxm")
STEP = {"token_budget": 2048, "max_batch": 64}


def deployed(name: str, layers: tuple[int, ...], gpus: tuple[str, ...], *, tp: int = 1) -> Deployment:
    """A model over stages on these GPUs, in fp8."""
    return Deployment(
        model=model(name),
        hierarchy=default_cluster(gpus[0], 8).hierarchy,
        layout=ServingLayout(tp=tp, pp=len(gpus), layers=layers, gpus=gpus),
        stack=serving_stack("vllm"),
        weights="fp8",
    )


def held_by_hand(deployment: Deployment) -> float:
    """Tokens that the scarcest stage holds, each stage a replica of its own whose layers are counted out.

    It has communicators as the others have, and samples where it is the last; graphs are of its layers.
    """
    spec, layout = deployment.model, deployment.layout
    whole = replace(deployment, layout=ServingLayout(tp=layout.tp))
    vocabulary = spec.vocab_size * spec.hidden_size * 2 / layout.tp
    ends = vocabulary * (1 if spec.tie_word_embeddings else 2)
    positions = positions_bytes(spec)
    layer = (weights_bytes(whole) - ends - positions) / spec.num_layers
    counted, graphs = whole.stack.graphs[-1], graphs_bytes(whole, STEP["max_batch"])
    base = counted.base_bytes + counted.expert_bytes * spec.is_moe
    layer += (graphs - base) / spec.num_layers
    tokens = []
    for place, (layers, gpu) in enumerate(zip(layout.layers, layout.gpus, strict=True)):
        samples = deployment.stack.sampled_logit_bytes * (place == layout.pp - 1)
        stack = replace(deployment.stack, lone_workspace_bytes=None, sampled_logit_bytes=samples)
        alone = replace(whole, hierarchy=default_cluster(gpu, layout.tp).hierarchy, stack=stack)
        free = cache_left_bytes(alone, **STEP) + weights_bytes(alone) + graphs - base - positions
        end = vocabulary * (place in (0, layout.pp - 1))
        left = free - layers * layer - end
        heads = max(spec.num_key_value_heads / layout.tp, 1)
        tokens.append(left / (layers * 2 * heads * spec.head_dim * 2))
    return min(tokens)


@pytest.mark.parametrize("seed", range(tries(12, 200)))
def test_the_scarcest_stage_holds_what_a_count_by_hand_says(seed: int) -> None:
    """Random splits of two and three stages on random GPUs."""
    rng = np.random.default_rng(seed)
    gpus = tuple(rng.choice(KINDS, int(rng.integers(2, 4))).tolist())
    name, tp = str(rng.choice(["8b", "qwen3-8b", "qwen3-30b-a3b"])), int(rng.choice([1, 2]))
    cuts = sorted(rng.choice(np.arange(1, model(name).num_layers), len(gpus) - 1, replace=False).tolist())
    layers = tuple(np.diff([0, *cuts, model(name).num_layers]).tolist())
    deployment = deployed(name, layers, gpus, tp=tp)
    by_hand = max(held_by_hand(deployment), 0.0)
    tokens = kv_capacity_tokens(deployment, **STEP, context=float("inf"))
    assert by_hand - 16 <= tokens <= by_hand + 1e-6 * by_hand


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("qwen3-30b-a3b", ("rtx-5080", "rtx-5090")),
        ("qwen3-30b-a3b", ("rtx-5090", "rtx-5090")),
        ("8b", ("rtx-4090", "rtx-5080", "l40s")),
    ],
)
def test_the_roomiest_split_is_the_best_of_all_that_there_are(name: str, gpus: tuple[str, ...]) -> None:
    """Every split of all layers over the stages, one after the other."""
    total = model(name).num_layers
    every = [
        (*head, total - sum(head))
        for head in product(range(1, total), repeat=len(gpus) - 1)
        if sum(head) < total
    ]
    best = max(held_by_hand(deployed(name, layers, gpus)) for layers in every)
    found = roomiest_layers(deployed(name, stage_layers(model(name), len(gpus)), gpus), **STEP)
    assert sum(found) == total
    assert held_by_hand(deployed(name, found, gpus)) == pytest.approx(best, rel=1e-5)


def played_out(stages_s: list[float], jobs: int, rounds: int = 400) -> float:
    """Mean seconds of a round of jobs that pass a line of machines again and again, first come first served."""
    free, ready = [0.0] * len(stages_s), [0.0] * jobs
    middle = 0.0
    for turn in range(2 * rounds):
        for job in range(jobs):
            at = ready[job]
            for stage, seconds in enumerate(stages_s):
                at = free[stage] = max(at, free[stage]) + seconds
            ready[job] = at
        middle = max(ready) if turn == rounds - 1 else middle
    return (max(ready) - middle) / rounds


@pytest.mark.parametrize("seed", range(tries(20, 500)))
def test_a_round_is_as_long_as_a_line_of_machines_takes(seed: int) -> None:
    """As many jobs as stages, or fewer."""
    rng = np.random.default_rng(seed)
    stages_s = rng.uniform(0.1, 3.0, int(rng.integers(1, 6))).tolist()
    jobs = int(rng.integers(1, len(stages_s) + 1))
    found = round_of([np.array([seconds]) for seconds in stages_s], np.array([float(jobs)]))
    assert found[0] == pytest.approx(played_out(stages_s, jobs), rel=1e-9)


def test_even_stages_that_are_named_are_those_that_are_not() -> None:
    """The same layers on the same GPUs: the same times and the same cache."""
    named = deployed("8b", (16, 16), ("h100-sxm", "h100-sxm"))
    plain = replace(named, layout=ServingLayout(pp=2))
    job = {"max_batch": 16, "token_budget": 512, "input_tokens": 500, "output_tokens": 50}
    one, other = step_times(load_calibration(), named, **job), step_times(load_calibration(), plain, **job)
    for table in ("linear_s", "graph_linear_s", "decode_attention_s"):
        assert getattr(one, table)[3:] == pytest.approx(getattr(other, table)[3:], rel=1e-9), table
    assert one.passing == pytest.approx(other.passing)
    assert kv_capacity_tokens(named, **STEP, context=2000) == kv_capacity_tokens(plain, **STEP, context=2000)
    assert layers_of_stages(named) == layers_of_stages(plain)


def test_a_longer_stage_slows_the_round_down_and_one_request_passes_all_layers_once() -> None:
    """3 : 1 over two stages: many requests wait for the long one; one request alone does not."""
    job = {"max_batch": 8, "token_budget": 512, "input_tokens": 500, "output_tokens": 50}
    gpus = ("h100-sxm", "h100-sxm")
    even, middle, uneven = (
        step_times(load_calibration(), deployed("8b", layers, gpus), **job)
        for layers in ((16, 16), (20, 12), (24, 8))
    )
    assert uneven.decode_s(1, 500) == pytest.approx(even.decode_s(1, 500), rel=0.02)
    rounds = [times.decode_s(8, 4000) for times in (even, middle, uneven)]
    assert rounds[0] < rounds[1]
    assert np.diff(rounds)[1] == pytest.approx(np.diff(rounds)[0], rel=1e-6), "by the longest stage's layers"
    assert uneven.passing == pytest.approx(1 / 3, abs=0.01)


@pytest.mark.parametrize("bad", [{"layers": (16,)}, {"layers": (16, 0)}, {"gpus": ("h100-sxm",)}])
def test_stages_that_no_degree_has_are_refused(bad: dict[str, tuple[int, ...]]) -> None:
    """A number of layers, and a kind of GPU, for every stage."""
    with pytest.raises(InputError, match="not possible"):
        ServingLayout(pp=2, **bad)  # type: ignore[arg-type]
