"""Offloading: what is written, what leaves the GPU, what moving it takes; and what a plan makes of it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from costmodel.case import Case, Workload
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.memory.layer import memory_pieces
from costmodel.memory.stage import memory_by_stage
from costmodel.models.catalog import model
from costmodel.models.parameters import layer_parameters, parameter_count
from costmodel.models.spec import layer_runs
from costmodel.stack import SoftwareStack, stack
from costmodel.training.constants import default_constants
from costmodel.training.raw_times import features_of, input_bytes
from costmodel.training.slowdowns import job_environment
from costmodel.training.step_time import compose, update_seconds_per_parameter
from costmodel.updates.adapters import parse_adapter
from costmodel.updates.offload import (
    HOST_EFFICIENCY,
    IN_TRANSIT,
    LINK_EFFICIENCY,
    UPDATE_BYTES,
    Offload,
    host_path,
    parse_offload,
)
from topology.base.errors import InputError
from topology.base.units import GB, GIB
from topology.builders import default_cluster

CAL = load_calibration()
LLAMA = model("llama-3.1-8b")
JOB = TrainingJob(sequence_length=8192, global_batch_size=32)
CLUSTER = default_cluster("h100-sxm", 8)
MEGATRON = stack("megatron-core")


def offloaded(words: str) -> TrainingJob:
    """The job with this offloaded."""
    return replace(JOB, offload=parse_offload(words)[0])


def memory_of(
    job: TrainingJob, layout: ParallelLayout, profile: SoftwareStack = MEGATRON
) -> dict[str, float]:
    """Bytes of the one stage by part, every layer recomputed."""
    layers = LLAMA.num_layers
    (stage,) = memory_by_stage(
        Workload(model=LLAMA, job=job, stack=profile), layout, [(layers,)], [(layers,)]
    )
    return {name: getattr(stage, name) for name in stage.__slots__}


@pytest.mark.parametrize(
    ("words", "found", "is_open"),
    [
        ("optimizer", Offload(optimizer=1.0), True),
        ("optimizer:0.5", Offload(optimizer=0.5), False),
        ("Activations", Offload(activations=1.0), False),
        ("optimizer:0.25+activations:0.5", Offload(optimizer=0.25, activations=0.5), False),
        ("parameters", Offload(parameters=True), False),
        ("parameters+activations", Offload(parameters=True, activations=1.0), False),
    ],
)
def test_words_are_read_and_written_again(words: str, found: Offload, is_open: bool) -> None:
    """An offload is what was written, and its own words give it back."""
    assert parse_offload(words) == (found, is_open)
    assert parse_offload(found.words)[0] == found


@pytest.mark.parametrize(
    "words", ["", "weights", "optimizer:2", "optimizer:nan", "optimizer:x", "optimizer:0", "parameters:0.5",
              "optimizer+optimizer", "parameters+optimizer:0.5"],
)  # fmt: skip
def test_what_there_is_not_is_refused(words: str) -> None:
    """Three lines, with something that can be written."""
    with pytest.raises(InputError) as told:
        parse_offload(words)
    assert "--offload optimizer:0.5" in told.value.fix


@pytest.mark.parametrize("zero", [0, 1])
def test_a_share_of_the_optimizer_leaves_just_that_of_the_gpu(zero: int) -> None:
    """Weights and gradients stay; of moments and master weights 1 - f stays."""
    layout = ParallelLayout(dp=8, zero_stage=zero, recompute="full")
    whole, half = memory_of(JOB, layout), memory_of(offloaded("optimizer:0.5"), layout)
    assert half["optimizer_bytes"] == pytest.approx(whole["optimizer_bytes"] / 2)
    same = ("weights_bytes", "gradients_bytes", "activations_bytes", "buffers_bytes")
    assert all(half[name] == whole[name] for name in same)


def test_offloaded_parameters_leave_what_is_gathered() -> None:
    """At ZeRO-3 nothing of the sharded state stays; layers that compute are gathered as before."""
    layout = ParallelLayout(dp=8, zero_stage=3, recompute="full")
    torchtitan = stack("torchtitan")
    whole = memory_of(JOB, layout, torchtitan)
    away = memory_of(offloaded("parameters"), layout, torchtitan)
    assert away["weights_bytes"] == away["gradients_bytes"] == away["optimizer_bytes"] == 0
    assert whole["gradients_bytes"] > 0
    assert away["activations_bytes"] == whole["activations_bytes"]


def test_offloaded_inputs_leave_two_in_transit() -> None:
    """Of the inputs of recomputed layers none stays but those that travel; other layers keep theirs."""
    layout = ParallelLayout(dp=8, recompute="full")
    table = LayoutTable.from_rows([layout])
    here = memory_pieces(Workload(model=LLAMA, job=JOB, stack=MEGATRON), table)
    away = memory_pieces(Workload(model=LLAMA, job=offloaded("activations"), stack=MEGATRON), table)
    (kept,), (left,) = here.layers, away.layers
    one = JOB.sequence_length * LLAMA.hidden_size * 2
    assert float(kept.saved_bytes_recomputed[0]) == one
    assert float(left.saved_bytes_recomputed[0]) == 0
    assert float(left.saved_bytes[0]) == float(kept.saved_bytes[0])
    added = float(away.recompute_working_bytes[0]) - float(here.recompute_working_bytes[0])
    assert added == IN_TRANSIT * one


def test_an_update_on_the_host_takes_its_traffic() -> None:
    """Gradient there, an update at the host's rate, weight back: sums of bytes over rates, by hand."""
    path = host_path(CLUSTER.spec)
    assert path.link_bytes_per_s == LINK_EFFICIENCY * 64 * GB
    assert path.memory_bytes_per_s == pytest.approx(614.4 * GB / 8)
    assert path.memory_bytes == pytest.approx(2048 * GIB / 8)
    constants = default_constants()
    by_share = [
        float(
            update_seconds_per_parameter(
                job_environment(Case(model=LLAMA, cluster=CLUSTER, job=job, stack=MEGATRON, cal=CAL)),
                constants,
            )
        )
        for job in (JOB, offloaded("optimizer:0.5"), offloaded("optimizer:1"))
    ]
    there = (4 + 2) / (LINK_EFFICIENCY * 64 * GB) + UPDATE_BYTES / (HOST_EFFICIENCY * 614.4 * GB / 8)
    assert by_share[2] == pytest.approx(there)
    assert by_share[1] == pytest.approx((by_share[0] + there) / 2)


