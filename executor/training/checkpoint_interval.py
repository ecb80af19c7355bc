"""How often to write a checkpoint, from the failures that the cost model knows of.

What fails and how often is data of the campaign (`costmodel.campaign.failures`), and so is the interval of
Young and Daly; here a run asks for it in steps.
"""

from __future__ import annotations

from costmodel.campaign.failures import default_site, seconds_between, sites, usual_devices
from costmodel.campaign.interval import young_daly_s


def seconds_between_failures(num_gpus: int, gpu: str = "") -> float:
    """Mean time between failures of a job, in seconds, at the rate published of such GPUs.

    >>> round(seconds_between_failures(16384) / 3600, 1)
    3.1
    """
    site = sites()[default_site(gpu)]
    return seconds_between(site, usual_devices(num_gpus, site))


def best_interval_steps(step_s: float, checkpoint_s: float, num_gpus: int, gpu: str = "") -> int:
    """Steps between checkpoints, at least one."""
    between_s = seconds_between_failures(num_gpus, gpu)
    return max(1, round(young_daly_s(checkpoint_s, between_s) / max(step_s, 1e-6)))
