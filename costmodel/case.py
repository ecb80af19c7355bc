"""What a layout is judged against: a `Case`; a `Workload` for what no cluster decides.

Every function of the cost model that reads several of model, cluster, job, engine and tables takes one of the
two, and a layout beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.job import TrainingJob
from costmodel.kernels.tables import Calibration
from costmodel.models.spec import ModelSpec
from costmodel.stack import SoftwareStack
from topology.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What runs, wherever it does: it decides operations, bytes of memory and bytes of a checkpoint."""

    model: ModelSpec
    job: TrainingJob
    stack: SoftwareStack


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What runs, on which cluster, by which kernel and collective tables: it decides seconds."""

    model: ModelSpec
    cluster: Cluster
    job: TrainingJob
    stack: SoftwareStack
    cal: Calibration

    @property
    def workload(self) -> Workload:
        """What of it no cluster decides."""
        return Workload(model=self.model, job=self.job, stack=self.stack)
