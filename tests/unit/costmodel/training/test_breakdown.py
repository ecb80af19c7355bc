"""Where the seconds of a step are said to go, and what is said to be hidden."""

from dataclasses import fields, replace

import pytest

from costmodel.case import Case
from costmodel.estimate import TimeBreakdown
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.parallel.axes import PARTS
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from topology.base.units import GBIT
from topology.builders import default_cluster

CAL = load_calibration()
JOB = TrainingJob(sequence_length=8192, global_batch_size=128)
LAYOUTS = {
    "zero-0": ParallelLayout(dp=64),
    "zero-1": ParallelLayout(dp=64, zero_stage=1),
    "zero-3": ParallelLayout(dp=64, zero_stage=3),
    "pipeline": ParallelLayout(
        tp=2, pp=4, dp=8, zero_stage=1, schedule="interleaved", virtual_stages=2, sequence_parallel=True
    ),
    "v-shaped": ParallelLayout(tp=2, pp=4, dp=8, zero_stage=2, schedule="zbv", virtual_stages=2),
    "context": ParallelLayout(tp=2, cp=8, dp=4, zero_stage=1, sequence_parallel=True),
}


def breakdown(layout: ParallelLayout, *, nic_gbit: float = 400, engine: str = "torchtitan") -> TimeBreakdown:
    """Parts of a step of an 8B model."""
    cluster = default_cluster("h100-sxm", layout.num_gpus, nic_bandwidth_bytes_per_s=nic_gbit * GBIT)
    return estimate(
        Case(model=model("llama-3.1-8b"), cluster=cluster, job=JOB, stack=stack(engine), cal=CAL), layout
    ).time


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("nic_gbit", [400, 10])
def test_no_part_is_negative_and_no_more_is_hidden_than_there_is_to_hide_under(name, nic_gbit):
    """Parts are at least zero; hidden communication fits under compute and repeated compute."""
    time = breakdown(LAYOUTS[name], nic_gbit=nic_gbit)
    parts = {part.name: getattr(time, part.name) for part in fields(time) if part.name != "hidden_s"}
    assert {name: value for name, value in parts.items() if value < 0} == {}
    assert set(time.hidden_s) <= {"tp", "cp", "ep", "dp"}
    assert sum(time.hidden_s.values()) <= time.compute_s + time.recompute_s


@pytest.mark.parametrize("name", ["zero-0", "zero-1", "zero-3"])
def test_a_slow_network_lengthens_communication_and_not_compute(name):
    """With NICs forty times slower compute stays, data-parallel time takes the whole difference."""
    fast, slow = (breakdown(LAYOUTS[name], nic_gbit=gbit) for gbit in (400, 10))
    assert slow.compute_s == pytest.approx(fast.compute_s, rel=1e-3)
    assert slow.dp_s - fast.dp_s == pytest.approx(slow.total_s - fast.total_s, rel=1e-3)


def test_tensor_parallel_chunks_hide_only_where_gpus_copy_to_each_other() -> None:
    """Across nodes only the second gather of the backward is hidden, a fifth of the bytes."""
    inside = ParallelLayout(tp=8, dp=8, sequence_parallel=True)
    across = replace(inside, axis_order=("tp", "pp", "dp", "cp"))
    shares = []
    for layout in (inside, across):
        time = breakdown(layout, engine="megatron-core")
        hidden_s = time.hidden_s.get("tp", 0.0)
        shares.append(hidden_s / (hidden_s + time.tp_s))
    assert shares[0] > 2 / 3
    assert shares[1] < 1 / 4


def test_one_gpu_waits_for_nobody():
    """Without a second GPU there is nothing to communicate, hidden or not."""
    time = breakdown(ParallelLayout())
    assert {part: getattr(time, f"{part}_s") for part in PARTS} == dict.fromkeys(PARTS, 0.0)
    assert (time.bubble_s, dict(time.hidden_s)) == (0.0, {})


def test_sharded_transfers_hide_and_all_reduces_do_not():
    """Megatron-Core hides part of sequence-parallel gathers under their products; plain all-reduces all show."""
    sharded, whole = (
        breakdown(ParallelLayout(tp=8, sequence_parallel=flag), engine="megatron-core")
        for flag in (True, False)
    )
    assert sharded.hidden_s["tp"] > 0
    assert dict(whole.hidden_s) == {}
