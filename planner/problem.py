"""What is to be planned: a `Setting`, everything that the layouts of a request are judged against."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.job import TrainingJob
from costmodel.models.spec import ModelSpec
from costmodel.stack import SoftwareStack
from costmodel.training.bands import Doubts, interval, memory_deviation
from planner.plan import PlanRequest, stack_of
from topology.builders import build
from topology.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything a layout is judged against.

    `memory_headroom` is the share of a GPU's memory that a plan leaves free.
    """

    model: ModelSpec
    cluster: Cluster
    job: TrainingJob
    stack: SoftwareStack
    memory_headroom: float = 0.0

    @property
    def memory_budget_bytes(self) -> float:
        """What a plan may fill of one GPU's memory."""
        return self.cluster.gpu.memory_bytes * (1 - self.memory_headroom)


def setting_of(request: PlanRequest) -> Setting:
    """What the layouts of a request are judged against."""
    cluster = build(request.cluster)
    return Setting(
        model=request.model,
        cluster=cluster,
        job=request.job,
        stack=stack_of(request),
        memory_headroom=_headroom(request),
    )


def _headroom(request: PlanRequest) -> float:
    """Share of memory to leave free; by default what keeps the 80 % band of the peak within the GPU."""
    if request.memory_headroom is not None:
        return request.memory_headroom
    _, upper = interval(1.0, memory_deviation(Doubts(experts=request.model.is_moe)))
    return 1 - 1 / upper
