"""Where tensor-parallel groups wait for launches on both CPU sockets of a host."""

from dataclasses import replace

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import LayoutTable, ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.training.constants import default_constants
from costmodel.training.raw_times import features_of
from costmodel.training.step_time import compose
from topology.builders import default_cluster

JOB = TrainingJob(sequence_length=4096, global_batch_size=64)


@pytest.mark.parametrize(("gpu", "waits"), [("h100-sxm", [False, True]), ("gb200", [False, False])])
def test_only_groups_over_both_sockets_of_a_host_wait(gpu: str, waits: list[bool]) -> None:
    """Four and eight ranks: eight reach the other socket of an eight-GPU host, a GB200 host has four GPUs."""
    table = LayoutTable.from_rows([ParallelLayout(tp=4, dp=18), ParallelLayout(tp=8, dp=9)])
    features = features_of(
        Case(
            model=model("llama-3.1-8b"),
            cluster=default_cluster(gpu, 72),
            job=JOB,
            stack=stack("megatron-core"),
            cal=load_calibration(),
        ),
        table,
    )
    shipped = default_constants()
    none, skewed = (compose(features, replace(shipped, socket_skew_s=s)).layer_s[0] for s in (0.0, 0.01))
    assert (skewed > none).tolist() == waits
