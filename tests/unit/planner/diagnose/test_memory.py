"""A recorded memory by the parts of a plan: a snapshot written of a planned step gives the plan's bytes back."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from pathlib import Path

import pytest

from app.analysis.diagnose import DiagnoseQuestion, diagnosis_of
from app.reports.answer import render
from app.reports.diagnose import diagnose_answer
from costmodel.layout import ParallelLayout
from costmodel.memory.stage import MemoryBreakdown
from planner.diagnose.beside import SideEvidence
from planner.diagnose.job_files import prediction_of
from planner.diagnose.memory import memory_budget
from planner.diagnose.prediction import Prediction
from planner.questions.flags import Flags
from planner.traces.memory_snapshots import snapshot_memory
from tests.executor.conftest import _estimate
from tests.unit.planner.traces.test_memory_snapshots import Allocator
from topology.base.units import GIB, MIB

HELD = {
    "weights": 70 * MIB,
    "gradients": 60 * MIB,
    "optimizer states": 210 * MIB,
    "buffers": 30 * MIB,
    "activations": 120 * MIB,
    "logits": 90 * MIB,
}
FRAMES = {
    "weights": ("/x/torch/nn/modules/module.py", "_apply"),
    "gradients": ("/x/torch/autograd/graph.py", "_engine_run_backward"),
    "optimizer states": ("/x/torch/optim/adamw.py", "_init_group"),
    "buffers": ("/x/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather"),
    "activations": ("/x/torch/nn/modules/linear.py", "forward"),
    "logits": ("/x/torch/nn/functional.py", "cross_entropy"),
}
"""Where torch 2.13 allocates them: the innermost frames of a snapshot, with their callers below."""


def snapshot() -> dict[str, object]:
    """A step's memory, and a block that was given back before: the allocator holds it on."""
    allocator = Allocator(room=8 * GIB)
    allocator.alloc(500 * MIB, "activations")
    allocator.free(next(iter(allocator.living)))
    for size in HELD.values():
        allocator.alloc(size, "activations")
    document = allocator.snapshot()
    sizes = {size: category for category, size in HELD.items()}
    callers = {"filename": "/x/train.py", "line": 1, "name": "main"}
    rows = [event for trace in document["device_traces"] for event in trace]
    rows += [block for segment in document["segments"] for block in segment["blocks"]]
    for row in rows:
        if row["size"] in sizes and row.get("frames"):
            file, name = FRAMES[sizes[row["size"]]]
            row["frames"] = [{"filename": file, "line": 1, "name": name}, callers]
    return document


def test_each_category_is_known_by_what_allocated_it() -> None:
    (memory,) = snapshot_memory(snapshot(), "snapshot.pickle")
    assert dict(memory.at_peak) == HELD


def test_parts_sum_to_what_the_allocator_held() -> None:
    (memory,) = snapshot_memory(snapshot(), "snapshot.pickle")
    rows = {row.part: row for row in memory_budget(memory)}
    assert sum(row.recorded_bytes for row in rows.values()) == memory.peak_reserved_bytes
    assert rows["activations"].recorded_bytes == HELD["activations"] + HELD["logits"]
    assert rows["fragmentation"].recorded_bytes == 10 * MIB  # of 500 MiB what no later block fills
    assert rows["activations"].of == "activations, logits"
    assert all(row.predicted_bytes is None for row in rows.values())


@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (3, 0), (4, 1), (7, 1), (None, 0)])
def test_the_plan_is_that_of_the_ranks_stage(rank: int | None, stage: int) -> None:
    parts = {field.name: 0.0 for field in fields(MemoryBreakdown)}
    stages = tuple(MemoryBreakdown(**parts | {"weights_bytes": size}) for size in (1.0 * GIB, 2.0 * GIB))
    layout = ParallelLayout(pp=2, dp=4)
    estimate = replace(_estimate(2), memory_by_stage=stages)
    (memory,) = snapshot_memory(snapshot(), "snapshot.pickle")
    rows = memory_budget(
        replace(memory, rank=rank), Prediction(source="plan.json", estimate=estimate, layout=layout)
    )
    planned = {row.part: row.predicted_bytes for row in rows}
    assert planned["weights"] == stages[stage].weights_bytes
    assert planned["fragmentation"] is None


SCRIPT = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
 --global-batch-size 64 --tensor-model-parallel-size 8 --bf16 --swiglu --ffn-hidden-size 14336 \\
 --group-query-attention --num-query-groups 8 --vocab-size 128256
"""


def test_a_snapshot_stands_beside_the_script(tmp_path: Path) -> None:
    """Without a trace too."""
    (tmp_path / "snapshot_rank0.pickle").write_bytes(pickle.dumps(snapshot()))
    (tmp_path / "train.sh").write_text(SCRIPT)
    files = (tmp_path / "snapshot_rank0.pickle", tmp_path / "train.sh")
    side, code = diagnosis_of(DiagnoseQuestion(files=files), Flags(gpu="h100-sxm"))
    assert isinstance(side, SideEvidence)
    (rows,) = side.memory_budgets
    planned = {row.part: row.predicted_bytes or 0.0 for row in rows}
    prediction, _ = prediction_of(files[1:], Flags(gpu="h100-sxm"))
    assert prediction is not None
    assert planned["weights"] == prediction.estimate.memory_by_stage[0].weights_bytes > GIB
    assert "planned" in render(diagnose_answer(side, code), "table")
