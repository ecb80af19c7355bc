"""The page that GPU tests write, which needs no GPU."""

from __future__ import annotations

import doctest
from datetime import date

import pytest

pytest.importorskip("torch")

from tests.executor.gpu import measurements
from tests.executor.gpu.measurements import Row, page, versions


def test_a_page_says_when_on_what_and_how_far() -> None:
    """Date, GPU and versions, and each estimate over what was measured."""
    row = Row(
        plan="8b ZeRO-3",
        peak_bytes=20 * 2**30,
        estimated_bytes=21 * 2**30,
        forward_s=0.1,
        backward_s=0.2,
        layer_s=0.010,
        layer_estimated_s=0.009,
        kernels=(("nvjet_tst_128x256", 0.0123),),
    )
    found = page([row], versions("NVIDIA H100"), date(2026, 11, 25))
    assert found.startswith("# Ranks on a GPU, 2026-11-25\n\nNVIDIA H100, torch ")
    assert "| 8b ZeRO-3 | 20.00 | +5.0% | 100.0 | 200.0 | 10.00 | -10.0% |" in found
    assert "| `nvjet_tst_128x256` | 12.30 |" in found
    assert doctest.testmod(measurements).failed == 0
