"""What a GPU reaches at most in a training step, whatever is measured or printed: more is not this job."""

from __future__ import annotations

from costmodel.job import TrainingJob
from costmodel.kernels.precisions import TRAINING
from topology.hardware.gpu import Gpu

HIGHEST_SHARE_OF_PEAK = 0.8
"""Of a GPU's dense peak that a training step reaches at most: the best published ones stay below 0.75."""


def reachable_flop_per_s(gpu: Gpu, job: TrainingJob) -> float:
    """Operations a second of one GPU that no training step exceeds.

    Args:
        gpu: Its dense peaks.
        job: Its precision names the peak; of operands that the GPU has no units for, those of bf16.
    """
    wanted = TRAINING[job.precision].peak
    return HIGHEST_SHARE_OF_PEAK * gpu.peak(wanted if wanted in gpu.peak_flop_per_s else "bf16")
