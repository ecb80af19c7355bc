"""Plans of given layouts with the numbers of the cost model, made without a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.job import TrainingJob
from costmodel.kernels.tables import load_calibration
from costmodel.layout import ParallelLayout
from costmodel.models.catalog import model
from costmodel.models.spec import ModelSpec
from planner.plan import FREE, Plan, PlanRequest
from planner.rules.check import parse_pins
from planner.search.given_layout import plan_of_layout
from topology.builders import default_cluster


def priced(
    layout: ParallelLayout,
    name: str | ModelSpec = "llama-3.1-8b",
    *,
    stack: str = "megatron-core",
    engine: str = FREE,
    gpu: str = "h100-sxm",
    switches: Mapping[str, str] | None = None,
    **job: Any,
) -> Plan:
    """The plan of a layout on as many GPUs as it needs, at least a node."""
    words = {"sequence_length": 4096, "global_batch_size": 64} | job
    request = PlanRequest(
        model=model(name) if isinstance(name, str) else name,
        cluster=default_cluster(gpu, max(8, layout.num_gpus)).spec,
        job=TrainingJob(**words),
        stack=stack,
        engine=engine,
        switches=switches or {},
        pins=parse_pins({k: v for k, v in _fields(layout).items() if v is not None}),
        memory_headroom=0.0,
    )
    found = plan_of_layout(request, load_calibration())
    assert isinstance(found, Plan), found
    return found


def _fields(layout: ParallelLayout) -> dict[str, Any]:
    return {name: getattr(layout, name) for name in layout.__slots__}
