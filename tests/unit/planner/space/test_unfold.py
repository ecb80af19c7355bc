"""What the space holds, and what it costs: sharding over a part of the replicas."""

import numpy as np
import pytest

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.training.raw_times import features_of
from planner.plan import PlanRequest, Problem, problem_of
from planner.space.unfold import shardings, variants
from topology.builders import default_cluster

CAL = load_calibration()


def problem() -> Problem:
    """Four nodes of eight GPUs under a stack that shards state by any degree and places axes in any order."""
    job = TrainingJob(sequence_length=8192, global_batch_size=64)
    cluster = default_cluster("h100-sxm", 32).spec
    return problem_of(PlanRequest(model=model("llama-3.1-70b"), cluster=cluster, job=job, stack="ideal"), CAL)


def shard_degrees(layout: ParallelLayout, zero_stage: int, **pins: int) -> list[int]:
    """Shard degrees that the space offers at a ZeRO stage."""
    found, _ = variants(problem(), pins, LayoutTable.from_rows([layout]))
    found, _ = shardings(problem(), pins, found)
    return sorted(found.shard_degree[found.zero_stage == zero_stage].tolist())


@pytest.mark.parametrize(("zero_stage", "degrees"), [(0, [8]), (1, [1, 2, 4, 8]), (3, [1, 2, 4, 8])])
def test_state_is_sharded_over_any_part_of_the_replicas(zero_stage: int, degrees: list[int]) -> None:
    """Every divisor of eight replicas; without ZeRO there is nothing to shard."""
    assert shard_degrees(ParallelLayout(tp=4, dp=8, sequence_parallel=True), zero_stage) == degrees


def test_a_given_shard_degree_is_the_only_one() -> None:
    """A pin takes the place of all."""
    assert shard_degrees(ParallelLayout(tp=4, dp=8, sequence_parallel=True), 3, shard_degree=2) == [2]


def test_a_degree_inside_the_node_gathers_over_its_own_links() -> None:
    """Gathering a layer from the other replica of the node takes a quarter of what four nodes take."""
    s = problem()
    layouts = [
        ParallelLayout(tp=4, dp=8, sequence_parallel=True, zero_stage=3, shard_degree=n) for n in (2, 8)
    ]
    features = features_of(s.case, LayoutTable.from_rows(layouts))
    inside, across = features.traffic.microbatch_gather_s[0][features.replication]
    assert 4 * inside < across
    assert np.isfinite(across)
