"""Experts that exchange tokens under another microbatch: priced where Megatron-Core can, written where priced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.models.catalog import model
from costmodel.pipeline.pairing import paired_share
from costmodel.stack import SoftwareStack, stack
from costmodel.switches.profile import with_switches
from costmodel.training.score import evaluate
from planner.engines.contract import read, words_of_line
from planner.engines.contracts import CONTRACTS
from planner.launch.targets import export_plan
from tests.unit.planner.engines.priced import priced
from topology.base.errors import NoFeasiblePlanError
from topology.builders import default_cluster

PROFILE = stack("megatron-bridge-overlap")
MODEL, JOB = model("qwen3-30b-a3b"), TrainingJob(sequence_length=4096, global_batch_size=64)
ALONE = ParallelLayout(dp=8, ep=8, zero_stage=1)
PIPED = ParallelLayout(dp=8, pp=2, ep=8, zero_stage=1, schedule="interleaved", virtual_stages=4)
FLAG = "overlap_moe_expert_parallel_comm"


def step_s(profile: SoftwareStack, layout: ParallelLayout) -> float:
    """Seconds of a step on H100s."""
    cluster, table = default_cluster("h100-sxm", 16), LayoutTable.from_rows([layout])
    return float(
        evaluate(
            Case(model=MODEL, cluster=cluster, job=JOB, stack=profile, cal=load_calibration()), table
        ).step_time_s[0]
    )


def share(layout: ParallelLayout, microbatches: int) -> float:
    """Share of passes in pairs."""
    table = LayoutTable.from_rows([layout])
    return float(paired_share(table, np.array([microbatches]), PROFILE)[0])


@pytest.mark.parametrize("layout", [ALONE, PIPED])
def test_pairs_leave_the_first_and_the_last_passes_alone(layout: ParallelLayout) -> None:
    """What a rank runs before its first pair is V·P chunks in the mean, counted from the schedule itself."""
    P, V, M = layout.pp, layout.virtual_stages, 8 * layout.pp
    warm_up = [(P - rank - 1) * 2 + (V - 1) * P + 1 if P > 1 else 1 for rank in range(P)]
    assert share(layout, M) == pytest.approx(1 - sum(warm_up) / P / (M * V))
    assert share(layout, P) == 0


def test_other_layouts_do_not_pair() -> None:
    """Plain 1F1B, and experts that are not split."""
    assert share(replace(PIPED, schedule="1f1b", virtual_stages=1), 16) == 0
    assert share(replace(PIPED, ep=1), 16) == 0


@pytest.mark.parametrize("layout", [ALONE, PIPED])
def test_pairs_hide_the_exchange_and_hold_a_layer_more(layout: ParallelLayout) -> None:
    """Never more than all of it, as an ideal network beside compute would; DeepEP's holds the host instead."""
    plain, paired = (
        with_switches(profile, {"dispatcher": "hybridep"}) for profile in (stack("megatron-bridge"), PROFILE)
    )
    hidden = replace(plain, timing=replace(plain.timing, expert_overlap_share=1.0))
    assert step_s(hidden, layout) < step_s(paired, layout) < step_s(plain, layout)
    off, on = (
        memory_pieces(Workload(model=MODEL, job=JOB, stack=profile), layout) for profile in (plain, paired)
    )
    assert on.working_bytes - off.working_bytes == pytest.approx(on.layers[0].saved_bytes)


@pytest.mark.parametrize("engine", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(
    ("layout", "on"),
    [(ALONE, True), (PIPED, True), (replace(PIPED, schedule="1f1b", virtual_stages=1), False)],
)
def test_the_flag_is_written_where_it_is_priced(engine: str, layout: ParallelLayout, on: bool) -> None:
    """The export re-estimates to the plan's time and memory, with or without it."""
    plan = priced(replace(layout, recompute="none"), MODEL, stack=PROFILE.name, gpu="b200-sxm")
    text = export_plan(plan, engine).text
    assert (FLAG in text.replace("-", "_")) == on
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=32" in text) == on


def test_whole_layers_are_not_recomputed_beside_pairs() -> None:
    """The profile has no such policy, and the engine refuses it of a plan that has."""
    plan = priced(replace(ALONE, recompute="none"), MODEL, stack=PROFILE.name, gpu="b200-sxm")
    plan = replace(plan, layout=replace(plan.layout, recompute="full"))
    with pytest.raises(NoFeasiblePlanError, match="megatron-pairs-without-recompute"):
        export_plan(plan, "megatron")


def test_pairs_are_not_exported_beside_an_all_gather() -> None:
    """The engine asks for alltoall or flex; no switch is advised that it refuses."""
    plan = priced(replace(ALONE, recompute="none"), MODEL, stack=PROFILE.name, gpu="b200-sxm")
    request = replace(plan.request, switches={**plan.request.switches, "dispatcher": "allgather"})
    with pytest.raises(NoFeasiblePlanError, match="megatron-pairs-without-allgather"):
        export_plan(replace(plan, request=request), "megatron")


@pytest.mark.parametrize(
    ("line", "told", "wrong"),
    [
        ("--expert-model-parallel-size 8 --moe-token-dispatcher-type flex", True, ""),
        ("--moe-token-dispatcher-type flex", True, "--expert-model-parallel-size above 1"),
        (
            "--expert-model-parallel-size 8 --moe-token-dispatcher-type flex --pipeline-model-parallel-size 2",
            True, "virtual stages",
        ),
        (
            "--expert-model-parallel-size 8 --moe-token-dispatcher-type flex --recompute-granularity full",
            True, "no full recomputation",
        ),
        ("--expert-model-parallel-size 8", True, "alltoall or flex"),
    ],
)  # fmt: skip
def test_the_flag_is_read_with_what_it_asks_for(line: str, told: Any, wrong: str) -> None:
    """And Megatron-LM stops where it is not there."""
    contract = CONTRACTS["megatron"]
    usual = "--bf16 --num-experts 8"
    line = f"--{FLAG.replace('_', '-')} --delay-wgrad-compute {usual} {line}"
    words = words_of_line(contract, line.split())
    found = read(contract, words)
    assert found.fields.get("stack.pairs_expert_passes") is told
    said = [one.violation.message for one in found.refused if one.violation.rule == "expert-overlap"]
    assert [wrong in message for message in said] == ([True] if wrong else [])
    assert (found.wrong, found.unknown) == ((), ())
