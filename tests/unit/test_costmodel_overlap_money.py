"""Overlap of compute and communication, and what time costs."""

import numpy as np
import pytest

from costmodel.money import per_billion_tokens, usd, watt_hours
from costmodel.overlap import exposed, overlapped_time


@pytest.mark.parametrize(
    ("compute", "communication", "gc", "gm", "together"),
    [
        (10.0, 4.0, 1.0, 1.0, 10.0),  # hidden for free
        (4.0, 10.0, 1.0, 1.0, 10.0),  # compute hides under communication
        (10.0, 5.0, 1.25, 1.0, 11.0),  # 5 s at 4/5 speed, then the rest alone
        (5.0, 10.0, 1.0, 2.0, 12.5),  # 5 s at half speed, then 7.5 alone
        (0.0, 3.0, 1.2, 1.1, 3.0),
    ],
)
def test_overlap_of_a_pair(compute, communication, gc, gm, together):
    """Both slow down while both run; whoever is left runs at full speed."""
    assert float(overlapped_time(compute, communication, gc, gm)) == pytest.approx(together)


def test_overlap_lies_between_the_longer_and_the_sum():
    """For slow-downs up to 2 the pair takes at least the longer and at most the sum."""
    c, m = np.meshgrid(np.linspace(0, 10, 41), np.linspace(0, 10, 41))
    for gc in (1.0, 1.1, 2.0):
        together = overlapped_time(c, m, gc, 1.1)
        assert (together >= np.maximum(c, m) - 1e-12).all()
        assert (together <= c * gc + m * 1.1 + 1e-12).all()


def test_exposed_is_what_overlap_adds_to_compute():
    """Exposed time is never negative and is all of the communication when there is no compute."""
    assert exposed([10.0, 0.0], [4.0, 3.0], 1.0, 1.0).tolist() == [0.0, 3.0]


def test_money_and_energy_of_a_step():
    """An hour of 8 GPUs at $2.50 is $20; a step of 4 Mi tokens scales to a billion."""
    assert float(usd(3600.0, 8, 2.5)) == 20.0
    assert float(watt_hours(1800.0, 8, 700.0)) == 2800.0
    assert float(per_billion_tokens(2.0, 4_000_000)) == 500.0
