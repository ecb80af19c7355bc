"""Plans whose stages run on unlike nodes train here: own layers and recomputed layers of each stage."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist

from app.actions.planned_checks import check_fits
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from executor.parallel.planned_device import is_device
from executor.training.optimizer import OptimizerSettings
from executor.training.trainer import _local_ranks
from executor.validation.reference import ReferenceJob, outcome_difference, run_layout, run_reference
from executor.validation.report import RankMeasurement
from executor.validation.validate import gpu_names_of_stages, step_time_check
from planner.plan import Plan, PlanRequest, problem_of, to_json
from planner.rules.check import parse_pins
from planner.rules.verdict import require_room
from planner.search.pools.unlike import search_unlike
from planner.search.pools.unlike_plan import plan_unlike
from planner.search.verify import estimate_anew
from tests.counts import cases_of_run
from tests.executor.conftest import TINY, make_plan
from tests.executor.training.test_training import losses as losses_in
from tests.executor.training.test_training import run_here, settings_in
from tests.unit.topology.pools.test_kinds import pool
from topology.base.units import GIB

CAL = load_calibration()
SIX = replace(TINY, num_layers=6)
BATCH, LENGTH = 8, 16


def unlike() -> Plan:
    """Two stages of two replicas on a small node of each kind, split as no search of so small a model would."""
    spec = pool(("dgx-h100", 1), ("dgx-a100", 1))
    halves = tuple(replace(node, gpus_per_node=2, nics_per_node=2) for node in spec.nodes)
    request = PlanRequest(
        model=SIX,
        cluster=replace(spec, nodes=halves),
        job=TrainingJob(sequence_length=LENGTH, global_batch_size=BATCH),
        stack="meshplan",
        pins=parse_pins({"pp": 2, "dp": 2, "tp": 1, "cp": 1, "microbatch_size": 1}),
    )
    done = search_unlike(request, CAL, float("inf"))
    assert done is not None
    plan = plan_unlike(done)
    again = replace(plan.layout, recompute="full")
    own = replace(plan, layout=again, layers_of_stage=(4, 2), recompute_of_stage=(1, 2), origin=None)
    anew = estimate_anew(own, problem_of(request, CAL))
    unproven = make_plan(again).optimality
    return replace(anew, assumptions=anew.estimate.assumptions, optimality=unproven)


def losses(plan: Plan, folder: Path) -> list[float]:
    """Those of three steps on this machine's CPU."""
    folder.mkdir()
    (folder / "wanted.json").write_text(to_json(plan), encoding="utf-8")
    words = ["run", "wanted.json", "--run-dir", "run", "--device", "cpu", "--fp32", "--steps", "3"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "app", *words],
        cwd=folder, check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row)["loss"] for row in rows]


def test_plan_run_trains_it_as_one_process_would(tmp_path: Path) -> None:
    """Four ranks, whose stages have four and two layers and recompute one and two."""
    alone = make_plan(ParallelLayout(dp=1), spec=SIX, batch=BATCH, sequence=LENGTH)
    run_here(settings_in(tmp_path / "whole", steps=3, learning_rate=3e-4), alone)
    split = losses(unlike(), tmp_path / "split")
    assert len(split) == 3
    assert split == pytest.approx([*losses_in(tmp_path / "whole").values()], rel=1e-5)


UNEQUAL = [((4, 1, 1), (2, 0, 1)), ((1, 2, 3), (0, 2, 0)), ((1, 1, 4), (0, 0, 4))]


@pytest.mark.parametrize(("layers", "again"), cases_of_run(UNEQUAL, UNEQUAL[1:]))
def test_gradients_of_unequal_stages_are_those_of_one_process(
    layers: tuple[int, ...], again: tuple[int, ...]
) -> None:
    """Of every parameter, in fp32."""
    layout = ParallelLayout(pp=3, dp=2, zero_stage=1, recompute="full")
    case = ReferenceJob(spec=SIX, layout=layout, layers_of_stage=layers, recompute_of_stage=again)
    settings = OptimizerSettings(learning_rate=1e-2, warmup_steps=1, total_steps=10)
    found = outcome_difference(run_reference(case, settings), run_layout(case, settings))
    assert max(found.loss, found.gradient) < 1e-5, found.worst


def test_what_is_checked_of_a_stage_is_held_against_its_own_gpu() -> None:
    """Memory against the kind it runs on, seconds against that kind's; no single GPU anchors such a step."""
    plan = unlike()
    kinds = gpu_names_of_stages(plan)
    assert set(kinds) == {"h100-sxm", "a100-sxm-80gb"}
    assert require_room(plan) is plan
    of_a100 = kinds.index("a100-sxm-80gb")
    full = list(plan.estimate.memory_by_stage)
    full[of_a100] = replace(full[of_a100], buffers_bytes=79.9 * GIB)
    crowded = check_fits(replace(plan, estimate=replace(plan.estimate, memory_by_stage=tuple(full))))
    assert (crowded.verdict, "a100-sxm-80gb" in crowded.detail) == ("does not hold", True)
    measured = [_measured(stage) for stage in range(2)]
    assert "of computation alone" in step_time_check(plan, [measured[of_a100]]).detail
    assert "no rank ran on such a GPU here" in step_time_check(plan, [measured[1 - of_a100]]).detail
    assert not is_device(plan, "NVIDIA A100-SXM4-80GB", 80 * GIB)


def _measured(stage: int) -> RankMeasurement:
    """A rank of a stage on an A100."""
    gpu, memory = "NVIDIA A100-SXM4-80GB", 80.0 * GIB
    times = {"forward_s": 1.0, "backward_s": 1.0, "peak_bytes": 1.0, "estimated_bytes": 1.0}
    return RankMeasurement(stage=stage, gpu=gpu, gpu_memory_bytes=memory, **times)


@pytest.mark.parametrize(
    ("rank", "local", "here", "expected"),
    [(0, 0, 2, [0, 1, -1, -1, -1]), (3, 1, 3, [-1, -1, 0, 1, 2]), (4, 2, 3, [-1, -1, 0, 1, 2])],
)
def test_ranks_know_who_shares_their_node_where_nodes_are_unlike(
    rank: int, local: int, here: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks on the first node and three on the second, as torchrun tells each."""
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
    assert _local_ranks([0, 1, 2, 3, 4]) == expected
