"""The simulated scheduler beside vLLM's own: which tokens of which request are in every step of fifty workloads."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.serving.engine import serving_stack
from costmodel.serving.simulation.load import Load
from costmodel.serving.simulation.replica import Replica
from costmodel.serving.simulation.scheduler import Scheduler
from costmodel.serving.step_table import AttentionGrid, StepTimes

RECORDED = json.loads(gzip.decompress(Path(__file__).with_name("vllm_scheduler.json.gz").read_bytes()))
NOBODY = np.empty(0, dtype=np.int64)
BLOCK = 16


def steps_of(case: dict[str, Any]) -> list[list[list[int]]]:
    """Pairs of request and tokens of every simulated step, each of one second."""
    most = case["seqs"]
    times = StepTimes(
        linear_s=(1.0,) * 9000,
        graph_linear_s=(1.0,) * (most + 1),
        decode_attention_s=(0.0,) * (most + 1),
        decode_attention_s_per_token=(0.0,) * (most + 1),
        prefill_attention=AttentionGrid(
            query_tokens=(0, 100), past_tokens=(0, 100), seconds=((0, 0), (0, 0))
        ),
    )
    # vLLM keeps one block back that is never filled
    rules = Scheduler(
        token_budget=case["budget"],
        max_batch=most,
        kv_capacity_tokens=(case["blocks"] - 1) * BLOCK,
        spare_blocks=serving_stack("vllm").spare_blocks,
    )
    empty = Load(input_tokens=NOBODY, output_tokens=NOBODY, cached_tokens=NOBODY, arrival_s=np.empty(0))
    replica, coming, steps = Replica(times, rules, empty), list(case["requests"]), []
    while coming or not replica.idle:
        while coming and coming[0][2] <= replica.clock:
            prompt, output, _ = coming.pop(0)
            replica.receive(prompt, output)
        if replica.idle:
            replica.clock = float(coming[0][2])
            continue
        clock, left = replica.clock, list(replica._left)
        decoding = [i for i, end in enumerate(replica._finish_step) if end > replica._step]
        replica.advance(replica.clock, most_steps=1)
        if replica.clock > clock:
            found = {i: before - now for i, (before, now) in enumerate(zip(left, replica._left, strict=True))}
            steps.append(sorted([i, found[i] + (i in decoding)] for i in found if found[i] or i in decoding))
    return steps


def test_steps_are_those_of_vllms_own_scheduler() -> None:
    """At least 99 % of all steps hold the same tokens of the same requests."""
    same = steps = 0
    for case in RECORDED["workloads"]:
        ours, theirs = steps_of(case), case["steps"]
        steps += max(len(ours), len(theirs))
        same += sum(a == b for a, b in zip(ours, theirs, strict=False))
    assert len(RECORDED["workloads"]) == 50
    assert steps > 7000
    assert same / steps >= 0.998, f"{same} of {steps}"


@pytest.mark.parametrize("budget", [64, 256, 512, 2048])
def test_with_room_in_the_cache_every_step_is_the_same(budget: int) -> None:
    """Without a full cache there is nothing to be told apart; every workload with room is followed to its end."""
    cases = [one for one in RECORDED["workloads"] if one["budget"] == budget and one["blocks"] == 4000]
    assert len(cases) >= 3
    for case in cases:
        assert steps_of(case) == case["steps"]
