"""Fleets that count what caches have of a trace's prompts: fewer GPUs, limits kept by the fleet's own hits."""

from __future__ import annotations

from pathlib import Path

import pytest

from costmodel.serving.simulation.load import HASH_BLOCK_TOKENS
from planner.analysis.serving.fleets import find_fleet
from planner.deployment.folder import folder
from planner.questions.flags import ServeFlags
from planner.questions.serving.understand import understand_serving
from planner.serving.plan import ServingPlan, serving_from_json, serving_to_json
from topology.base.errors import InputError

TURNS, TALKS, GAP_S = 6, 121, 20
PAIRS = ("layout.tp=2", "layout.pp=1")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Conversations of six turns, each of them with all that was said before; 24 s between two turns."""
    rows = ["arrival_s,input_tokens,output_tokens,hash_ids"]
    for turn in range(TURNS):
        for talk in range(TALKS):
            hashes = " ".join(str(100 * talk + n) for n in range(2 * turn + 2))
            at = turn * GAP_S + talk * GAP_S / TALKS
            rows.append(f"{at:.4f},{2 * HASH_BLOCK_TOKENS * (turn + 1)},100,{hashes}")
    path = tmp_path / "talks.csv"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def planned(trace: Path, **words: str) -> ServingPlan:
    """70B in fp8 on H100, in one pool of pairs of GPUs."""
    asked = {"model": "70b", "gpu": "h100-sxm", "weights": "fp8", "mode": "aggregated", "provider": "own"}
    limits = {"ttft": "1s", "tpot": "40ms", "usd_per_gpu_hour": "2"}
    return find_fleet(understand_serving(ServeFlags(trace=trace, settings=PAIRS, **asked, **limits, **words)))


def test_a_fleet_whose_caches_are_counted_is_smaller_and_keeps_its_limits(trace: Path) -> None:
    """By what its own caches have: the share of prompts that is told, and latencies within both limits."""
    whole, counted = planned(trace), planned(trace, router="prefix-aware")
    assert whole.estimate.prompts_found is None
    assert counted.num_gpus < whole.num_gpus
    found = counted.estimate.prompts_found
    assert found is not None
    # of 2 + 4 + … + 12 = 42 blocks all but 12 were there before; the last token of a prompt is computed
    assert found.found == pytest.approx(30 / 42, abs=0.01)
    assert (found.router, found.on_hosts) == ("prefix-aware", 0.0)
    assert counted.estimate.ttft.p99_s <= 1.0
    assert counted.estimate.tpot.p99_s <= 0.04
    assert serving_from_json(serving_to_json(counted)) == counted


def test_a_router_by_turns_finds_less_on_several_replicas(trace: Path) -> None:
    """And needs no fewer GPUs."""
    turns, aware = (planned(trace, router=name) for name in ("round-robin", "prefix-aware"))
    assert turns.decode.workers > 1
    assert turns.estimate.prompts_found is not None
    assert aware.estimate.prompts_found is not None
    assert turns.estimate.prompts_found.found < aware.estimate.prompts_found.found
    assert turns.num_gpus >= aware.num_gpus


def test_hosts_keep_what_a_small_cache_forgets(trace: Path) -> None:
    """With little memory for the cache; reading it back takes time that a first token has."""
    few = {"router": "prefix-aware", "memory_fraction": "0.62"}
    alone, beside = planned(trace, **few), planned(trace, **few, kv_offload="400GB")
    assert alone.estimate.prompts_found is not None
    assert beside.estimate.prompts_found is not None
    assert beside.estimate.prompts_found.on_hosts > 0
    assert beside.estimate.prompts_found.found > alone.estimate.prompts_found.found
    assert "--kv-offloading-size 372.529" in str(beside.commands)


def test_scripts_start_the_router_that_was_counted_and_other_forms_are_refused(trace: Path) -> None:
    """A Service sends requests by turns."""
    plan = planned(trace, router="prefix-aware")
    assert plan.decode.workers > 1
    files = folder(plan)
    assert "--policy cache_aware" in files["router.sh"]
    assert "kubernetes.yaml" not in files
    with pytest.raises(InputError, match="written for scripts alone"):
        folder(plan, forms=("scripts", "kubernetes"))
    assert "kubernetes.yaml" in folder(planned(trace, router="round-robin"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"router": "sticky"}, "prefix-aware"),
        ({"router": "prefix-aware", "cached": "0.5"}, "caches were told twice"),
        ({"router": "prefix-aware", "engine": "trtllm"}, "TensorRT-LLM"),
        ({"kv_offload": "200"}, "has no unit"),
        ({"kv_offload": "0GB"}, "is not possible"),
        ({"kv_offload": "200 cats"}, "200 cats"),
    ],
)
def test_what_cannot_be_counted_is_refused(trace: Path, words: dict[str, str], says: str) -> None:
    """In three lines."""
    with pytest.raises(InputError) as caught:
        planned(trace, **words)
    assert says in f"{caught.value.what} {caught.value.cause} {caught.value.fix}"


def test_prompts_without_blocks_have_nothing_to_find(tmp_path: Path) -> None:
    """Neither a rate nor a trace of lengths names any."""
    path = tmp_path / "lengths.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,100,10\n1,100,10\n", encoding="utf-8")
    for words in ({"trace": path}, {"rate": "3/s"}):
        with pytest.raises(InputError, match="no prompt names its blocks"):
            understand_serving(ServeFlags(model="70b", gpu="h100-sxm", router="round-robin", **words))  # type: ignore[arg-type]  # words of a test
