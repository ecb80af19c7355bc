"""Adding things through the places that CONTRIBUTING names, and nowhere else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from costmodel.kernels.precisions import TRAINING, TrainingPrecision
from costmodel.layout import SCHEDULES
from costmodel.pipeline.schedules import RECORDS

ROOT = Path(__file__).parents[2]
PACKAGES = ("topology", "costmodel", "planner", "executor", "app")

TOY_SCHEDULE = """
    "toy": ScheduleRecord(
        order=one_forward_one_backward_order,
        chunks=3,
        held=(0, 1, 1, -2, -1),
        in_groups=True,
        engine_names={"torchtitan": "Toy"},
        run_names=("toyschedule",),
    ),
}


def column("""
"""Interleaving with three chunks on every rank."""

ASKED_OF_SCHEDULE = """
from dataclasses import replace

from costmodel.accuracy.run_layout import layout_of
from costmodel.layout import ParallelLayout
from costmodel.pipeline.simulator import StageSeconds, simulate
from executor.parallel.programs import orders
from planner.engines.torchtitan import parallelism
from planner.plan import PlanRequest
from planner.search.search import search
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from topology.builders import default_cluster

row = {"num_gpus": "4", "pp": "4", "num_layers": "24", "schedule": "Toy Schedule", "virtual_stages": "3"}
assert layout_of(row).schedule == "toy"
ones = (1.0,) * 12
events = simulate(ParallelLayout(pp=4, virtual_stages=3, schedule="toy"), 8, StageSeconds(
    forward_s=ones, input_s=ones, weight_s=ones)).events
for rank, order in enumerate(orders("toy", 4, 3, 8)):
    assert [tuple(action) for action in order] == [
        (event.kind, event.stage, event.microbatch) for event in events if event.rank == rank]
request = PlanRequest(
    model=replace(model("llama-3.1-8b"), num_layers=24), cluster=default_cluster("h100-sxm", 8).spec, stack="ideal",
    job=TrainingJob(sequence_length=8192, global_batch_size=64), pins={"pp": 4, "schedule": "toy"})
found = search(request)
assert (found.layout.schedule, found.layout.virtual_stages) == ("toy", 3)
print(parallelism(found)["pipeline_parallel_schedule"])
"""

TOY_PRECISION = """("nvfp4", "fp4"),
    ),
    "toy8": TrainingRecord(
        linear="fp8", peak="fp8", engine_words={"megatron": ("--toy",)}, run_names=("toy8",)
    ),
}"""
"""Eight bits under another name."""

ASKED_OF_PRECISION = """
from app.flags.shared import _PRECISION_HELP
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from planner.engines.megatron import arguments
from planner.plan import PlanRequest, from_json, to_json
from planner.search.search import search
from topology.builders import default_cluster

job = TrainingJob(sequence_length=8192, global_batch_size=64, precision="toy8")
cluster = default_cluster("h100-sxm", 8).spec
found = search(PlanRequest(model=model("llama-3.1-8b"), cluster=cluster, job=job))
assert from_json(to_json(found)) == found
print("or toy8" in _PRECISION_HELP, found.request.job.is_low_precision, arguments(found)[-2:])
"""


def edit(path: Path, old: str, new: str) -> None:
    """Replace one place of a file."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages to add things to."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    return tmp_path


def answer(tree: Path, asked: str) -> str:
    """What a program prints in the copy."""
    done = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr + done.stdout


def test_every_schedule_has_a_record() -> None:
    """Names and records are the same, in the same order."""
    assert tuple(RECORDS) == SCHEDULES


def test_every_training_precision_has_a_record() -> None:
    """Names and records are the same, in the same order."""
    assert tuple(TRAINING) == get_args(TrainingPrecision)


def test_a_schedule_is_added_in_three_places(tree: Path) -> None:
    """A toy schedule with a record, a name and a stack is planned, timed, run, exported and read from runs."""
    pytest.importorskip("torch")
    edit(tree / "costmodel/pipeline/schedules.py", "\n}\n\n\ndef column(", TOY_SCHEDULE)
    edit(tree / "costmodel/layout.py", '"dualpipev"]', '"dualpipev", "toy"]')
    ideal = '"dualpipev"]\nempty_end_chunks = true'
    edit(tree / "costmodel/data/stacks.toml", ideal, ideal.replace("]", ', "toy"]'))
    assert answer(tree, ASKED_OF_SCHEDULE) == "Toy\n"


def test_a_training_precision_is_added_in_one_place(tree: Path) -> None:
    """A toy precision with a name and a record is offered, read from plans, planned and exported."""
    edit(tree / "costmodel/kernels/precisions.py", '"nvfp4"]', '"nvfp4", "toy8"]')
    edit(tree / "costmodel/kernels/precisions.py", '("nvfp4", "fp4"),\n    ),\n}', TOY_PRECISION)
    assert answer(tree, ASKED_OF_PRECISION) == "True True ['--bf16', '--toy']\n"
