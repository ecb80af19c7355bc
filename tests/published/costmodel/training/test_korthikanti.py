"""Step times of Korthikanti et al. 2022 (arXiv 2205.05198), table 5, on A100 with full or selective recompute."""

import pytest

from costmodel.case import Case
from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.stack import stack
from costmodel.training.estimate import estimate
from topology.builders import default_cluster

CAL = load_calibration()


@pytest.mark.parametrize(
    ("name", "gpus", "pp", "virtual_stages", "microbatch", "batch", "full_s", "selective_s"),
    [
        ("megatron-22b", 8, 1, 1, 4, 4, 1.42, 1.10),
        ("gpt-3-175b", 64, 8, 3, 1, 64, 18.13, 13.75),
        ("megatron-530b", 280, 35, 3, 1, 280, 49.05, 37.83),
        ("megatron-1t", 512, 64, 1, 1, 512, 94.42, 71.49),
    ],
)
def test_published_step_times_are_met_within_fifteen_percent(
    name: str,
    gpus: int,
    pp: int,
    virtual_stages: int,
    microbatch: int,
    batch: int,
    full_s: float,
    selective_s: float,
) -> None:
    """Each of the eight rows: full recompute without, selective recompute with sequence parallelism."""
    cluster = default_cluster("a100-sxm-80gb", gpus, nic_bandwidth_bytes_per_s=25e9)
    job = TrainingJob(sequence_length=2048, global_batch_size=batch, precision="fp16")

    def seconds(*, sequence_parallel: bool) -> float:
        layout = ParallelLayout(
            tp=8,
            pp=pp,
            virtual_stages=virtual_stages,
            schedule="interleaved" if virtual_stages > 1 else "1f1b",
            microbatch_size=microbatch,
            recompute="selective" if sequence_parallel else "full",
            sequence_parallel=sequence_parallel,
        )
        engine = stack("megatron-lm-2022" if sequence_parallel else "megatron-lm-2021")
        return estimate(
            Case(model=model(name), cluster=cluster, job=job, stack=engine, cal=CAL), layout
        ).step_time_s

    assert seconds(sequence_parallel=False) == pytest.approx(full_s, rel=0.15)
    assert seconds(sequence_parallel=True) == pytest.approx(selective_s, rel=0.15)
