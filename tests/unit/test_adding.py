"""Adding things through the places that CONTRIBUTING names, and nowhere else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from costmodel.layout import SCHEDULES
from costmodel.pipeline.schedules import RECORDS

ROOT = Path(__file__).parents[2]
PACKAGES = ("topology", "costmodel", "planner", "executor", "app")

TOY = """
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

ASKED = """
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


def edit(path: Path, old: str, new: str) -> None:
    """Replace one place of a file."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_every_schedule_has_a_record() -> None:
    """Names and records are the same, in the same order."""
    assert tuple(RECORDS) == SCHEDULES


def test_a_schedule_is_added_in_three_places(tmp_path: Path) -> None:
    """A toy schedule with a record, a name and a stack is planned, timed, run, exported and read from runs."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    edit(tmp_path / "costmodel/pipeline/schedules.py", "\n}\n\n\ndef column(", TOY)
    edit(tmp_path / "costmodel/layout.py", '"dualpipev"]', '"dualpipev", "toy"]')
    edit(
        tmp_path / "costmodel/data/stacks.toml",
        '"dualpipev"]\nempty_end_chunks = true',
        '"dualpipev", "toy"]\nempty_end_chunks = true',
    )
    pytest.importorskip("torch")
    asked = subprocess.run(
        [sys.executable, "-c", ASKED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (asked.stderr, asked.stdout) == ("", "Toy\n")