def test_the_published_update_on_a_host_is_reproduced() -> None:
    """CPU-Adam of ZeRO-Offload, table 4, on a DGX-2: seconds of 1e9 to 1e10 parameters, recalled, within 20 %."""
    dgx_2 = 2 * 6 * 2666e6 * 8  # sockets, channels, transfers of eight bytes a second
    for parameters, seconds in ((1e9, 0.22), (2e9, 0.51), (4e9, 1.03), (10e9, 2.57)):
        predicted = parameters * UPDATE_BYTES / (HOST_EFFICIENCY * dgx_2)
        assert predicted == pytest.approx(seconds, rel=0.2)


def test_slow_links_show_and_fast_ones_hide() -> None:
    """An input travels beside the layer: seconds show only where the link takes longer than the kernels."""
    layout = LayoutTable.from_rows([ParallelLayout(dp=8, recompute="full")])
    job = offloaded("activations")
    seconds = []
    for rate in (math.inf, 64 * GB, 0.1 * GB):
        nodes = tuple(replace(node, host_bandwidth_bytes_per_s=rate) for node in CLUSTER.spec.nodes)
        slow = replace(CLUSTER, spec=replace(CLUSTER.spec, nodes=nodes)).wired_as(CLUSTER.hierarchy)
        f = features_of(Case(model=LLAMA, cluster=slow, job=job, stack=MEGATRON, cal=CAL), layout)
        costs = compose(f, default_constants())
        seconds.append(float((costs.layer_s + costs.recompute_s)[0, 0]))
        travels = float(input_bytes(f)[0]) / (LINK_EFFICIENCY * rate)
        assert seconds[-1] >= 2 * travels * 0.999
    assert seconds[0] == seconds[1] < seconds[2]


def test_parameters_travel_in_every_microbatch() -> None:
    """ZeRO-3's traffic grows by weights to the GPU twice and gradients back once; that of ZeRO-1 does not."""
    torchtitan, link = stack("torchtitan"), LINK_EFFICIENCY * 64 * GB
    rows = LayoutTable.from_rows([ParallelLayout(dp=8, zero_stage=stage) for stage in (1, 3)])
    here, away = (
        features_of(Case(model=LLAMA, cluster=CLUSTER, job=job, stack=torchtitan, cal=CAL), rows).traffic
        for job in (JOB, offloaded("parameters"))
    )
    added = (away.microbatch_gather_s - here.microbatch_gather_s)[0]
    parameters = float(here.updated_parameters[0, 1])
    assert added[0] == 0
    assert added[1] == pytest.approx(parameters * 4 / link)  # torchtitan gathers from its fp32 master weights
    back = (away.microbatch_reduce_s - here.microbatch_reduce_s)[0]
    assert back[1] == pytest.approx(parameters * torchtitan.memory.gradient_bytes / link)


def test_an_offloaded_base_of_adapters_leaves_the_gpu_and_travels() -> None:
    """Frozen weights are what ZeRO-3 shards too: none stays, two bytes of each come before every use."""
    profile = stack("pytorch")
    lora = replace(JOB, adapter=parse_adapter("lora:r=16"))
    layout = ParallelLayout(dp=8, zero_stage=3, recompute="full")
    away = replace(lora, offload=parse_offload("parameters")[0])
    here, gone = memory_of(lora, layout, profile), memory_of(away, layout, profile)
    assert here["weights_bytes"] == 2 * parameter_count(LLAMA) / 8
    assert gone["weights_bytes"] == 0
    assert gone["activations_bytes"] == here["activations_bytes"]
    rows = LayoutTable.from_rows([layout])
    still, moved = (
        features_of(
            Case(model=LLAMA, cluster=CLUSTER, job=job, stack=profile, cal=CAL), rows
        ).traffic.microbatch_gather_s[0, 0]
        for job in (lora, away)
    )
    frozen = 2 * layer_parameters(LLAMA, layer_runs(LLAMA)[0].kind)
    assert moved - still == pytest.approx(frozen / 8 / (LINK_EFFICIENCY * 64 * GB), rel=0.02)
