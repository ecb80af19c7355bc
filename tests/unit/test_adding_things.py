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
from planner.rules.shapes import SHAPE_RULES

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
SWITCH = """
[toy_masks]
title = "toy"
changes = ["time", "memory"]
columns = ["toy_masks"]
what = "whether a toy stores the masks of dropout"
source = "a toy"
as_of = "2026-11-27"

[toy_masks.values]
off = { sets = { dropout = false }, cells = ["never"] }
on = { sets = { dropout = true }, cells = ["always"] }
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

from costmodel.runs.layout import layout_of_row
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
assert layout_of_row(row).schedule == "toy"
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

TOY_ATTENTION = """@dataclass(frozen=True, slots=True, kw_only=True)
class ToyAttention(GroupedAttention):
    name: ClassVar[AttentionName] = "toy"
    named: ClassVar[str] = "toy attention"
    title: ClassVar[str] = "toy attention"
    mark: ClassVar[str] = "toy_groups"
    counts: ClassVar[tuple[str, ...]] = ("toy_groups",)
    is_measured: ClassVar[bool] = False
    engines: ClassVar[Mapping[str, EngineWords]] = {
        "megatron": EngineWords(flag="--toy-attention", sizes={"--toy-groups": ("toy_groups", 1)})
    }

    groups: int

    @classmethod
    def of(cls, model: Any) -> ToyAttention:
        grouped = GroupedAttention.of(model)
        sizes = {field.name: getattr(grouped, field.name) for field in fields(grouped)}
        return cls(**sizes, groups=model.toy_groups)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        groups = Cut(law="attention-heads", axis="tp", field="toy_groups", size=self.groups)
        return (_query_heads(self.num_attention_heads), groups)

    @property
    def whole_heads(self) -> int:
        return self.groups

    @property
    def parameters(self) -> int:
        return self.hidden_size * self.head_dim * (2 * self.num_attention_heads + self.groups)

    def cached_numbers(self, ways: int) -> float:
        return max(self.groups / ways, 1) * self.head_dim


