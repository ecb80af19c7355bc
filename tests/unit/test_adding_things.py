"""Each kind of thing comes in through the places that CONTRIBUTING names, and no other."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from costmodel.kernels.precisions import TRAINING, TrainingPrecision
from costmodel.layout import SCHEDULES
from costmodel.models.attention import AttentionName
from costmodel.models.catalog import models
from costmodel.models.feed_forward import FeedForwardName
from costmodel.models.recurrence import RECURRENCES, RecurrenceName
from costmodel.models.spec import layer_runs
from costmodel.ops.feed_forward import FEED_FORWARDS
from costmodel.ops.layer import ATTENTIONS
from costmodel.parallel.axes import AXES, LAYER_AXES, PARTS, RANK_AXES, AxisName
from costmodel.pipeline.schedules import RECORDS
from costmodel.training.op_times import PART_TRANSFERS, TransferTimes

ROOT = Path(__file__).parents[2]
PACKAGES = ("topology", "costmodel", "planner", "executor", "app", "meshplan")
QUESTION = ("--model", "8b", "--gpus", "8", "--gpu", "toy", "--stack", "toy-engine")

GPU = """
[[gpu]]
name = "toy-900"
aliases = ["toy"]
architecture = "toy"
peak_tflop_per_s = { fp32 = 50, bf16 = 900, fp16 = 900 }
memory_gib = 120
memory_bandwidth_gb_per_s = 4000
tdp_w = 700
scaleup_gb_per_s = 450
host_gb_per_s = 64
machine = "toy-node"
source = "a toy"
as_of = "2026-11-22"
"""
MACHINE = """
[[machine]]
name = "toy-node"
provider = "reference"
gpu = "toy-900"
gpus_per_node = 8
scaleup = "nvswitch"
nics_per_node = 8
nic_gbit_per_s = 400
fabric = "infiniband"
rail_optimized = true
source = "a toy"
as_of = "2026-11-22"
"""
GENERATION = """
[[generation]]
name = "toy"
asynchronous_matmul = false
source = "a toy"
as_of = "2026-11-22"
"""
STACK = """
[toy-engine]
base = "megatron-core"
description = "Megatron-Core without a pipeline of its own"

[toy-engine.supports]
schedules = ["1f1b"]

[toy-engine.origin]
frameworks = ["Toy"]
source = "a toy"
as_of = "2026-11-22"
"""
RULE = """
def _narrow_broken(_: Setting, t: LayoutTable) -> Mask:
    return np.asarray(t.tp > 2, dtype=bool)


def _narrow(_: Setting, x: ParallelLayout) -> Breach:
    return Breach(
        message=f"tp = {x.tp} > 2", have=x.tp, need=2, unit="ranks", hint="use tp=2"
    )


"""
TARGET = '''"""A plan in five words."""

from planner.launch.machines import Exported
from planner.plan import Plan


def export(plan: Plan) -> Exported:
    """Write a plan for nobody."""
    return Exported(target="toy", file_name="toy.txt", text=f"tensor parallel {plan.layout.tp} on toys\\n")
'''


TOY_SCHEDULE = """
    "toy": ScheduleRecord(
        order=one_forward_one_backward_order,
        chunks=3,
        in_groups=True,
        engine_names={"torchtitan": "Toy"},
        run_names=("toyschedule",),
    ),
}


