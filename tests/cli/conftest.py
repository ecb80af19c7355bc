"""A hand-made plan, so that what commands print is tested without a search."""

from dataclasses import replace

import pytest

from costmodel.estimate import Estimate, TimeBreakdown
from costmodel.job import TrainingJob
from costmodel.layout import ParallelLayout
from costmodel.memory.stage import MemoryBreakdown
from costmodel.models.catalog import model
from planner.plan import Alternative, Optimality, Plan, PlanRequest
from topology.base.units import GIB
from topology.builders import default_cluster
from topology.fabric.mesh import mesh


def _stage(weights_gib: float) -> MemoryBreakdown:
    return MemoryBreakdown(
        weights_bytes=weights_gib * GIB,
        gradients_bytes=4 * GIB,
        optimizer_bytes=16 * GIB,
        activations_bytes=20 * GIB,
        buffers_bytes=2 * GIB,
        overhead_bytes=1 * GIB,
    )


@pytest.fixture(scope="session")
def example_plan() -> Plan:
    """70B on 32 GPUs, with round numbers."""
    layout = ParallelLayout(tp=8, pp=4, sequence_parallel=True, zero_stage=1)
    time = TimeBreakdown(
        compute_s=8.0, recompute_s=0.5, tp_s=1.0, bubble_s=0.4, optimizer_s=0.1, hidden_s={"dp": 0.3}
    )
    estimate = Estimate(
        time=time,
        step_time_s=time.total_s,
        lower_s=9.0,
        upper_s=11.0,
        memory_by_stage=(_stage(10.0), _stage(8.0), _stage(8.0), _stage(9.0)),
        peak_memory_bytes=_stage(10.0).total_bytes,
        memory_lower_bytes=50 * GIB,
        memory_upper_bytes=56 * GIB,
        mfu=0.5,
        hfu=0.53,
        tokens_per_s_per_gpu=13107.2,
        usd_per_step=0.25,
        usd_per_billion_tokens=60.0,
        wh_per_step=62.0,
        wh_per_billion_tokens=15000.0,
        bound_by="compute",
        assumptions=("no dropout",),
    )
    other = Alternative(
        layout=replace(layout, tp=4, pp=8),
        layers_of_stage=(10,) * 8,
        recompute_of_stage=(0,) * 8,
        step_time_s=10.2,
        lower_s=9.2,
        upper_s=11.2,
        peak_memory_bytes=50 * GIB,
        slower_by=0.02,
        tied=True,
        difference="tp 4, pp 8",
    )
    return Plan(
        request=PlanRequest(
            model=model("llama-3.1-70b"),
            cluster=default_cluster("h100-sxm", 32).spec,
            job=TrainingJob(sequence_length=8192, global_batch_size=512),
        ),
        layout=layout,
        layers_of_stage=(20, 20, 20, 20),
        recompute_of_stage=(0, 0, 0, 0),
        mesh=mesh([("pp", 4), ("dp", 1), ("cp", 1), ("tp", 8)]),
        estimate=estimate,
        alternatives=(other,),
        optimality=Optimality(
            status="proven",
            bound_s=10.0,
            gap=0.0,
            enumerated=5000,
            pruned={"memory": 3000, "bound": 1990},
            solved=10,
        ),
        search_time_s=0.4,
        assumptions=("GPUs run at their boost clock",),
    )
