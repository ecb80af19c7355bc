"""What the space holds, and what it costs: sharding inside a unit of the fabric."""

import numpy as np

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.training.raw_times import features_of
from planner.plan import PlanRequest
from planner.problem import Setting, setting_of
from planner.space.unfold import variants
from topology.builders import default_cluster

CAL = load_calibration()


def setting() -> Setting:
    """Four nodes of eight GPUs under a stack that shards state by any degree and places axes in any order."""
    job = TrainingJob(sequence_length=8192, global_batch_size=64)
    cluster = default_cluster("h100-sxm", 32).spec
    return setting_of(PlanRequest(model=model("llama-3.1-70b"), cluster=cluster, job=job, stack="ideal"))


def shard_degrees(layout: ParallelLayout) -> set[int]:
    """Shard degrees that the space offers with ZeRO-3."""
    found, _ = variants(setting(), {}, LayoutTable.from_rows([layout]))
    return set(found.shard_degree[found.zero_stage == 3].tolist())


def test_state_is_sharded_over_all_replicas_or_over_those_of_a_node() -> None:
    """Two of eight replicas share a node of eight GPUs when four tensor ranks lie between them."""
    assert shard_degrees(ParallelLayout(tp=4, dp=8, sequence_parallel=True)) == {2, 8}


def test_the_order_of_axes_decides_which_replicas_share_a_node() -> None:
    """With replicas side by side eight of them fill a node, so one shard each is already inside it."""
    beside = ParallelLayout(tp=4, dp=8, sequence_parallel=True, axis_order=("pp", "tp", "cp", "dp"))
    assert shard_degrees(beside) == {8}


def test_a_degree_inside_the_node_gathers_over_its_own_links() -> None:
    """Gathering a layer from the other replica of the node takes a quarter of what four nodes take."""
    s = setting()
    layouts = [
        ParallelLayout(tp=4, dp=8, sequence_parallel=True, zero_stage=3, shard_degree=n) for n in (2, 8)
    ]
    features = features_of(s.model, s.cluster, s.job, s.stack, LayoutTable.from_rows(layouts), CAL)
    inside, across = features.traffic.microbatch_gather_s[0][features.replication]
    assert 4 * inside < across
    assert np.isfinite(across)
