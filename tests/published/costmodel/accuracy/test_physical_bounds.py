"""No published step, and none predicted for it, needs more than its GPUs have: arithmetic, power, memory, latency.

Power: a chip at a share f of its clocks needs E·f^(1/h − 1) an operation (`sustained_slowdown`), E at full clocks,
so that its rate is bounded by the clocks that the design power sustains, f = (P/(E·rate))^(h/(1 − h)), at most 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from costmodel.accuracy.training import predict_rows
from costmodel.accuracy.training_runs import TrainingRun, read_runs, shipped_runs
from costmodel.kernels.precisions import PRECISIONS, TRAINING
from costmodel.kernels.tables import load_calibration
from costmodel.models.parameters import parameter_count
from costmodel.ops.layer import model_flop_per_step
from costmodel.training.constants import default_constants

CONSTANTS = default_constants()
BF16_BYTES = 2
DIRECTIONS = 2


@dataclass(frozen=True)
class Step:
    """A run and the seconds of its step, as measured or as predicted."""

    run: TrainingRun
    seconds: float

    @property
    def name(self) -> str:
        """The run's."""
        return self.run.name

    @property
    def flop_per_s(self) -> float:
        """Of the model, on every GPU."""
        flop = model_flop_per_step(self.run.model, self.run.job)
        return flop / (self.run.layout.num_gpus * self.seconds)

    @property
    def peak_flop_per_s(self) -> float:
        """Of the precision of its products."""
        return self.run.cluster.gpu.peak(TRAINING[self.run.job.precision].peak)

    @property
    def sustained_clock(self) -> float:
        """Share of full clocks that the design power sustains at this rate, at most 1."""
        width = PRECISIONS[TRAINING[self.run.job.precision].linear].activation_bytes / BF16_BYTES
        draw_w = CONSTANTS.picojoule_per_flop * 1e-12 * width * self.flop_per_s
        h = CONSTANTS.clock_exponent
        return min(1.0, (self.run.cluster.gpu.tdp_w / draw_w) ** (h / (1 - h)))

    @property
    def microbatches(self) -> float:
        """Of a step on a rank."""
        layout, job = self.run.layout, self.run.job
        return job.global_batch_size / (layout.dp * layout.microbatch_size)


def steps() -> Iterator[Step]:
    """Every packaged run twice: as measured, as predicted."""
    rows = shipped_runs()
    for run, result in zip(read_runs(rows), predict_rows(rows, load_calibration()), strict=True):
        if isinstance(run, TrainingRun) and result.measured_step_time_s and result.predicted_step_time_s:
            yield Step(run, result.measured_step_time_s)
            yield Step(run, result.predicted_step_time_s)


@pytest.fixture(scope="module")
def all_steps() -> list[Step]:
    """Both of every run."""
    return list(steps())


def test_no_step_multiplies_faster_than_the_clocks_that_its_power_sustains(all_steps: list[Step]) -> None:
    """Rows of Blackwell would exceed their power if an operation took as much energy at any clock."""
    fast = [s.name for s in all_steps if s.flop_per_s > s.sustained_clock * s.peak_flop_per_s]
    assert len(all_steps) > 500
    assert fast == []
    assert any(s.sustained_clock < 1 for s in all_steps)


def test_no_step_reads_its_weights_faster_than_memory_gives_them(all_steps: list[Step]) -> None:
    """Every microbatch reads what dense layers of its rank have, once forward and once backward."""
    dense = [s for s in all_steps if not s.run.model.is_moe]
    late = [
        s.name
        for s in dense
        if DIRECTIONS * BF16_BYTES * parameter_count(s.run.model) / (s.run.layout.tp * s.run.layout.pp)
        * s.microbatches
        > s.run.cluster.gpu.memory_bandwidth_bytes_per_s * s.seconds
    ]  # fmt: skip
    assert len(dense) > 300
    assert late == []


def test_no_step_is_shorter_than_the_latency_of_its_messages(all_steps: list[Step]) -> None:
    """A tensor-parallel layer waits for two collectives a direction; a pipeline passes M microbatches on."""
    late = []
    for s in all_steps:
        layout, latency_s = s.run.layout, s.run.cluster.hierarchy.scaleup.latency_s
        collectives = 2 * DIRECTIONS * s.run.model.num_layers / layout.pp * (layout.tp > 1)
        if latency_s * s.microbatches * (collectives + DIRECTIONS * (layout.pp > 1)) > s.seconds:
            late.append(s.name)
    assert late == []
