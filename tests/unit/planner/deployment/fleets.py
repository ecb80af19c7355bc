"""Fleets of many shapes, made of one plan: what of a deployment follows from workers and degrees alone."""

from dataclasses import replace
from functools import cache
from typing import TypeAlias

from costmodel.job import ServingJob
from costmodel.kernels.tables import load_calibration
from costmodel.models.catalog import model
from costmodel.serving.deployment import ServingLayout
from planner.serving.plan import ServingPlan, ServingRequest
from planner.serving.search import search_serving
from topology.builders import default_cluster

Size: TypeAlias = tuple[int, int]
"""Workers and their tensor-parallel degree."""


@cache
def planned(engine: str) -> ServingPlan:
    """Two pools on eight GPUs."""
    job = ServingJob(input_tokens=1000, output_tokens=200)
    request = ServingRequest(
        model=model("8b"), job=job, gpu="h100-sxm", num_gpus=8, engine=engine, modes=("disaggregated",),
        pins={"tp": 2, "pp": 1},
    )  # fmt: skip
    found = search_serving(load_calibration(), request, default_cluster("h100-sxm", 8).hierarchy)
    assert isinstance(found, ServingPlan)
    return found


def resized(engine: str, prefill: tuple[int, int] | None, decode: tuple[int, int]) -> ServingPlan:
    """That plan with other pools: workers and their tensor-parallel degree."""
    plan = planned(engine)
    pool = plan.decode

    def of(size: tuple[int, int] | None) -> object:
        return size and replace(pool, workers=size[0], layout=ServingLayout(tp=size[1]))

    return replace(plan, prefill=of(prefill), decode=of(decode))  # type: ignore[arg-type]  # no pool is None


SIZES = [
    (None, (1, 8)), (None, (3, 2)), (None, (20, 2)), (None, (3, 16)), ((1, 4), (1, 4)), ((3, 2), (2, 8)),
    ((5, 3), (3, 4)), ((2, 1), (1, 16)),
]  # fmt: skip
