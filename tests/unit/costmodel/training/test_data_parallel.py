"""When gradients and parameters travel under each ZeRO stage, and what that does to a step."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.training.constants import default_constants
from costmodel.training.data_parallel import GradientTraffic
from costmodel.training.estimate import estimate
from costmodel.training.raw_times import features_of
from topology.builders import default_cluster

CAL = load_calibration()
JOB = TrainingJob(sequence_length=4096, global_batch_size=64)
CLUSTER = default_cluster("h100-sxm", 32)
SPEC = model("llama-3.1-8b")


def traffic(**fields: int) -> GradientTraffic:
    """Traffic of one layout of the 8B model on 32 GPUs."""
    table = LayoutTable.from_rows([ParallelLayout(**fields)])
    return features_of(
        Case(model=SPEC, cluster=CLUSTER, job=JOB, stack=stack("ideal"), cal=CAL), table
    ).traffic


def total(rows: np.ndarray) -> float:
    """Seconds of all 32 layers, the embedding and the head."""
    return float(32 * rows[0, 0] + rows[1:, 0].sum())


def test_a_single_replica_has_no_traffic() -> None:
    """One copy of the model: nothing to reduce or gather."""
    alone = traffic(tp=8, pp=4)
    assert total(alone.step_reduce_s) == total(alone.step_gather_s) == total(alone.microbatch_reduce_s) == 0.0


@pytest.mark.parametrize(
    ("zero_stage", "once", "every_microbatch"),
    [
        (0, {"step_reduce_s"}, set()),
        (1, {"step_reduce_s", "step_gather_s"}, set()),
        (2, {"step_gather_s"}, {"microbatch_reduce_s"}),
        (3, set(), {"microbatch_reduce_s", "microbatch_gather_s"}),
    ],
)
def test_each_zero_stage_moves_more_of_the_traffic_into_the_microbatches(
    zero_stage: int, once: set[str], every_microbatch: set[str]
) -> None:
    """Rajbhandari et al. 2020, §7: stage 1 adds the gather, stage 2 scatters early, stage 3 gathers early."""
    found = traffic(dp=32, zero_stage=zero_stage)
    names = ("step_reduce_s", "step_gather_s", "microbatch_reduce_s", "microbatch_gather_s")
    assert {name for name in names if total(getattr(found, name)) > 0} == once | every_microbatch


def test_sharding_divides_what_the_optimizer_updates() -> None:
    """ZeRO-1 over 32 replicas updates a thirty-second of the parameters, HSDP over 8 an eighth."""
    whole, sharded = traffic(dp=32).updated_parameters, traffic(dp=32, zero_stage=1).updated_parameters
    hybrid = traffic(dp=32, zero_stage=3, shard_degree=8).updated_parameters
    assert whole / sharded == pytest.approx(32)
    assert whole / hybrid == pytest.approx(8)


def test_hybrid_sharding_keeps_gathers_inside_the_node() -> None:
    """Parameters sharded over 8 GPUs of a node are gathered faster than over 32 GPUs of four nodes."""
    inside, across = traffic(dp=32, zero_stage=3, shard_degree=8), traffic(dp=32, zero_stage=3)
    assert total(inside.microbatch_gather_s) < total(across.microbatch_gather_s)


@pytest.mark.parametrize(
    "worsen",
    [
        lambda s: replace(s, timing=replace(s.timing, gradient_overlap=False)),
        lambda s: replace(s, timing=replace(s.timing, parameter_overlap=False)),
        lambda s: replace(
            s, memory=replace(s.memory, gradient_reduce_bytes=2 * s.memory.gradient_reduce_bytes)
        ),
    ],
)
def test_less_overlap_and_wider_gradients_lengthen_the_step(worsen: Callable[..., object]) -> None:
    """What a stack hides or halves shows when it does not."""
    layout, engine = ParallelLayout(dp=32, zero_stage=1), stack("megatron-core")
    before, after = (
        estimate(
            Case(model=SPEC, cluster=CLUSTER, job=JOB, stack=chosen, cal=CAL),
            layout,
            constants=default_constants(),
        ).time.dp_s
        for chosen in (engine, worsen(engine))
    )
    assert after > before


def test_parameters_gathered_one_by_one_pay_every_ring_anew() -> None:
    """Twelve messages of a twelfth: the same bytes, twelve latencies, which many nodes make long."""
    table = LayoutTable.from_rows([ParallelLayout(dp=512, zero_stage=3)])
    whole = stack("ideal")
    apart = replace(whole, timing=replace(whole.timing, messages_per_unit=12))
    cluster, job = default_cluster("a100-sxm-80gb", 512), replace(JOB, global_batch_size=512)
    once, often = (
        features_of(
            Case(model=SPEC, cluster=cluster, job=job, stack=engine, cal=CAL), table
        ).traffic.microbatch_gather_s[0, 0]
        for engine in (whole, apart)
    )
    assert once < often < 12 * once