@functools.cache
def _names("""
"""Interleaving with three chunks on every rank."""

ASKED_OF_SCHEDULE = """
from dataclasses import replace

from costmodel.runs.layout import layout_of
from costmodel.layout import ParallelLayout
from costmodel.pipeline.simulator import StageSeconds, simulate_step
from executor.parallel.programs import orders
from planner.engines.contract import write
from planner.engines.fields import facts_of
from planner.engines.torchtitan.contract import TORCHTITAN
from planner.plan import PlanRequest
from planner.search.search import search
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from topology.builders import default_cluster

row = {"num_gpus": "4", "pp": "4", "num_layers": "24", "schedule": "Toy Schedule", "virtual_stages": "3"}
assert layout_of(row).schedule == "toy"
ones = (1.0,) * 12
events = simulate_step(ParallelLayout(pp=4, virtual_stages=3, schedule="toy"), 8, StageSeconds(
    forward_s=ones, input_s=ones, weight_s=ones)).events
for rank, order in enumerate(orders("toy", 4, 3, 8)):
    assert [tuple(action) for action in order] == [
        (event.kind, event.stage, event.microbatch) for event in events if event.rank == rank]
request = PlanRequest(
    model=replace(model("llama-3.1-8b"), num_layers=24), cluster=default_cluster("h100-sxm", 8).spec, stack="ideal",
    job=TrainingJob(sequence_length=8192, global_batch_size=64), pins={"pp": 4, "schedule": "toy"})
found = search(request)
assert (found.layout.schedule, found.layout.virtual_stages) == ("toy", 3)
print(write(TORCHTITAN, facts_of(found))["parallelism.pipeline_parallel_schedule"])
"""

LOOPED_BFS_ORDER = """

def looped_bfs_order(ranks: int, chunks: int, microbatches: int, rank: int) -> list[Pass]:
    stages = [chunk * ranks + rank for chunk in range(chunks)]
    forwards: list[Pass] = [("F", stage, m) for stage in stages for m in range(microbatches)]
    return forwards + [("BW", stage, m) for stage in reversed(stages) for m in reversed(range(microbatches))]
"""
"""All forwards of a chunk before those of the next, then all backwards: torch's ScheduleLoopedBFS."""

LOOPED_BFS = """
    "looped-bfs": ScheduleRecord(
        order=looped_bfs_order,
        chunks=None,
        engine_names={"torchtitan": "LoopedBFS"},
        run_names=("loopedbfs",),
    ),
}


@functools.cache
def _names("""

ASKED_OF_LOOPED_BFS = """
import itertools

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import SCHEDULES, ParallelLayout
from costmodel.models.catalog import model
from costmodel.pipeline.in_flight import in_flight
from costmodel.pipeline.schedules import RECORDS
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from topology.builders import default_cluster

code, changes = SCHEDULES.index("looped-bfs"), {"F": 1, "BW": -1}
for P, V, M in itertools.product((1, 2, 4), (2, 3), (1, 4, 8)):
    for rank in range(P):
        order = RECORDS["looped-bfs"].order(P, V, M, rank)
        held = max(itertools.accumulate(changes[kind] for kind, _, _ in order)) / V
        assert float(in_flight(code, P, V, M, rank)) == held == M

def activations(schedule, chunks, batch=64):
    layout = ParallelLayout(pp=4, dp=2, virtual_stages=chunks, schedule=schedule)
    job = TrainingJob(sequence_length=4096, global_batch_size=batch)
    case = Case(model=model("llama-3.1-8b"), cluster=default_cluster("h100-sxm", 8), job=job, stack=stack("ideal"),
                cal=load_calibration())
    found = estimate(case, layout)
    return [stage.activations_bytes for stage in found.memory_by_stage]

pairs = list(zip(activations("looped-bfs", 2), activations("gpipe", 1), activations("looped-bfs", 2, 128), strict=True))
assert all(abs(looped / plain - 1) < 0.05 for looped, plain, _ in pairs[1:-1]), pairs
assert all(1.95 < twice / looped < 2.05 for looped, _, twice in pairs), pairs
print("LoopedBFS")
"""

TOY_PRECISION = """("nvfp4", "fp4"),
    ),
    "toy8": TrainingRecord(
        linear="fp8", peak="fp8", engine_words={"megatron": ("--fp8-format", "toy")}, run_names=("toy8",)
    ),
}"""
"""Eight bits under another name."""

ASKED_OF_PRECISION = """
from app.flags.shared import _PRECISION_HELP
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from planner.launch.targets import export_plan
from planner.plan import PlanRequest, from_json, to_json
from planner.search.search import search
from topology.builders import default_cluster

job = TrainingJob(sequence_length=8192, global_batch_size=64, precision="toy8")
cluster = default_cluster("h100-sxm", 8).spec
found = search(PlanRequest(model=model("llama-3.1-8b"), cluster=cluster, job=job, engine="megatron"))
assert from_json(to_json(found)) == found
print("or toy8" in _PRECISION_HELP, found.request.job.is_low_precision, [line.strip() for line in export_plan(found, "megatron").text.splitlines() if "fp8" in line])
"""


TOY_AXIS = """        ),
        Axis(
            name="toy", label="Toy", splits="the toys of a layer",
            traffic=Traffic.RING, part="ep", communication="expert all-to-all",
            members="toy", group="tp", cuts_layer=True, offered="tensor_parallel",
        ),
    )
}  # fmt: skip
"""
"""An axis on the ranks of a stage, for stacks that have tensor parallelism."""

ASKED_OF_AXIS = """
from dataclasses import replace

import numpy as np

from app.reports.layout_words import degrees_text
from app.reports.topology import axes_of, parse_layout
from costmodel.runs.layout import layout_of
from costmodel.layout import LayoutTable, ParallelLayout, layout_record, layout_words, num_axes
from costmodel.ops.shards import unique_shards
from costmodel.stack import stack
from planner.launch.targets import export_plan
from planner.plan import PlanRequest, Problem, from_json, to_json
from planner.rules.check import check
from costmodel.case import Case
from costmodel.kernels.tables import load_calibration
from planner.search.search import search
from costmodel.job import TrainingJob
from costmodel.models.catalog import model
from topology.base.errors import InputError
from topology.builders import default_cluster

two, cluster = ParallelLayout(dp=8, toy=2), default_cluster("h100-sxm", 8)
job, llama = TrainingJob(sequence_length=8192, global_batch_size=64), model("llama-3.1-8b")
table = LayoutTable.from_rows([ParallelLayout(dp=8), two])
assert (layout_words(two), degrees_text(two), num_axes(two)) == ("dp 8 · toy 2", "dp 8 · toy 2", 2)
assert table.layout(1) == two and layout_record(two)["toy"] == 2
assert unique_shards(table, job)[0].toy.tolist() == [1.0, 2.0]
assert layout_of({"num_gpus": "8", "toy": "2", "num_layers": "32"}).toy == 2
h = cluster.hierarchy
assert [axis.axis for axis in axes_of(h, parse_layout("dp=8,toy=2", None, h))] == ["dp", "toy"]
def asked(name):
    return Problem(case=Case(model=llama, cluster=cluster, job=job, stack=stack(name), cal=load_calibration()))
broken = check(asked("pytorch-fsdp1"), two)
assert "toy-offered" in [violation.rule for violation in broken]
assert check(asked("megatron-core"), replace(two, toy=0))[0].rule == "degrees"
found = {}
for pins in ({}, {"toy": 2, "tp": 8}):
    plan = search(PlanRequest(model=llama, cluster=cluster.spec, job=job, pins=pins))
    assert from_json(to_json(plan)) == plan
    found[plan.layout.toy] = plan
pins = {"toy": 2, "tp": 8, "sequence_parallel": False}
whole = search(PlanRequest(model=llama, cluster=cluster.spec, job=job, pins=pins))
refused = []
for name in ("megatron", "torchtitan", "deepspeed", "accelerate"):
    tensors = name in ("megatron", "torchtitan")
    try:
        export_plan(found[2] if tensors else whole, name)
    except InputError as error:
        refused.append(str(error).count("toy = 2"))
print(sorted(found), refused)
"""


def insert(path: Path, before: str, text: str) -> None:
    """Put a text before another that stands once in a file."""
    whole = path.read_text(encoding="utf-8")
    assert whole.count(before) == 1
    path.write_text(whole.replace(before, text + before), encoding="utf-8")


def edit(path: Path, old: str, new: str) -> None:
    """Replace one place of a file."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def copied(root: Path, packages: tuple[str, ...]) -> Path:
    """A copy of the house."""
    for package in packages:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def append(path: Path, text: str) -> None:
    """Put a text at the end of a file."""
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the house with one more of each."""
    root = copied(tmp_path_factory.mktemp("house"), PACKAGES)
    append(root / "topology" / "data" / "gpus.toml", GPU)
    append(root / "topology" / "data" / "machines.toml", MACHINE)
    append(root / "topology" / "data" / "generations.toml", GENERATION)
    append(root / "costmodel" / "data" / "stacks.toml", STACK)
    rules = root / "planner" / "rules" / "axes.py"
    insert(rules, "AXIS_RULES: tuple[PlanLaw, ...] = (\n", RULE)
    entry = (
        '    Law(name="toy-narrow", reads=("tp",), broken=_narrow_broken, says=_narrow, ground="engine"),\n'
    )
    insert(rules, "    *(_offered(axis)", entry)
    (root / "planner" / "launch" / "toy.py").write_text(TARGET, encoding="utf-8")
    targets = root / "planner" / "launch" / "targets.py"
    insert(targets, '    "slurm": export_slurm,\n', '    "toy": toy.export,\n')
    insert(targets, "from planner.launch.machines import", "from planner.launch import toy\n")
    return root


def ask(house: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask the command line of that house."""
    environment = {**os.environ, "PYTHONPATH": str(house), "NO_COLOR": "1", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=house,
        env=environment,
    )


@pytest.fixture(scope="module")
def answer(house: Path) -> Path:
    """What it plans on the toy, in a file."""
    done = ask(house, *QUESTION, "--json", "--output", "plan.json")
    assert done.returncode == 0, done.stderr
    return house / "plan.json"


def test_a_gpu_is_listed_found_by_its_alias_and_planned_for(house: Path, answer: Path) -> None:
    """Its entry, its machine and its generation are data."""
    plan = json.loads(answer.read_text(encoding="utf-8"))
    assert plan["request"]["cluster"]["nodes"][0]["gpu"] == "toy-900"
    assert "toy-900" in ask(house, "gpus").stdout


def test_a_stack_is_found_and_limits_the_search(house: Path, answer: Path) -> None:
    """Its profile says which schedules it has."""
    plan = json.loads(answer.read_text(encoding="utf-8"))
    assert (plan["request"]["stack"], plan["layout"]["schedule"]) == ("toy-engine", "1f1b")
    pins = ("layout.pp=2", "layout.dp=4", "layout.schedule=interleaved", "layout.virtual_stages=2")
    refused = ask(house, "estimate", *QUESTION, *(word for pin in pins for word in ("--set", pin)))
    assert "schedule = interleaved, but toy-engine has only 1f1b" in refused.stderr


def test_a_rule_prunes_the_search_and_explains_a_layout(house: Path, answer: Path) -> None:
    """Written once, over columns."""
    plan = json.loads(answer.read_text(encoding="utf-8"))
    assert plan["optimality"]["pruned"]["toy-narrow"] > 0
    assert plan["layout"]["tp"] <= 2
    refused = ask(house, "estimate", *QUESTION, "--set", "layout.tp=4", "--set", "layout.dp=2")
    assert (refused.returncode, "tp = 4 > 2" in refused.stderr) == (1, True)


def test_an_export_target_is_offered_and_writes(house: Path, answer: Path) -> None:
    """A function and a line."""
    plan = json.loads(answer.read_text(encoding="utf-8"))
    assert (
        ask(house, "export", "plan.json", "--to", "toy").stdout
        == f"tensor parallel {plan['layout']['tp']} on toys\n"
    )
    assert "toy" in ask(house, "export", "--help").stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the packages, the executor's too, to add things to."""
    return copied(tmp_path, PACKAGES)


def printed(tree: Path, asked: str) -> str:
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
    edit(tree / "costmodel/pipeline/schedules.py", "\n}\n\n\n@functools.cache\ndef _names(", TOY_SCHEDULE)
    edit(tree / "costmodel/layout.py", '"v-half"]', '"v-half", "toy"]')
    ideal = '"v-half"]\nempty_end_chunks = true'
    edit(tree / "costmodel/data/stacks.toml", ideal, ideal.replace("]", ', "toy"]'))
    assert printed(tree, ASKED_OF_SCHEDULE) == "Toy\n"


def test_a_schedule_that_holds_every_chunk_of_every_microbatch_is_added(tree: Path) -> None:
    """LoopedBFS of torchtitan: its order, its record and its name; its memory is M·V chunks on every rank."""
    orders = tree / "costmodel/pipeline/orders.py"
    orders.write_text(orders.read_text(encoding="utf-8") + LOOPED_BFS_ORDER, encoding="utf-8")
    schedules = tree / "costmodel/pipeline/schedules.py"
    edit(schedules, "    gpipe_order,\n", "    gpipe_order,\n    looped_bfs_order,\n")
    edit(schedules, "\n}\n\n\n@functools.cache\ndef _names(", LOOPED_BFS)
    edit(tree / "costmodel/layout.py", '"v-half"]', '"v-half", "looped-bfs"]')
    ideal = '"v-half"]\nempty_end_chunks = true'
    edit(tree / "costmodel/data/stacks.toml", ideal, ideal.replace("]", ', "looped-bfs"]'))
    assert printed(tree, ASKED_OF_LOOPED_BFS) == "LoopedBFS\n"


def test_a_training_precision_is_added_in_one_place(tree: Path) -> None:
    """A toy precision with a name and a record is offered, read from plans, planned and exported."""
    edit(tree / "costmodel/kernels/precisions.py", '"nvfp4"]', '"nvfp4", "toy8"]')
    edit(tree / "costmodel/kernels/precisions.py", '("nvfp4", "fp4"),\n    ),\n}', TOY_PRECISION)
    assert printed(tree, ASKED_OF_PRECISION) == "True True ['--fp8-format toy']\n"


def test_an_axis_is_added_in_three_places(tree: Path) -> None:
    """A toy axis with a record, a degree and a shard's size is told, judged, planned, pinned, and not exported."""
    edit(tree / "costmodel/parallel/axes.py", "        ),\n    )\n}  # fmt: skip\n", TOY_AXIS)
    edit(
        tree / "costmodel/layout.py", "    expert_tp: int = 1\n", "    expert_tp: int = 1\n    toy: int = 1\n"
    )
    column = "    expert_tp: npt.NDArray[np.int64]\n"
    edit(tree / "costmodel/layout.py", column, column + column.replace("expert_tp", "toy"))
    size = "    expert_tp: Quantity = 1\n"
    edit(tree / "costmodel/ops/op.py", size, size + size.replace("expert_tp", "toy"))
    assert printed(tree, ASKED_OF_AXIS) == "[1, 2] [1, 1, 1, 1]\n"


def test_the_sidebar_offers_every_axis() -> None:
    """Its words and its degrees come from the record."""
    pytest.importorskip("streamlit")
    axes = importlib.import_module("app.pages.question.axes")
    assert [axes.CHOICES[name][:3] for name in AXES] == [["auto", "1", "2"]] * len(AXES)
    assert axes.LABELS["expert_tp"] == "Expert tensor (expert_tp)"


def test_every_kind_of_attention_and_feed_forward_has_ops() -> None:
    """Kinds of the records, of their ops and of the catalogued models are the same."""
    assert set(ATTENTIONS) == set(get_args(AttentionName)) == {m.attention.name for m in models().values()}
    blocks = {run.kind.mlp for m in models().values() for run in layer_runs(m)}
    assert set(FEED_FORWARDS) == set(get_args(FeedForwardName)) == blocks - {"none"}


def test_every_kind_of_recurrence_has_a_shape_and_a_scan() -> None:
    """Kinds of the record, of what it costs and of the catalogued models are the same."""
    catalogued = {m.recurrence.kind for m in models().values() if m.recurrence}
    assert set(RECURRENCES) == set(get_args(RecurrenceName)) == catalogued


def test_every_collective_of_a_layer_shows_in_one_part_of_a_step() -> None:
    """The totals of each part together are all totals, each once; what runs again shows as recomputation."""
    totals = [name for names in PART_TRANSFERS.values() for name in names]
    every = [field.name for field in fields(TransferTimes) if not field.name.endswith("_repeated_s")]
    assert sorted(totals) == sorted(every)
    assert set(PART_TRANSFERS) == {part for part, axis in PARTS.items() if axis.cuts_layer}


def test_names_of_axes_that_ops_may_use_are_those_of_the_records() -> None:
    """The type that a collective's axis has lists the records."""
    assert get_args(AxisName) == tuple(AXES)
    assert set(RANK_AXES) | set(LAYER_AXES) <= set(AXES)