def _query_heads("""
"""Keys that are values, too, one for every group of heads."""

TOY_ATTENTION_OPS = """
from costmodel.case import Workload
from costmodel.models.spec import LayerKind
from costmodel.ops.mixers.attention import attended_pairs, linear_dtype
from costmodel.ops.op import (
    HALF_BYTES, Op, OpKind, ShardShape, communicate, enter_tensor_parallel, gemm, leave_tensor_parallel,
)


def toy_attention_ops(work: Workload, kind: LayerKind, shard: ShardShape) -> tuple[Op, ...]:
    model, attention, dtype = work.model, work.model.attention, linear_dtype(work.job)
    T, H, d, heads = shard.tokens, model.hidden_size, model.head_dim, model.num_attention_heads / shard.tp
    keys = HALF_BYTES * T * attention.cached_numbers(1) / shard.tp
    pairs = shard.microbatch_size * attended_pairs(shard.sequence_length) / shard.cp
    kept = HALF_BYTES * T * heads * d + keys
    width = (heads + attention.groups / shard.tp) * d
    return (
        *enter_tensor_parallel("attention", shard, H),
        gemm("toy_input", m=T, n=width, k=H, dtype=dtype, saved_elements=shard.sharded_tokens * H),
        communicate("toy_gather", "all_gather", "cp", keys * shard.cp * (shard.cp > 1)),
        Op(name="toy_core", kind=OpKind.SCAN, flop=4 * pairs * heads * d, bytes=2 * kept, saved_bytes=kept,
           saved_bytes_selective=kept),
        gemm("toy_output", m=T, n=H, k=heads * d, dtype=dtype, saved_elements=T * heads * d),
        *leave_tensor_parallel("attention", shard, H),
    )
"""

ASKED_OF_ATTENTION = """
from dataclasses import replace

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.hf.config import model_of_config
from costmodel.models.kinds import layer_kinds
from costmodel.models.parameters import layer_parameters
from costmodel.models.spec import layer_runs
from costmodel.ops.layer import layer_ops
from costmodel.ops.op import ShardShape
from costmodel.serving.deployment import Deployment, ServingLayout, kv_token_bytes_per_layer
from costmodel.serving.engine import serving_stack
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from executor.model.layer_limits import check_layers
from planner.engines.contract import read, write
from planner.engines.contracts import CONTRACTS
from planner.engines.fields import facts_of
from planner.launch.targets import export_plan
from planner.plan import PlanRequest, Problem, from_json, to_json
from planner.rules.check import check
from planner.search.search import search
from topology.base.errors import InputError
from topology.builders import default_cluster

toy = model_of_config({
    "model_type": "toy", "num_hidden_layers": 4, "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 16, "vocab_size": 32000, "max_position_embeddings": 8192, "toy_groups": 4,
}, name="toy-1b")
kind, job = layer_runs(toy)[0].kind, TrainingJob(sequence_length=4096, global_batch_size=64)
ops = layer_ops(Workload(model=toy, job=job, stack=stack("ideal")), kind, ShardShape(sequence_length=4096))
assert sum(op.parameters for op in ops) == layer_parameters(toy, kind)
assert layer_kinds(toy) == "4 × toy attention + feed-forward"

cluster, cal = default_cluster("h100-sxm", 8), load_calibration()
case = Case(model=toy, cluster=cluster, job=job, stack=stack("megatron-core"), cal=cal)
wide = check(Problem(case=case), ParallelLayout(tp=8, sequence_parallel=True))
assert [v.message for v in wide if v.rule == "attention-heads"] == ["toy_groups % tp = 4 % 8 = 4, must be 0"]
times = [estimate(case, ParallelLayout(dp=4, **axis)).time for axis in ({"cp": 2}, {"tp": 2})]
assert times[0].cp_s > 0 == times[1].cp_s
plan = search(PlanRequest(model=toy, cluster=cluster.spec, job=job, engine="megatron"))
assert from_json(to_json(plan)) == plan
deployment = Deployment(model=toy, hierarchy=cluster.hierarchy, layout=ServingLayout(tp=2), stack=serving_stack("vllm"))
assert kv_token_bytes_per_layer(deployment) == 2 * 2 * toy.head_dim

words = export_plan(plan, "megatron").text.replace("=", " ").split()
megatron = CONTRACTS["megatron"]
assert read(megatron, write(megatron, facts_of(plan))).fields["model.toy_groups"] == 4
refusals = []
for attempt in (
    lambda: export_plan(replace(plan, request=replace(plan.request, engine="any", stack="torchtitan")), "torchtitan"),
    lambda: check_layers(toy),
):
    try:
        attempt()
    except InputError as error:
        refusals.append("toy attention" in str(error))
print(words[words.index("--toy-attention"):][:3:2], words[words.index("--toy-groups") + 1], refusals)
"""

TOY_FEED_FORWARD = """@dataclass(frozen=True, slots=True, kw_only=True)
class ToyFeedForward(DenseFeedForward):
    name: ClassVar[FeedForwardName] = "toy"
    named: ClassVar[str] = "a toy feed-forward"
    title: ClassVar[str] = "toy feed-forward"
    counts: ClassVar[tuple[str, ...]] = ("toy_rank",)
    engines: ClassVar[Mapping[str, EngineWords]] = {}

    rank: int

    @classmethod
    def describes(cls, model: Any, block: BlockName) -> bool:
        return block == "dense" and model.toy_rank > 0

    @classmethod
    def of(cls, model: Any) -> ToyFeedForward:
        return cls(matrices=_matrices_of(model), width=model.intermediate_size, rank=model.toy_rank)

    @property
    def common_parameters(self) -> int:
        return 2 * self.rank * (self.matrices.hidden_size + self.width)

    @property
    def unserved(self) -> str:
        return "no decode of toys was measured"


def _matrices_of("""
"""Both matrices of low rank."""

TOY_FEED_FORWARD_OPS = """def toy_ops(work: Workload, shard: ShardShape) -> tuple[Op, ...]:
    model, dtype = work.model, linear_dtype(work.job)
    T, H, F, r = shard.tokens, model.hidden_size, model.intermediate_size / shard.tp, model.toy_rank
    return (
        *enter_tensor_parallel("mlp", shard, H),
        gemm("toy_in", m=T, n=r, k=H, dtype=dtype, saved_elements=shard.sharded_tokens * H),
        gemm("toy_up", m=T, n=F, k=r, dtype=dtype, saved_elements=T * r),
        _activation(work, "toy_activation", T, F),
        gemm("toy_down", m=T, n=r, k=F, dtype=dtype, saved_elements=T * F),
        gemm("toy_out", m=T, n=H, k=r, dtype=dtype, saved_elements=T * r),
        *leave_tensor_parallel("mlp", shard, H),
    )


FEED_FORWARDS: Mapping["""

ASKED_OF_FEED_FORWARD = """
from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.hf.config import model_of_config
from costmodel.models.kinds import layer_kinds
from costmodel.models.parameters import layer_parameters
from costmodel.models.spec import layer_runs
from costmodel.ops.layer import layer_ops
from costmodel.ops.op import ShardShape
from costmodel.serving.deployment import Deployment, ServingLayout
from costmodel.serving.engine import serving_stack
from costmodel.stack import stack
from dataclasses import replace
from planner.plan import PlanRequest, Problem
from planner.rules.check import check
from planner.search.search import search
from topology.base.errors import InputError
from topology.builders import default_cluster

toy = model_of_config({
    "model_type": "toy", "num_hidden_layers": 4, "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 16, "vocab_size": 32000, "max_position_embeddings": 8192, "toy_rank": 256,
}, name="toy-1b")
kind, job = layer_runs(toy)[0].kind, TrainingJob(sequence_length=4096, global_batch_size=64)
ops = layer_ops(Workload(model=toy, job=job, stack=stack("ideal")), kind, ShardShape(sequence_length=4096))
assert sum(op.parameters for op in ops) == layer_parameters(toy, kind)
cluster = default_cluster("h100-sxm", 8)
search(PlanRequest(model=toy, cluster=cluster.spec, job=job))
case = Case(model=toy, cluster=cluster, job=job, stack=stack("megatron-core"), cal=load_calibration())
rules = [v.message for v in check(Problem(case=case, engine="megatron"), ParallelLayout(dp=8))]
assert any("has a toy feed-forward: Megatron-Core builds none" in said for said in rules), rules
assert any("model.toy_rank = 256, there 0" in said for said in rules), rules
assert not check(Problem(case=replace(case, stack=stack("pytorch")), engine="deepspeed"), ParallelLayout(dp=8))
try:
    Deployment(model=toy, hierarchy=cluster.hierarchy, layout=ServingLayout(), stack=serving_stack("vllm"))
except InputError as error:
    print(layer_kinds(toy), "no decode of toys was measured" in str(error))
"""

TOY_RECURRENCE = """def _toy(r: Recurrence) -> Shape:
    width = 2 * r.key_width + r.value_width
    return Shape(input_width=width, split_parameters=r.value_width)


def _scan_toy(r: Recurrence) -> Scan:
    kept = HALF_BYTES * (2 * r.key_width + r.value_width)
    return Scan(flop=4 * r.state_numbers, moved_bytes=2 * kept, saved_bytes=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrenceRecord:"""
"""A sum of outer products, gated by nothing."""

ASKED_OF_RECURRENCE = """
from costmodel.case import Workload
from costmodel.job import TrainingJob
from costmodel.models.hf.config import model_of_config
from costmodel.models.kinds import layer_kinds
from costmodel.models.parameters import layer_parameters
from costmodel.models.spec import layer_runs, recurrence_of
from costmodel.ops.layer import layer_ops
from costmodel.ops.op import ShardShape
from costmodel.stack import stack
from planner.plan import PlanRequest, from_json, to_json
from planner.search.search import search
from topology.base.errors import InputError
from topology.builders import default_cluster

toy = model_of_config({
    "model_type": "toy", "num_hidden_layers": 4, "hidden_size": 2048, "intermediate_size": 8192,
    "num_attention_heads": 16, "vocab_size": 32000, "max_position_embeddings": 8192,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}, name="toy-1b")
job, shard = TrainingJob(sequence_length=4096, global_batch_size=64), ShardShape(sequence_length=4096)
work = Workload(model=toy, job=job, stack=stack("ideal"))
for run in layer_runs(toy):
    assert sum(op.parameters for op in layer_ops(work, run.kind, shard)) == layer_parameters(toy, run.kind)
plan = search(PlanRequest(model=toy, cluster=default_cluster("h100-sxm", 8).spec, job=job))
assert from_json(to_json(plan)) == plan and plan.layout.cp == 1
print(layer_kinds(toy), recurrence_of(toy).state_numbers == 16 * 128 * 128)
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
from costmodel.runs.layout import layout_of_row
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
assert layout_of_row({"num_gpus": "8", "toy": "2", "num_layers": "32"}).toy == 2
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


def changed(tree: Path) -> list[str]:
    """Files of a copy that are not those of the house."""
    copies = (path for package in PACKAGES for path in (tree / package).rglob("*") if path.is_file())
    return sorted(
        name
        for path in copies
        if "__pycache__" not in (name := path.relative_to(tree).as_posix())
        and not ((ROOT / name).is_file() and (ROOT / name).read_bytes() == path.read_bytes())
    )


def add_family(reader: Path, table: str, function: str) -> None:
    """Let a family of configurations be read by a function, and put that before the table of its file."""
    insert(reader, f"{table}: Mapping[str, Callable[[ConfigReader], dict[str, Any]]] = {{", function)
    edit(reader, "dict[str, Any]]] = {\n", 'dict[str, Any]]] = {\n    "toy": _toy,\n')


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
    append(root / "costmodel" / "data" / "switches.toml", SWITCH)
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


def test_a_switch_is_listed_set_priced_and_read_from_runs(house: Path, answer: Path) -> None:
    """One record, in one file."""
    assert "switch.toy_masks" in ask(house, "engines", "toy-engine").stdout
    layout = json.loads(answer.read_text(encoding="utf-8"))["layout"]
    pins = [f"layout.{axis}={layout[axis]}" for axis in ("tp", "pp", "dp", "cp", "microbatch_size")]
    words = [word for pin in pins for word in ("--set", pin)]
    peaks = []
    for value in ("off", "on"):
        done = ask(house, "estimate", *QUESTION, *words, "--set", f"switch.toy_masks={value}", "--json")
        document = json.loads(done.stdout)
        assert document["request"]["switches"] == {"toy_masks": value}
        peaks.append(document["estimate"]["peak_memory_bytes"])
    assert peaks[0] < peaks[1]
    read = "from costmodel.runs.recipe import recipe_of; print(recipe_of({'toy_masks': 'Always'}).switches)"
    assert printed(house, read) == "{'toy_masks': 'on'}\n"


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


def test_a_kind_of_attention_is_added_in_five_places(tree: Path) -> None:
    """A toy is read, priced, cut, cached, sent, planned, told to one engine and refused by the others."""
    pytest.importorskip("torch")
    attention = tree / "costmodel/models/attention.py"
    edit(attention, "def _query_heads(", TOY_ATTENTION)
    edit(attention, 'Literal["grouped", ', 'Literal["toy", "grouped", ')
    edit(attention, "AttentionKind: TypeAlias = ", "AttentionKind: TypeAlias = ToyAttention | ")
    edit(attention, "] = (CompressedAttention, ", "] = (ToyAttention, CompressedAttention, ")
    edit(attention, "import dataclass\n", "import dataclass, fields\n")
    edit(
        tree / "costmodel/models/spec.py",
        "    num_experts: int = 0\n",
        "    toy_groups: int = 0\n    num_experts: int = 0\n",
    )
    (tree / "costmodel/ops/mixers/toy.py").write_text(TOY_ATTENTION_OPS, encoding="utf-8")
    layer = tree / "costmodel/ops/layer.py"
    edit(
        layer,
        '    "grouped": attention_ops,\n',
        '    "grouped": attention_ops,\n    "toy": toy_attention_ops,\n',
    )
    insert(layer, "from costmodel.ops.mtp import", "from costmodel.ops.mixers.toy import toy_attention_ops\n")
    function = """def _toy(r: ConfigReader) -> dict[str, Any]:
    return {**_llama(r), "toy_groups": r.size("toy_groups")}


"""
    add_family(tree / "costmodel/models/hf/dense.py", "DENSE_FAMILIES", function)
    assert len(changed(tree)) == 5
    assert printed(tree, ASKED_OF_ATTENTION) == "['--toy-attention', '4'] 4 [True, True]\n"


def test_a_kind_of_feed_forward_is_added_in_four_places(tree: Path) -> None:
    """A toy is read, priced, planned, and refused by engines that build the model and by servers."""
    blocks = tree / "costmodel/models/feed_forward.py"
    edit(blocks, "def _matrices_of(", TOY_FEED_FORWARD)
    edit(blocks, 'FeedForwardName = Literal["dense", ', 'FeedForwardName = Literal["toy", "dense", ')
    edit(blocks, "FeedForwardKind: TypeAlias = ", "FeedForwardKind: TypeAlias = ToyFeedForward | ")
    edit(blocks, "] = (RoutedExperts, ", "] = (ToyFeedForward, RoutedExperts, ")
    edit(blocks, "import Cut, Mechanism\n", "import Cut, EngineWords, Mechanism\n")
    edit(blocks, "from dataclasses import", "from collections.abc import Mapping\nfrom dataclasses import")
    edit(
        tree / "costmodel/models/spec.py",
        "    num_experts: int = 0\n",
        "    toy_rank: int = 0\n    num_experts: int = 0\n",
    )
    ops = tree / "costmodel/ops/feed_forward.py"
    edit(ops, "FEED_FORWARDS: Mapping[", TOY_FEED_FORWARD_OPS)
    edit(ops, '    "dense": dense_ops,\n', '    "dense": dense_ops,\n    "toy": toy_ops,\n')
    function = """def _toy(r: ConfigReader) -> dict[str, Any]:
    return {**_llama(r), "gated_mlp": False, "toy_rank": r.size("toy_rank")}


"""
    add_family(tree / "costmodel/models/hf/dense.py", "DENSE_FAMILIES", function)
    assert len(changed(tree)) == 4
    assert printed(tree, ASKED_OF_FEED_FORWARD) == "4 × attention + toy feed-forward True\n"


def test_a_kind_of_recurrence_is_added_in_two_places(tree: Path) -> None:
    """A toy is read, priced, kept whole along the sequence and planned."""
    recurrences = tree / "costmodel/models/recurrence.py"
    decorated = "@dataclass(frozen=True, slots=True, kw_only=True)\nclass RecurrenceRecord:"
    edit(recurrences, decorated, TOY_RECURRENCE)
    edit(recurrences, 'RecurrenceName = Literal["mamba2", ', 'RecurrenceName = Literal["toy", "mamba2", ')
    entry = '    "toy": RecurrenceRecord(title="Toy", shape=_toy, scan=_scan_toy),\n'
    edit(recurrences, '    "mamba2": RecurrenceRecord(', f'{entry}    "mamba2": RecurrenceRecord(')
    function = """def _toy(r: ConfigReader) -> dict[str, Any]:
    heads, usual = r.size("num_attention_heads"), ["linear_attention"]
    toy = Recurrence(kind="toy", key_heads=heads, value_heads=heads, key_dim=128, value_dim=128, conv_kernel=0)
    return {**decoder(r), "layer_pattern": _whole_layers(r, usual, 4), "recurrence": toy}


"""
    add_family(tree / "costmodel/models/hf/hybrid.py", "HYBRID_FAMILIES", function)
    assert len(changed(tree)) == 2
    expected = "2 × Toy + feed-forward, 2 × attention + feed-forward True\n"
    assert printed(tree, ASKED_OF_RECURRENCE) == expected


def test_every_size_that_ranks_divide_is_asked_by_a_rule() -> None:
    """A record's cuts name rules of the search, and axes that they read."""
    rules = {rule.name: rule.reads for rule in SHAPE_RULES}
    cuts = {(cut.law, cut.axis) for m in models().values() for cut in m.cuts}
    assert {law for law, axis in cuts if axis in rules.get(law, ())} == {law for law, _ in cuts}


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


def test_the_panel_offers_every_axis() -> None:
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
