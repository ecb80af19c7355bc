"""What is written of any plan that an engine can be told reads back as that plan, in every engine's own files."""

from __future__ import annotations

from itertools import islice

import pytest

from planner.engines.contracts import CONTRACTS
from tests.counts import tries
from tests.property.planner.engines.random_plans import random_plans

WANTED = tries(60, 450)
"""Plans of each engine; `benchmarks/round_trip.py` tries as many as are wanted. The ninth engine writes the plan."""


@pytest.mark.parametrize("engine", [name for name in CONTRACTS if name != "meshplan"])
def test_what_is_written_reads_back(engine: str) -> None:
    """Layout, split, job, model and switches, of random legal layouts of several models and profiles."""
    for told in islice(random_plans(engine, 1), WANTED):
        assert told.faults == (), told.files
