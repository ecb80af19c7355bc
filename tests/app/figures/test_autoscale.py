"""The picture of an autoscaled day."""

import numpy as np
import pytest

from planner.serving.autoscale import ScalingPolicy, autoscale


def test_the_figure_shows_the_load_and_the_capacity_that_followed_it() -> None:
    """Two lines: requests per second, and replicas times what one serves."""
    pytest.importorskip("plotly")
    from app.figures.autoscale import autoscale_figure

    run = autoscale(
        np.arange(0, 3600, 0.5),
        capacity_per_s=1.0,
        wait_limit_s=5.0,
        gpus_per_replica=1,
        policy=ScalingPolicy(),
    )
    load, capacity = autoscale_figure(run, 1.0).data
    assert list(load.y) == run.arrivals_per_s.tolist()
    assert list(capacity.y) == run.replicas.tolist()
